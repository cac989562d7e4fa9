"""Reading what the user wants explained: texts, pairs, token ids or a prepared encoding, each without padding."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import InputError, shown
from .words import Span

#: What a model's forward may be given; everything has one entry per token.
MODEL_INPUTS = ("input_ids", "token_type_ids", "position_ids")

#: What an encoding may also hold: read here, or of no effect on the model.
OTHER_KEYS = (
    "attention_mask",
    "special_tokens_mask",
    "offset_mapping",
    "length",
    "labels",
    "overflow_to_sample_mapping",
)


#: A fast tokenizer may not be called while another thread changes its truncation, which every call may do.
_tokenizing = threading.Lock()


@dataclass(frozen=True)
class Encoded:
    """One input as the model takes it, without padding.

    Attributes:
        inputs: ``[i]`` int64 each, on the CPU; ``input_ids`` among them.
        tokens: how the tokenizer writes them.
        spans: ``(segment, start, end)`` into ``texts``, or ``None``.
        special: whether the tokenizer added the token.
        texts: the text, or the pair; empty if it is not known.
    """

    inputs: Mapping[str, Tensor]
    tokens: tuple[str, ...]
    spans: tuple[Span | None, ...]
    special: tuple[bool, ...]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)


class Reader:
    """Turns inputs into :class:`Encoded`.

    Args:
        tokenizer: a Hugging Face tokenizer, or ``None`` if only token ids and encodings will be given.
        max_positions: how many tokens the model has positions for; ``None`` for any number.
        sizes: of each of :data:`MODEL_INPUTS`, the first number that the model has no embedding for.
        truncate: cut longer texts, with a warning, instead of refusing them.
        device: the model's; tensors that the user prepared must be there, everything else is moved.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_positions: int | None,
        *,
        sizes: Mapping[str, int] | None = None,
        truncate: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_positions = max_positions
        self.sizes = sizes or {}
        self.truncate = truncate
        self.device = device

    def read(self, items: Any) -> tuple[Iterator[Encoded], bool]:
        """All of ``items``, lazily, and whether it was a single input.

        Raises:
            InputError: for what cannot be read, naming which one it is.
        """
        if isinstance(items, Mapping):
            rows = self._read_encoding(items)
            return iter(rows), _n_axes(items["input_ids"]) == 1
        if is_single(items):
            return iter([self.read_one(items, "the input")]), True
        if isinstance(items, (bytes, bytearray)) or not isinstance(items, Iterable):
            raise InputError(f"cannot explain a {type(items).__name__}: {ACCEPTED}")
        if isinstance(items, tuple) and items and all(isinstance(text, str) for text in items):
            raise InputError(
                f"a tuple is a pair of texts, but this one holds {len(items)}: use a list for several texts"
            )
        if isinstance(items, Sequence) and len(items) == 0:
            raise InputError(f"the list of texts is empty: {ACCEPTED}")
        return (self.read_one(item, f"input {n}") for n, item in enumerate(items)), False

    def read_one(self, item: Any, where: str) -> Encoded:
        """One text, pair, or sequence of token ids."""
        if isinstance(item, str):
            return self._read_text((item,), where)
        if _is_pair(item):
            return self._read_text(tuple(item), where)
        if _is_ids(item):
            self._check_device(item, where)
            return self._finish({"input_ids": _whole_numbers(item)}, where)
        raise InputError(f"{where} is {shown(item)}: {ACCEPTED}")

    def _read_text(self, texts: tuple[str, ...], where: str) -> Encoded:
        if self.tokenizer is None:
            raise InputError("texts need a tokenizer: use DecompX(model, tokenizer), or give token ids")
        for text in texts:
            if not text.strip():
                raise InputError(f"{where} is an empty text: there is nothing to explain")
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise InputError(f"{where} is not valid Unicode ({error.reason}): clean the text first") from error
        encoding = self._tokenize(texts)
        length = len(encoding["input_ids"])
        if self.max_positions is not None and length > self.max_positions:
            if not self.truncate:
                raise self._too_long(length, where)
            warnings.warn(
                f"{where} has {length} tokens and was cut to the model's {self.max_positions} positions",
                stacklevel=2,
            )
            encoding = self._tokenize(texts, truncation=True, max_length=self.max_positions)
        inputs = {name: _whole_numbers(encoding[name]) for name in MODEL_INPUTS if name in encoding}
        special = tuple(bool(flag) for flag in encoding["special_tokens_mask"])
        spans = _spans(encoding, special, texts) if "offset_mapping" in encoding else None
        return self._finish(inputs, where, special=special, spans=spans, texts=texts)

    def _tokenize(self, texts: tuple[str, ...], *, truncation: bool = False, max_length: int | None = None) -> Any:
        with _tokenizing:
            return self.tokenizer(
                *texts,
                truncation=truncation,
                max_length=max_length,
                padding=False,
                return_special_tokens_mask=True,
                return_offsets_mapping=getattr(self.tokenizer, "is_fast", False),
                verbose=False,
            )

    def _read_encoding(self, encoding: Any) -> list[Encoded]:
        data = dict(encoding)
        for name in data:
            if name not in MODEL_INPUTS and name not in OTHER_KEYS:
                raise InputError(
                    f"the encoding holds {name!r}, which is not supported: give {', '.join(MODEL_INPUTS)} and "
                    "attention_mask"
                )
        if "input_ids" not in data:
            raise InputError(f"the encoding has no 'input_ids', only {', '.join(data) or 'nothing'}")
        wanted = [name for name in (*MODEL_INPUTS, "attention_mask") if name in data]
        for name in wanted:
            self._check_device(data[name], name)
        rows = {name: _rows(data[name], name) for name in wanted}
        count = len(rows["input_ids"])
        if count == 0:
            raise InputError("the encoding is empty: it has no rows")
        encodings = getattr(encoding, "encodings", None)
        if encodings is not None and len(encodings) != count:
            encodings = None
        out = []
        for n in range(count):
            where = f"row {n} of the encoding"
            row = {name: values[n] for name, values in rows.items() if len(values) == count}
            if len(row) != len(rows) or len({tuple(value.shape) for value in row.values()}) != 1:
                shapes = {name: [list(v.shape) for v in values] for name, values in rows.items()}
                raise InputError(f"the parts of the encoding differ in shape: {shapes}")
            keep = _real_tokens(row.pop("attention_mask", None), len(row["input_ids"]), where)
            special = None
            if encodings is not None and encodings[n].ids == row["input_ids"].tolist():
                special = tuple(bool(flag) for flag in encodings[n].special_tokens_mask[keep])
            out.append(self._finish({name: value[keep] for name, value in row.items()}, where, special=special))
        return out

    def _finish(
        self,
        inputs: Mapping[str, Tensor],
        where: str,
        *,
        special: tuple[bool, ...] | None = None,
        spans: tuple[Span | None, ...] | None = None,
        texts: tuple[str, ...] = (),
    ) -> Encoded:
        ids = inputs["input_ids"]
        if len(ids) == 0:
            raise InputError(f"{where} has no tokens: there is nothing to explain")
        if self.max_positions is not None and len(ids) > self.max_positions:
            raise self._too_long(len(ids), where)
        for name, values in inputs.items():
            self._check_size(name, values, where)
        if special is None:
            known = set(getattr(self.tokenizer, "all_special_ids", ()))
            special = tuple(int(i) in known for i in ids.tolist())
        if all(special):
            raise InputError(f"{where} holds only special tokens: there is nothing to explain")
        if self.tokenizer is None:
            tokens = tuple(str(i) for i in ids.tolist())
        else:
            tokens = tuple(str(token) for token in self.tokenizer.convert_ids_to_tokens(ids.tolist()))
        return Encoded(inputs, tokens, spans or (None,) * len(ids), special, texts if spans else ())

    def _check_size(self, name: str, values: Tensor, where: str) -> None:
        size = self.sizes.get(name)
        wrong = values[(values < 0) | (values >= size)] if size is not None else values[values < 0]
        if len(wrong):
            allowed = "numbers from 0" if size is None else f"embeddings for 0 to {size - 1}"
            hint = ": is this the model's own tokenizer?" if name == "input_ids" else ""
            raise InputError(f"{where} holds {int(wrong[0])} in {name}, and the model has {allowed}{hint}")

    def _check_device(self, value: Any, name: str) -> None:
        if isinstance(value, Tensor) and self.device is not None and value.device != self.device:
            raise InputError(
                f"{name} is on {value.device} and the model on {self.device}: move one of them, for example with "
                f".to({str(self.device)!r})"
            )

    def _too_long(self, length: int, where: str) -> InputError:
        return InputError(
            f"{where} has {length} tokens, and the model has positions for {self.max_positions}: pass truncate=True to "
            "cut it, split the text, or use a model with more positions"
        )


