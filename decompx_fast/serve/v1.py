"""Routes below /v1: the service's own, and KServe's protocol V1; and what Prometheus reads."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from .messages import Outcome, Text
from .refusals import Refusal, of_outcome
from .schemas import (
    ErrorResponse,
    ExplainRequest,
    ExplainResponse,
    Instance,
    Ready,
    V1Models,
    V1Request,
    V1Response,
)
from .service import Service

_WHY = {
    401: "The key is missing or wrong.",
    404: "There is no such model.",
    408: "The body took too long to come.",
    413: "The body is too long.",
    422: "A part of the request cannot be used; `argument` says which.",
    429: "Too many texts wait; Retry-After says when to ask again.",
    500: "A fault of the service.",
    503: "The process that computed it has ended; ask again.",
    504: "It took too long.",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": why} for status, why in _WHY.items()
}

router = APIRouter()


@router.post("/v1/explain", response_model=ExplainResponse, responses=REFUSALS, tags=["explain"])
async def explain(request: Request, asked: ExplainRequest) -> Response:
    """Explain texts: how much each token contributed to what the model says of each."""
    service: Service = request.app.state.service
    backend = service.backend(asked.model)
    outcomes = await service.explain(
        request.scope["about"],
        backend,
        [_text(one) for one in asked.texts],
        asked.options,
        words=asked.words,
        details=asked.details,
        skip=asked.on_error == "skip",
    )
    parts = [_body_or_error(outcome, n) for n, outcome in enumerate(outcomes)]
    return _json(b'{"model":%b,"explanations":%b}' % (json.dumps(backend.load.name).encode(), _array(parts)))


@router.get("/v1/models", response_model=V1Models, tags=["KServe V1"])
async def models(request: Request) -> dict[str, Any]:
    """The names of all models."""
    return {"models": list(request.app.state.service.backends)}


@router.get("/v1/models/{name}", response_model=Ready, responses={404: REFUSALS[404]}, tags=["KServe V1"])
async def model(request: Request, name: str) -> Response:
    """Whether a model can answer; with the status 503 if not."""
    return ready(request.app.state.service, name)


@router.post("/v1/models/{name}:explain", response_model=V1Response, responses=REFUSALS, tags=["KServe V1"])
async def kserve_explain(request: Request, name: str, asked: V1Request) -> Response:
    """Explain instances: texts, pairs as lists of two, or objects with ``text`` and ``text_pair``."""
    service: Service = request.app.state.service
    backend = service.backend(name)
    if (asked.instances is None) == (asked.inputs is None):
        raise Refusal(422, "InputError", "instances is missing, or inputs is there too: give one of them", "instances")
    instances = asked.instances or asked.inputs or []
    outcomes = await service.explain(
        request.scope["about"], backend, [_text(one) for one in instances], asked.parameters
    )
    predictions = _array([outcome.prediction for outcome in outcomes])
    return _json(
        b'{"predictions":%b,"explanations":%b}' % (predictions, _array([outcome.body for outcome in outcomes]))
    )


@router.get("/metrics", response_class=Response, tags=["operation"])
async def metrics(request: Request) -> Response:
    """Counters and histograms for Prometheus."""
    return Response(request.app.state.service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def ready(service: Service, name: str) -> Response:
    """Whether a model can answer, for a program and for a probe."""
    is_ready = service.backend(name).ready_workers > 0
    return JSONResponse({"name": name, "ready": is_ready}, 200 if is_ready else 503)


def _text(one: str | list[str] | Instance) -> Text:
    if isinstance(one, Instance):
        return one.text if one.text_pair is None else (one.text, one.text_pair)
    return one if isinstance(one, str) else (one[0], one[1])


def _body_or_error(outcome: Outcome, number: int) -> bytes:
    if not outcome.error:
        return outcome.body
    return json.dumps({"error": of_outcome(outcome, number).detail()}).encode()


def _array(parts: list[bytes]) -> bytes:
    return b"[%b]" % b",".join(parts)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
