"""The user's own names of inputs."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InputError, shown
from ..result.failure import Failure
from .encoded import Encoded


def with_ids(inputs: Iterator[Encoded | Failure], ids: Any) -> Iterator[Encoded | Failure]:
    """Each input with the user's name for it.

    Raises:
        InputError: for names that are no strings or whole numbers, or that are fewer or more than the inputs.
    """
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise InputError(f"ids={shown(ids)}: give a list with a name for each input")
    return _named_inputs(inputs, iter(ids))


def _named_inputs(inputs: Iterator[Encoded | Failure], ids: Iterator[Any]) -> Iterator[Encoded | Failure]:
    for n, one in enumerate(inputs):
        try:
            name = next(ids)
        except StopIteration:
            raise InputError(f"ids holds {n} names, and there are more inputs: give one for each") from None
        if not isinstance(name, str):
            try:
                name = operator.index(name)
            except TypeError:
                raise InputError(f"ids holds {shown(name)} for input {n}: use strings or whole numbers") from None
        yield one if isinstance(one, Failure) else replace(one, about={"id": name, **one.about})
    for _ in ids:
        raise InputError("ids holds more names than there are inputs: give one for each")


def name_inputs(message: str, names: Sequence[str], *, all_of_them: bool = False) -> str:
    """A message about several inputs, which it counts from 0, with an input's own name; where there is one input, any
    number is its own.

    Args:
        message: an error begins with an input, and may cite its text, where the same words are the text's own.
        names: of the inputs.
        all_of_them: whether more than the first input that it names is meant.
    """

    def name(found: re.Match[str]) -> str:
        number = 0 if len(names) == 1 else int(found[1])
        return names[number] if number < len(names) else found[0]

    return re.sub(r"\binput (\d+)\b", name, message, count=0 if all_of_them else 1)
