"""Routes below /v2: the Open Inference Protocol, REST."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from .. import __version__
from .messages import Outcome, Text
from .refusals import Refusal, of_validation
from .schemas import Options, Ready, V2Error, V2Input, V2Live, V2Model, V2Ready, V2Request, V2Server
from .service import Service
from .v1 import REFUSALS, ready

router = APIRouter(tags=["Open Inference Protocol"])

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": V2Error, "description": said["description"]} for status, said in REFUSALS.items()
}

#: What is given for texts, each as its type, its shape and its data in rows. Explanations differ in length and number
#: of columns, so scores are one behind the other, row by row, and their shapes beside them.
_OUTPUTS: dict[str, tuple[str, list[int], Callable[[Sequence[Outcome]], list[Any]]]] = {
    "explanation": ("BYTES", [-1], lambda found: [one.body.decode() for one in found]),
    "scores": ("FP64", [-1], lambda found: [score for one in found for score in one.scores]),
    "scores_shape": ("INT64", [-1, 2], lambda found: [size for one in found for size in one.shape]),
    "completeness_error": ("FP64", [-1], lambda found: [one.completeness_error for one in found]),
}


@router.get("/v2", response_model=V2Server)
async def server() -> dict[str, Any]:
    """What this server is."""
    return {"name": "decompx-fast", "version": __version__, "extensions": []}


@router.get("/v2/health/live", response_model=V2Live)
async def live() -> dict[str, Any]:
    """Whether the server is alive; needs no key."""
    return {"live": True}


@router.get("/v2/health/ready", response_model=V2Ready)
async def all_ready(request: Request) -> Response:
    """Whether all models can answer, with the status 503 if not; needs no key."""
    is_ready = request.app.state.service.ready
    return JSONResponse({"live": True, "ready": is_ready}, 200 if is_ready else 503)


@router.get("/v2/models/{name}", response_model=V2Model, responses={404: _ERRORS[404]})
async def model(request: Request, name: str) -> dict[str, Any]:
    """What a model takes and gives. A second input, ``text_pair``, may hold the second texts of pairs."""
    request.app.state.service.backend(name)
    return {
        "name": name,
        "platform": "pytorch_decompx",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": one, "datatype": kind, "shape": shape} for one, (kind, shape, _) in _OUTPUTS.items()],
    }


@router.get("/v2/models/{name}/ready", response_model=Ready, responses={404: _ERRORS[404]})
async def model_ready(request: Request, name: str) -> Response:
    """Whether a model can answer, with the status 503 if not."""
    return ready(request.app.state.service, name)


@router.post("/v2/models/{name}/infer", responses=_ERRORS)
async def infer(request: Request, name: str, asked: V2Request) -> dict[str, Any]:
    """Explain the texts of a tensor: each explanation as JSON, the scores as numbers."""
    service: Service = request.app.state.service
    backend = service.backend(name)
    texts = _texts(asked.inputs)
    wanted = list(_OUTPUTS) if not asked.outputs else [one.name for one in asked.outputs]
    for one in wanted:
        if one not in _OUTPUTS:
            raise _refusal("outputs", f"there is no output of that name: use some of {', '.join(_OUTPUTS)}")
    words = asked.parameters.get("words", False)
    if not isinstance(words, bool):
        raise _refusal("parameters.words", f"parameters.words is {words!r}: use true or false")
    options = _options({key: value for key, value in asked.parameters.items() if key != "words"})
    outcomes = await service.explain(request.scope["about"], backend, texts, options, form="tensors", words=words)
    answer: dict[str, Any] = {"model_name": name}
    if asked.id is not None:
        answer["id"] = asked.id
    return {**answer, "outputs": [_tensor(one, outcomes) for one in wanted]}


def _tensor(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """One output of all texts."""
    kind, shape, read = _OUTPUTS[name]
    data = read(outcomes)
    return {
        "name": name,
        "datatype": kind,
        "shape": [len(data) // 2, 2] if len(shape) == 2 else [len(data)],
        "data": data,
    }


def _texts(inputs: Sequence[V2Input]) -> list[Text]:
    """The texts, or pairs, of one tensor or two."""
    by_name = {one.name: _strings(one) for one in inputs}
    unknown = [name for name in by_name if name not in ("text", "text_pair")]
    if unknown or len(by_name) < len(inputs) or "text" not in by_name:
        raise _refusal("inputs", "inputs has to hold one tensor 'text', and may hold one 'text_pair': name them so")
    if "text_pair" not in by_name:
        return list(by_name["text"])
    if len(by_name["text_pair"]) != len(by_name["text"]):
        raise _refusal("inputs", "text and text_pair differ in their number of texts: give one of each for a pair")
    return list(zip(by_name["text"], by_name["text_pair"], strict=True))


def _strings(tensor: V2Input) -> list[str]:
    """The elements of a tensor of texts, given flat or as nested as its shape says."""
    if tensor.datatype != "BYTES":
        raise _refusal(f"inputs.{tensor.name}", f"inputs.{tensor.name} has another datatype than BYTES, that of texts")
    count = 1
    for size in tensor.shape:
        count *= size
    flat, level = list(tensor.data), 0
    while any(isinstance(one, list) for one in flat) and level < len(tensor.shape):
        flat = [inner for one in flat for inner in (one if isinstance(one, list) else [one])]
        level += 1
    if not all(isinstance(one, str) and one for one in flat) or not flat:
        raise _refusal(f"inputs.{tensor.name}", f"inputs.{tensor.name} has to hold texts that are not empty")
    if len(flat) != count:
        raise _refusal(
            f"inputs.{tensor.name}", f"inputs.{tensor.name} has {len(flat):,} elements, and its shape says {count:,}"
        )
    return flat


def _options(parameters: dict[str, Any]) -> Options:
    try:
        return Options(**parameters)
    except ValidationError as error:
        problems = [{**problem, "loc": ("parameters", *problem["loc"])} for problem in error.errors()]
        raise of_validation(problems) from None


def _refusal(argument: str, message: str) -> Refusal:
    return Refusal(422, "InputError", message, argument)
