"""What is written on a command line for pairs of texts, sources and places."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click


def paired(texts: Sequence[str], seconds: Sequence[str]) -> tuple[str | tuple[str, str], ...]:
    """Each text with its second one, or a single text with each of several.

    Raises:
        UsageError: if some would have none.
    """
    if not seconds:
        return tuple(texts)
    if len(texts) == 1:
        return tuple((texts[0], second) for second in seconds)
    if len(texts) != len(seconds):
        raise click.UsageError(
            f"there are {len(texts)} TEXTs and {len(seconds)} times --pair: give one for each TEXT, or one TEXT; of "
            "the rows of a file, name the column by --pair-column"
        )
    return tuple(zip(texts, seconds, strict=True))


def blocks(written: str) -> str | float | tuple[int, int]:
    """What a source is, as it is written on a command line: a unit, into how many blocks a picture is divided, or
    seconds of a sound."""
    found = re.fullmatch(r"(\d+)x(\d+)", written)
    if found is not None:
        return int(found[1]), int(found[2])
    return float(written[:-1]) if re.fullmatch(r"\d*\.?\d+s", written) else written


def places(written: Sequence[str]) -> list[Any]:
    """Places as they are written on a command line, for ``at=``; what looks like none is a string of the text."""
    return [_place(one) for one in written]


def _place(written: str) -> Any:
    from ..request.tasks.places import Word

    kind, *numbers = written.split(":")
    if kind == "word" and len(numbers) in (1, 2) and all(number.isdecimal() for number in numbers):
        text, index = ([0, *map(int, numbers)])[-2:]
        return Word(index, text=text)
    parts = [kind, *numbers]
    if all(re.fullmatch(r"\d+", part) for part in parts) and len(parts) in (2, 3):
        return tuple(map(int, parts))
    return int(written) if re.fullmatch(r"-?\d+", written) else written
