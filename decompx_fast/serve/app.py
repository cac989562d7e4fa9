"""The application: its routes, the guard before them, and what is started and ended with it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from .. import __version__
from ..errors import DecompXError
from . import open_inference, page, v1
from .guard import Guard
from .logs import log
from .refusals import Refusal, of_validation
from .service import Service
from .settings import Settings
from .worker import work

_ABOUT = """What each token contributed to a model's answer, by DecompX: the scores add up to the model's own number.

Requests to `/v1/explain` are the service's own; `/v1/models` speaks KServe's protocol V1, and `/v2` the Open Inference
Protocol."""


def _say(error: DecompXError) -> None:
    log("model_failed", level=logging.CRITICAL, error=type(error).__name__, message=str(error))


def create_app(
    settings: Settings, *, failed: Callable[[DecompXError], object] = _say, work: Callable[..., object] = work
) -> Guard:
    """The service as an ASGI application, for any server of these; its lifespan starts and ends the processes.

    Args:
        settings: of the service.
        failed: is told why a model cannot be loaded.
        work: what a process does; see :func:`decompx_fast.serve.worker.work`.
    """
    service = Service(settings, failed, work)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        for backend in service.backends.values():
            backend.start()
        try:
            yield
        finally:
            for backend in service.backends.values():
                await anyio.to_thread.run_sync(backend.stop)

    # No pages of documentation: theirs load scripts from other sites.
    app = FastAPI(
        title="decompx-fast",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        lifespan=life,
        redirect_slashes=False,
    )
    app.state.service = service
    for router in (v1.router, open_inference.router, page.router):
        app.include_router(router)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(Refusal, _refused)
    return Guard(app, settings, service.metrics)


def _answer(request: Request, refusal: Refusal) -> Response:
    return Response(refusal.body(request.url.path), refusal.status, refusal.headers, media_type="application/json")


async def _refused(request: Request, error: Any) -> Response:
    return _answer(request, error)


async def _not_valid(request: Request, error: Any) -> Response:
    return _answer(request, of_validation(error.errors()))


async def _no_route(request: Request, error: Any) -> Response:
    if error.status_code == 404:
        return _answer(request, Refusal(404, "NotFound", "there is no such path: see /openapi.json", "path"))
    if error.status_code == 405:
        allow = error.headers.get("Allow", "") if error.headers else ""
        message = f"this path does not take that method: use {allow or 'another'}"
        return _answer(request, Refusal(405, "MethodNotAllowed", message, "method", error.headers))
    if error.status_code == 400:
        return _answer(request, Refusal(422, "InputError", "the body cannot be read: send one JSON object", "body"))
    return _answer(request, Refusal(error.status_code, "HTTPError", str(error.detail)))
