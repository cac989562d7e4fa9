"""Labels as people write them, and the classes of a model that they mean."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError, OptionError, shown, warn_user

Labelled = tuple[str, Any]  # where a label is, for messages, and the label

_NUMBER = re.compile(r"-?[0-9]+(\.0*)?")


def resolve_labels(
    found: Sequence[Labelled], classes: Sequence[str], label_map: Mapping[Any, str | int] | None = None
) -> list[int]:
    """The class of each label, by one reading for the whole column, the same for every format.

    A label is the name of a class, in any case. Only where none of them is, and all are numbers from 0 to the number of
    classes less 1, are they indices; and not where a name holds one of these numbers and stands at another index, as
    "1 star" at 0.

    Args:
        found: the labels with their places.
        classes: the names of the classes, in their order.
        label_map: classes, by name or index, for labels; then every label must be in it.

    Raises:
        InputError: for a label that is no class, with its place.
        OptionError: for a map to a class that does not exist.
    """
    if label_map is not None:
        return _by_map(found, classes, label_map)
    for place, value in found:
        written = _written(value)
        if written.strip().casefold() in ("", "nan") and written not in classes:  # a table has NaN for a gap
            raise InputError(f"{place} has no label: fill it, drop the row, or drop the column to go without labels")
    names = {name: index for index, name in enumerate(classes)}
    by_name = [names.get(_written(value)) for _, value in found]
    folded = _folded(classes)
    forgiven = [
        folded.get(_fold(value)) if index is None else index for index, (_, value) in zip(by_name, found, strict=True)
    ]
    if any(index is not None for index in forgiven):
        _warn_of_forgiven(found, by_name, forgiven, classes)
        read = forgiven
    else:
        read = [_index(value, len(classes)) for _, value in found]
        if all(index is not None for index in read):
            _refuse_ambiguous(found, read, classes)
    for index, (place, value) in zip(read, found, strict=True):
        if index is None:
            raise InputError(f"{place} has the label {shown(value)}{_advice(value, classes)}")
    return [index for index in read if index is not None]


def _by_map(found: Sequence[Labelled], classes: Sequence[str], label_map: Mapping[Any, str | int]) -> list[int]:
    index_of: dict[str, int] = {}
    for label, target in label_map.items():
        index = classes.index(target) if target in classes else _index(target, len(classes))
        if index is None:
            raise OptionError(
                f"label_map has the class {shown(target)} for {shown(label)}, and the classes of the model are "
                f"{_listed(classes)}: give one of these names, or an index from 0 to {len(classes) - 1}"
            )
        index_of[_written(label)] = index
    folded = _folded(list(index_of))
    indices = list(index_of.values())
    read = []
    for place, value in found:
        index = index_of.get(_written(value))
        if index is None and _NUMBER.fullmatch(_written(value)) and (at := folded.get(_fold(value))) is not None:
            index = indices[at]  # 1 is 1.0: a table with a gap in its column makes the one the other
        if index is None:
            raise InputError(
                f"{place} has the label {shown(value)}, and label_map has only {_listed(list(index_of))}: add it"
            )
        read.append(index)
    return read


def _written(value: Any) -> str:
    """A label as a text file would have it; one that is missing is like no name."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def _fold(value: Any) -> str:
    """The same for labels that differ in case, in spaces round them, or as 1 and 1.0."""
    text = _written(value).strip().casefold()
    return text.partition(".")[0] if _NUMBER.fullmatch(text) else text


def _folded(classes: Sequence[str]) -> dict[str, int]:
    """Indices by folded names, without those that would mean two classes."""
    keys = [_fold(name) for name in classes]
    return {key: index for index, key in enumerate(keys) if key and keys.count(key) == 1}


def _index(value: Any, count: int) -> int | None:
    """The index that a number is, whether it is written as 1, "1" or 1.0."""
    text = _fold(value)
    index = int(text) if not isinstance(value, bool) and text.isascii() and text.isdigit() else -1
    return index if 0 <= index < count else None


def _warn_of_forgiven(
    found: Sequence[Labelled], exact: Sequence[int | None], forgiven: Sequence[int | None], classes: Sequence[str]
) -> None:
    read = {
        _written(value): classes[index]
        for (_, value), known, index in zip(found, exact, forgiven, strict=True)
        if known is None and index is not None
    }
    if read:
        pairs = ", ".join(f"{label!r} as {name!r}" for label, name in read.items())
        warn_user(f"labels are read as the classes that they resemble: {pairs}")


def _refuse_ambiguous(found: Sequence[Labelled], read: Sequence[int | None], classes: Sequence[str]) -> None:
    """Numbers that are in the names of other classes than those at that index."""
    numbers = [{int(number) for number in re.findall(r"[0-9]+", name)} for name in classes]
    for (place, value), index in zip(found, read, strict=True):
        others = [name for at, name in enumerate(classes) if index in numbers[at] and at != index]
        if index is not None and others and index not in numbers[index]:
            raise InputError(
                f"{place} has the label {shown(value)}, which may mean the class {others[0]!r}, or that with the "
                f"index {index}, {classes[index]!r}: say by label_map which class each label is"
            )


def _advice(value: Any, classes: Sequence[str]) -> str:
    near = difflib.get_close_matches(_fold(value), [_fold(name) for name in classes], n=1)
    name = next((name for name in classes if near and _fold(name) == near[0]), None)
    hint = f" (did you mean {name!r}?)" if name is not None else ""
    return (
        f"{hint}, and the classes of the model are {_listed(classes)}: give all labels as these names, or all as an "
        f"index from 0 to {len(classes) - 1}, or say by label_map which class each is"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
