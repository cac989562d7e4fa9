"""What stands in the place of an explanation where an input cannot be explained and the run shall go on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Failure:
    """An input that could not be explained.

    Attributes:
        input: its position among the inputs, counted from 0.
        error: the message.
        error_type: the name of the error's class.
    """

    input: int
    error: str
    error_type: str

    @property
    def ok(self) -> bool:
        """``False``; that of an explanation is ``True``."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """The three attributes by name."""
        return dataclasses.asdict(self)
