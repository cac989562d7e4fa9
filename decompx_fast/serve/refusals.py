"""Why a request has no answer: one form of JSON for all errors, with what to do and without how it came about."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import shown
from .messages import Outcome
from .schemas import Options

#: Errors of a text or of the call, which another request can avoid; all others are the service's.
_OF_THE_REQUEST = ("InputError", "OptionError", "PlanError", "NumericalError")

#: Memory that is short now may be there later.
_FOR_NOW = ("MemoryError", "OutOfMemoryError")


class Refusal(Exception):
    """A request that is not answered as it asks.

    Args:
        status: of HTTP.
        type: of the error, for programs.
        message: for people: what it got, what is allowed, what to do.
        argument: which part of the request.
        headers: of the answer.
    """

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        argument: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.type, self.message, self.argument = status, type, message, argument
        self.headers = dict(headers or {})

    def detail(self) -> dict[str, Any]:
        """As in an answer: :class:`decompx_fast.serve.schemas.ErrorDetail`."""
        return {"type": self.type, "message": self.message, "argument": self.argument}

    def body(self, path: str) -> bytes:
        """The answer's body; below ``/v2`` it has the form of that protocol, a message alone."""
        error: Any = self.message if path == "/v2" or path.startswith("/v2/") else self.detail()
        return json.dumps({"error": error}).encode()


def later(status: int, type: str, message: str, seconds: float) -> Refusal:
    """What will be answered if it is asked again, in so many seconds."""
    whole = str(max(1, min(60, math.ceil(seconds))))
    return Refusal(status, type, f"{message}: ask again in {whole} s", headers={"Retry-After": whole})


def of_outcome(outcome: Outcome, number: int) -> Refusal:
    """Of a text that could not be explained, the ``number``-th of its request."""
    if outcome.error_type in _OF_THE_REQUEST:
        first = re.match(r"\w+", outcome.error)
        is_option = first is not None and first[0] in Options.model_fields
        of_the_call = "options" if outcome.error_type == "OptionError" else f"texts.{number}"
        argument = f"options.{first[0]}" if first is not None and is_option else of_the_call
        return Refusal(422, outcome.error_type, outcome.error, argument)
    if outcome.error_type in _FOR_NOW:
        return later(503, "NotEnoughMemory", "there is not enough memory for this text now", 5)
    if outcome.error_type == "InternalError":
        return Refusal(500, "InternalError", "the text could not be explained: this is a fault of the service")
    return Refusal(500, outcome.error_type, outcome.error)


def of_validation(problems: Sequence[Mapping[str, Any]]) -> Refusal:
    """Of a body that does not have the form that was asked for: the first problem, by its place. Where several forms
    are allowed there is one for each, and what is said of the form that was meant is more than that it is another."""
    problem = next((one for one in problems if not str(one["type"]).endswith("_type")), problems[0])
    if problem["type"] == "json_invalid":
        return Refusal(422, "InputError", "the body is no JSON: send one JSON object", "body")
    place = [str(part) for part in problem["loc"] if part != "body"]
    # Where several forms are allowed, pydantic adds the name of the one that it has tried.
    argument = ".".join(part for part in place if re.fullmatch(r"[a-z_0-9]+", part)) or "body"
    if problem["type"] == "missing":
        got = "is missing"
    elif problem["type"] == "extra_forbidden":
        return Refusal(422, "OptionError", f"{argument} does not exist: leave it out", argument)
    else:
        got = f"is {shown(problem.get('input'))}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return Refusal(422, "InputError", f"{argument} {got}: {_lower(str(problem['msg']))}{more}", argument)


def _lower(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
