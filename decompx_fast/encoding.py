"""Reading what the user wants explained: texts, pairs, token ids or a prepared encoding, each without padding."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import InputError
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
        truncate: cut longer texts, with a warning, instead of refusing them.
        device: the model's; tensors that the user prepared must be there, everything else is moved.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_positions: int | None,
        *,
        truncate: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_positions = max_positions
        self.truncate = truncate
        self.device = device

    def read(self, items: Any) -> tuple[Iterator[Encoded], bool]:
        """All of ``items``, lazily, and whether it was a single input.

        Raises:
            InputError: for what cannot be read, naming which one it is.
        """
        if isinstance(items, Mapping) or hasattr(items, "input_ids"):
            rows = self._read_encoding(items)
            ids = torch.as_tensor(items["input_ids"]) if not _is_ragged(items["input_ids"]) else None
            return iter(rows), ids is not None and ids.ndim == 1
        if is_single(items):
            return iter([self.read_one(items, "the input")]), True
        if not isinstance(items, Iterable):
            raise InputError(f"cannot explain a {type(items).__name__}: {ACCEPTED}")
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
            ids = torch.as_tensor(item, dtype=torch.int64).cpu()
            return self._finish({"input_ids": ids}, where)
        raise InputError(f"{where} is {item!r:.80}: {ACCEPTED}")

    def _read_text(self, texts: tuple[str, ...], where: str) -> Encoded:
        if self.tokenizer is None:
            raise InputError("texts need a tokenizer: use DecompX(model, tokenizer), or give token ids")
        for text in texts:
            if not text.strip():
                raise InputError(f"{where} is an empty text: there is nothing to explain")
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise InputError(
                    f"{where} is not valid Unicode ({error.reason}): clean the text first"
                ) from error
        fast = getattr(self.tokenizer, "is_fast", False)
        encoding = self.tokenizer(
            *texts,
            truncation=False,
            padding=False,
            return_special_tokens_mask=True,
            return_offsets_mapping=fast,
            verbose=False,
        )
        length = len(encoding["input_ids"])
        if self.max_positions is not None and length > self.max_positions:
            if not self.truncate:
                raise self._too_long(length, where)
            warnings.warn(
                f"{where} has {length} tokens and was cut to the model's {self.max_positions} positions",
                stacklevel=2,
            )
            encoding = self.tokenizer(
                *texts,
                truncation=True,
                max_length=self.max_positions,
                padding=False,
                return_special_tokens_mask=True,
                return_offsets_mapping=fast,
                verbose=False,
            )
        inputs = {name: torch.tensor(encoding[name]) for name in MODEL_INPUTS if name in encoding}
        special = tuple(bool(flag) for flag in encoding["special_tokens_mask"])
        spans = _spans(encoding, special, texts) if fast else None
        return self._finish(inputs, where, special=special, spans=spans, texts=texts)

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
        out = []
        for n in range(count):
            where = f"row {n} of the encoding"
            row = {name: values[n] for name, values in rows.items() if len(values) == count}
            if len(row) != len(rows) or len({tuple(value.shape) for value in row.values()}) != 1:
                shapes = {name: [list(v.shape) for v in values] for name, values in rows.items()}
                raise InputError(f"the parts of the encoding differ in shape: {shapes}")
            keep = _real_tokens(row.pop("attention_mask", None), len(row["input_ids"]), where)
            special = None
            if encodings is not None:
                special = tuple(bool(flag) for flag in encodings[n].special_tokens_mask[keep])
            out.append(
                self._finish({name: value[keep] for name, value in row.items()}, where, special=special)
            )
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
    if isinstance(item, Tensor):
        return (
            item.ndim == 1
            and not item.is_floating_point()
            and not item.is_complex()
            and item.dtype != torch.bool
        )
    return (
        isinstance(item, Sequence)
        and not isinstance(item, (str, bytes))
        and len(item) > 0
        and all(isinstance(i, int) and not isinstance(i, bool) for i in item)
    )


def _is_ragged(rows: Any) -> bool:
    return (
        not isinstance(rows, Tensor)
        and len(rows) > 0
        and hasattr(rows[0], "__len__")
        and len({len(r) for r in rows}) > 1
    )


def _rows(value: Any, name: str) -> list[Tensor]:
    """The rows of one part of an encoding: a tensor, an array, or lists that may be ragged; a single row is one."""
    try:
        if _is_ragged(value):
            rows = [torch.as_tensor(row) for row in value]
        else:
            tensor = torch.as_tensor(value)
            rows = list(tensor.unsqueeze(0) if tensor.ndim == 1 else tensor)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} cannot be read as whole numbers ({error})") from error
    for row in rows:
        if row.ndim != 1 or row.is_floating_point():
            raise InputError(
                f"{name} must be [i] or [b, i] whole numbers, got {row.dtype} rows of {row.ndim} axes"
            )
    return [row.to(torch.int64).cpu() for row in rows]


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
