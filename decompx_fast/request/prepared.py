"""A tokenizer's encoding, given in the place of texts: its rows, without padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..errors import InputError
from .boxes import BOXES, box_rows
from .forms import n_axes, no_ids, real_tokens, rows
from .presplit import numbered

#: What a model's forward may be given; everything has one entry per token. Layout models also take :data:`BOXES`.
MODEL_INPUTS = ("input_ids", "token_type_ids", "position_ids")

#: What a decoder reads that stands beside an encoder.
DECODER_IDS = "decoder_input_ids"

#: What an encoding may also hold: read here, or of no effect on the model.
OTHER_KEYS = (
    "attention_mask",
    "special_tokens_mask",
    "offset_mapping",
    "length",
    "labels",
    "overflow_to_sample_mapping",
)


class Encoding:
    """A tokenizer's output for one text or several, taken apart into rows.

    Args:
        encoding: a mapping with ``input_ids``.
        taken: the parts that the model takes.
        check_device: raises for a tensor, named, that is not where the model is.

    Raises:
        InputError: for parts that cannot be read.
    """

    def __init__(
        self, encoding: Mapping[str, Any], taken: Sequence[str], check_device: Callable[[Any, str], None]
    ) -> None:
        data = dict(encoding)
        if "input_ids" not in data:
            raise no_ids(data)
        for name in data:
            if name.startswith("decoder_"):
                raise InputError(
                    f"the encoding holds {name!r}: what the decoder reads is given by continuation=, or made of the "
                    "text; leave it out"
                )
            if name not in taken and name not in OTHER_KEYS:
                raise InputError(
                    f"the encoding holds {name!r}, which is not supported: give {', '.join(taken)} and attention_mask"
                )
        wanted = [name for name in (*taken, "attention_mask", "special_tokens_mask") if name in data]
        for name in wanted:
            check_device(data[name], name)
        self.rows = {name: box_rows(data[name]) if name == BOXES else rows(data[name], name) for name in wanted}
        if not len(self):
            raise InputError("the encoding is empty: it has no rows")
        self.is_single = n_axes(data["input_ids"]) == 1
        tokenized = getattr(encoding, "encodings", None)  # of a fast tokenizer
        self.tokenized = tokenized if tokenized is not None and len(tokenized) == len(self) else None

    def __len__(self) -> int:
        return len(self.rows["input_ids"])

    def row(self, n: int, where: str) -> tuple[dict[str, Tensor], Sequence[int] | None, tuple[int | None, ...] | None]:
        """The parts of one row without its padding, and the tokenizer's mask of special tokens and numbers of words, if
        they are known."""
        row = {name: values[n] for name, values in self.rows.items() if len(values) == len(self)}
        if len(row) != len(self.rows) or len({len(value) for value in row.values()}) != 1:
            shapes = {name: [list(v.shape) for v in values] for name, values in self.rows.items()}
            raise InputError(f"the parts of the encoding differ in shape: {shapes}")
        keep = real_tokens(row.pop("attention_mask", None), len(row["input_ids"]), where)
        special = words = None
        if self.tokenized is not None and self.tokenized[n].ids == row["input_ids"].tolist():
            one = self.tokenized[n]
            special, words = one.special_tokens_mask[keep], numbered(one.word_ids, one.sequence_ids)[keep]
        return {name: value[keep] for name, value in row.items()}, special, words
