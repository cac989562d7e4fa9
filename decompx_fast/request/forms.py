"""The forms in which inputs come: one or several, texts or token ids, and what is neither."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, shown

ACCEPTED = "give a text, a pair of texts as a tuple, token ids, a list of these, or a tokenizer's encoding"

#: Columns that texts are usually in, for a hint.
_TEXT_COLUMNS = ("text", "sentence", "review", "content", "document")


def is_single(item: Any) -> bool:
    """Whether this is one input rather than a list of them."""
    return isinstance(item, str) or is_pair(item) or is_ids(item)


def is_pair(item: Any) -> bool:
    """Whether this is a pair of texts."""
    return isinstance(item, tuple) and len(item) == 2 and all(isinstance(text, str) for text in item)


def is_split(item: Any) -> bool:
    """Whether this is a list of the words of one text, or a tuple of two such lists."""
    return _is_words(item) or (isinstance(item, tuple) and len(item) == 2 and all(map(_is_words, item)))


def _is_words(item: Any) -> bool:
    return isinstance(item, list) and len(item) > 0 and all(isinstance(word, str) for word in item)


def is_ids(item: Any) -> bool:
    """Whether this is one sequence of token ids."""
    if hasattr(item, "dtype"):  # a tensor or an array
        return getattr(item, "ndim", None) == 1 and is_whole(item)
    return (
        isinstance(item, Sequence)
        and not isinstance(item, (str, bytes))
        and len(item) > 0
        and all(hasattr(i, "__index__") and not hasattr(i, "__len__") and not isinstance(i, bool) for i in item)
    )


def is_whole(numbers: Any) -> bool:
    """Whether a tensor or an array is of whole numbers, in any size and byte order."""
    if isinstance(numbers, Tensor):
        return not (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool)
    return getattr(numbers.dtype, "kind", "") in ("i", "u")


def whole_numbers(row: Any, where: str) -> Tensor:
    """``[i]`` int64 on the CPU, whatever the default device, from a tensor, an array or a list.

    Raises:
        InputError: for what no int64 holds.
    """
    try:
        return as_tensor(row).to(torch.int64)
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{where} holds what can be no token id ({error})") from error


def as_tensor(row: Any) -> Tensor:
    """A tensor on the CPU; arrays may be reversed, unsigned, or of the other byte order, which torch does not take."""
    kind = getattr(getattr(row, "dtype", None), "kind", "")
    if isinstance(row, Tensor) or not hasattr(row, "astype") or kind not in ("i", "u", "f"):
        return torch.as_tensor(row, device="cpu")
    if kind == "u" and row.size and int(row.max()) >= 2**63:
        raise OverflowError(f"{int(row.max())} of {row.dtype}")
    dtype = row.dtype.newbyteorder("=") if kind == "f" else "int64"
    return torch.as_tensor(row.astype(dtype, order="C"), device="cpu")


def refuse_tables(items: Any) -> None:
    """Refuse a table, which would be read as its column names, and its columns of numbers, which would be read as ids.

    Raises:
        InputError: with how to give the texts.
    """
    kind = type(items).__name__
    columns = _column_names(items)
    if columns is not None:
        listed = ", ".join(columns[:8]) + (", ..." if len(columns) > 8 else "")
        name = "df" if hasattr(items, "dtypes") else "data"
        raise InputError(
            f"a {kind} is a table (columns: {listed or 'none'}): give the column of texts, as "
            f'{name}["{_text_column(columns) or "text"}"]'
        )
    dtype = getattr(items, "dtype", None)
    if hasattr(items, "to_list") and getattr(dtype, "kind", "O") in "iufbcmM":
        raise InputError(
            f"a {kind} of {dtype} holds no texts: give the column of texts, or .to_list() for the token ids of one text"
        )


def several(items: Any) -> Iterable[Any]:
    """What to go through for a list of inputs.

    Raises:
        InputError: for what is no list of inputs, or whose order nobody knows.
    """
    if isinstance(items, (bytes, bytearray)) or not isinstance(items, Iterable) or getattr(items, "ndim", 1) == 0:
        raise InputError(f"cannot explain a {type(items).__name__}: {ACCEPTED}")
    if isinstance(items, (set, frozenset)):
        raise InputError(f"a {type(items).__name__} has no order, so results could not be told apart: give a list")
    if isinstance(items, tuple) and items and all(isinstance(text, str) for text in items):
        raise InputError(f"a tuple is a pair of texts, but this one holds {len(items)}: use a list for several texts")
    if isinstance(items, Sized) and len(items) == 0:
        raise InputError(f"the list of texts is empty: {ACCEPTED}")
    if hasattr(items, "to_pylist"):  # an Arrow array, whose items are wrapped
        return (item.as_py() for item in items)
    return items


def refusal(item: Any, where: str) -> InputError:
    """Why one item of a list cannot be explained."""
    dtype = getattr(item, "dtype", None)
    kind = "" if dtype is None else f" of {dtype}"
    hint = ""
    if isinstance(item, Mapping):
        column = _text_column([name for name, value in item.items() if isinstance(value, str)])
        hint = f"give its text, as row[{column!r}]; in general, " if column is not None else ""
    return InputError(f"{where} is {shown(item)}{kind}: {hint}{ACCEPTED}")


def no_ids(encoding: Mapping[Any, Any]) -> InputError:
    """Why a mapping without ``input_ids`` is no encoding."""
    names = ", ".join(map(str, encoding)) or "nothing"
    parts = {name: part for name, part in encoding.items() if hasattr(part, "column_names")}
    if parts:
        return InputError(f"this holds several tables ({names}): give the texts of one, as {_of_first(parts)}")
    texts = [name for name, value in encoding.items() if _is_texts(value)]
    hint = f": to explain its texts, give them alone, as data[{_text_column(texts)!r}]" if texts else ""
    return InputError(f"the encoding has no 'input_ids', only {names}{hint}")


def _of_first(tables: Mapping[Any, Any]) -> str:
    name, table = next(iter(tables.items()))
    return f"data[{name!r}][{_text_column(_column_names(table) or ['text'])!r}]"


def _is_texts(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, (list, tuple)) and bool(value) and all(isinstance(text, str) for text in value)
    )


def _column_names(items: Any) -> list[Any] | None:
    """The columns of a DataFrame, an Arrow table or a dataset; ``None`` for what is no table."""
    names = getattr(items, "column_names", None)
    if names is None and hasattr(items, "dtypes"):
        names = getattr(items, "columns", None)
    if names is None or callable(names) or isinstance(names, str):
        return None
    return [name if isinstance(name, str) else str(name) for name in names]


def _text_column(names: Sequence[Any]) -> Any:
    """The column that most probably holds texts: by a usual name, else the first; ``None`` without any."""
    return next((name for name in _TEXT_COLUMNS if name in names), names[0] if names else None)


def n_axes(value: Any) -> int:
    """1 for a row, 2 for rows."""
    return value.ndim if hasattr(value, "ndim") else 2 if len(value) and hasattr(value[0], "__len__") else 1


def rows(value: Any, name: str) -> list[Tensor]:
    """The rows of one part of an encoding: a tensor, an array, or lists that may be ragged; a single row is one.

    Raises:
        InputError: for what is no rows of whole numbers.
    """
    try:
        parts = [value] if n_axes(value) == 1 else list(value)
        tensors = [as_tensor(row) for row in parts]
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError, OverflowError) as error:
        raise InputError(f"{name} cannot be read as rows of whole numbers ({error})") from error
    for row in tensors:
        empty = row.numel() == 0  # without a number, a list has no dtype of its own
        whole = is_whole(row) or (name in ("attention_mask", "special_tokens_mask") and row.dtype == torch.bool)
        if row.ndim != 1 or not (whole or empty):
            raise InputError(f"{name} must be [i] or [b, i] whole numbers, got {row.dtype} rows of {row.ndim} axes")
    return [row.to(torch.int64) for row in tensors]


def real_tokens(mask: Tensor | None, length: int, where: str) -> slice:
    """The range that the attention mask keeps: padding on either side is dropped."""
    if mask is None:
        return slice(0, length)
    kept = torch.nonzero(mask).flatten()
    if len(kept) == 0:
        raise InputError(f"the attention_mask of {where} is all zero: there is nothing to explain")
    first, last = int(kept[0]), int(kept[-1])
    if len(kept) != last - first + 1:
        raise InputError(
            f"the attention_mask of {where} hides tokens between real ones: only padding at either end can be dropped, "
            "so drop those tokens first"
        )
    return slice(first, last + 1)
