"""What stands in the place of an explanation where an input could not be explained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch

from ..errors import BackendError, DecompXError, ModelLoadError
from ..optional import MissingPackageError

ResultT = TypeVar("ResultT")

#: Errors that one input can cause; they do not end a run with ``on_error="skip"``.
OF_AN_INPUT = (DecompXError, MemoryError, torch.OutOfMemoryError)

#: Errors among them that every other input would meet too.
OF_THE_SETTING = (BackendError, ModelLoadError, MissingPackageError)


@dataclass(frozen=True)
class Failure:
    """An input that could not be explained, in the place of its explanation.

    Args:
        input: which one, counted from 0.
        error: the message.
        error_type: name of the error's class.
    """

    input: int
    error: str
    error_type: str

    @property
    def ok(self) -> bool:
        """False: this is no explanation."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """The three fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def of(cls, number: int, error: BaseException) -> Failure:
        """What ``error`` says about the input ``number``.

        Raises:
            BaseException: ``error`` itself, if another input would meet it too.
        """
        if isinstance(error, OF_THE_SETTING):
            raise error
        return cls(number, str(error) or type(error).__name__, type(error).__name__)


def attempt(make: Callable[[], ResultT], number: int, *, skip: bool) -> ResultT | Failure:
    """What is made of the input ``number``; with ``skip`` a failure in its place if the input is what is wrong."""
    try:
        return make()
    except OF_AN_INPUT as error:
        if not skip:
            raise
        return Failure.of(number, error)
