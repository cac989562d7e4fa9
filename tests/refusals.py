"""Errors, read as a user would."""

from __future__ import annotations

import pytest

from decompx_fast.errors import InputError


def message(error, call, *arguments, **options) -> str:
    """The message of the error that a call raises."""
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    text = str(caught.value)
    assert text and "\n" not in text.strip()
    return text


def refuses(call, *arguments, match: tuple[str, ...], error=InputError, **options) -> None:
    text = message(error, call, *arguments, **options)
    for part in match:
        assert part in text, text
