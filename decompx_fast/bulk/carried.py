"""What a row holds besides its text, as JSON: whatever types a table or a program has put there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def as_json(values: Mapping[Any, Any]) -> str:
    """A JSON object, which any reader of JSON and of UTF-8 takes.

    Numbers that JSON has no word for are the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``; arrays are lists;
    keys, dates, bytes and the like are what ``str`` makes of them.

    Raises:
        RecursionError: for what is nested too deeply, or within itself.
    """
    try:
        return _dumped(values)
    except (TypeError, ValueError):  # a key that is no string; a number that is none, or a circle
        return _dumped(_cleaned(values))


def writable(text: str) -> str:
    """A text that UTF-8 can hold: halves of surrogate pairs, as in names of files that are no UTF-8, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def is_writable(text: str) -> bool:
    """Whether UTF-8 can hold a text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _dumped(values: Any) -> str:
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, default=_plain)
    return text if is_writable(text) else json.dumps(values, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    """Numbers and arrays of NumPy and the like as Python's, and all else as text."""
    return _cleaned(value.tolist()) if hasattr(value, "tolist") else str(value)


def _cleaned(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _cleaned(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