ACCEPTED = "give a text, a pair of texts as a tuple, token ids, a list of these, or a tokenizer's encoding"


def is_single(item: Any) -> bool:
    """Whether this is one input rather than a list of them."""
    return isinstance(item, str) or _is_pair(item) or _is_ids(item)


def _is_pair(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and all(isinstance(text, str) for text in item)


def _is_ids(item: Any) -> bool:
    if hasattr(item, "dtype"):  # a tensor or an array
        return getattr(item, "ndim", None) == 1 and _is_whole(item)
    return (
        isinstance(item, Sequence)
        and not isinstance(item, (str, bytes))
        and len(item) > 0
        and all(hasattr(i, "__index__") and not hasattr(i, "__len__") and not isinstance(i, bool) for i in item)
    )


def _is_whole(numbers: Any) -> bool:
    return str(numbers.dtype).removeprefix("torch.") in ("int64", "int32", "int16", "int8", "uint8")


def _whole_numbers(row: Any) -> Tensor:
    """``[i]`` int64 on the CPU, whatever the default device, from a tensor, an array or a list."""
    return torch.as_tensor(row, device="cpu").to(torch.int64)


def _n_axes(value: Any) -> int:
    """1 for a row, 2 for rows."""
    return value.ndim if hasattr(value, "ndim") else 2 if len(value) and hasattr(value[0], "__len__") else 1


def _rows(value: Any, name: str) -> list[Tensor]:
    """The rows of one part of an encoding: a tensor, an array, or lists that may be ragged; a single row is one."""
    try:
        rows = [value] if _n_axes(value) == 1 else list(value)
        tensors = [torch.as_tensor(row, device="cpu") for row in rows]
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError) as error:
        raise InputError(f"{name} cannot be read as rows of whole numbers ({error})") from error
    for row in tensors:
        empty = row.numel() == 0  # without a number, a list has no dtype of its own
        whole = _is_whole(row) or (name == "attention_mask" and row.dtype == torch.bool)
        if row.ndim != 1 or not (whole or empty):
            raise InputError(f"{name} must be [i] or [b, i] whole numbers, got {row.dtype} rows of {row.ndim} axes")
    return [row.to(torch.int64) for row in tensors]


def _real_tokens(mask: Tensor | None, length: int, where: str) -> slice:
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


def _spans(encoding: Any, special: Sequence[bool], texts: tuple[str, ...]) -> tuple[Span | None, ...]:
    segments = encoding.sequence_ids(0)
    spans: list[Span | None] = []
    for offset, segment, is_special in zip(encoding["offset_mapping"], segments, special, strict=True):
        if segment is None or is_special:
            spans.append(None)
        else:
            start, end = offset
            spans.append((segment, start, min(end, len(texts[segment]))))
    return tuple(spans)
