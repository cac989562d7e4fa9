"""The errors of the package. Each message names the argument, what it got, what is allowed and what to do."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType


class DecompXError(Exception):
    """Base of every error that this package raises on purpose."""


class InputError(DecompXError, ValueError):
    """An argument, a text, a tensor or a file that cannot be used as given."""


class OptionError(InputError):
    """An option, or a combination of options, that does not exist."""


class BackendError(DecompXError, RuntimeError):
    """A backend, device or engine that was named and cannot be used here, with the reason."""


class PlanError(DecompXError, RuntimeError):
    """A request that does not fit in the memory it may use, with the numbers and the ways out."""


class ModelLoadError(DecompXError):
    """A model that could not be found or loaded."""


class UnsupportedModelError(DecompXError):
    """A model that cannot be explained exactly; names the architecture, module or layer, and the gap if measured."""


class NumericalError(DecompXError, ArithmeticError):
    """NaN or infinity in a model's weights, hidden states or logits, or in what was computed from them."""


class OutputError(DecompXError, OSError):
    """A result that could not be written."""


def shown(value: object) -> str:
    """How a message shows what it got: on one line, and not all of it."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an object's own, or an integer of more digits than Python writes
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def counted(number: int, thing: str) -> str:
    """``1 input``, ``2 inputs``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


class PrecisionWarning(UserWarning):
    """Numbers that are probably wrong by more than rounding, or that are about to leave a dtype's range."""


_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _between(path: str) -> bool:
    """Whether code stands between the user's and ours: our own, and what takes us out of a compiled graph."""
    return path.startswith(_PACKAGE) or os.path.join("torch", "_dynamo", "") in path


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is not of this package."""
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and _between(os.path.abspath(frame.f_code.co_filename)):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
