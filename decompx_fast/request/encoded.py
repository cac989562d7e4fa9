"""One input as the model takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from ..result.picture import Picture
from ..result.words import Span
from .prepared import DECODER_IDS
from .windows import Window


@dataclass(frozen=True)
class Encoded:
    """One input as the model takes it, without padding.

    Attributes:
        inputs: ``[i]`` int64 each (boxes ``[i, 4]``), on the CPU; ``input_ids`` among them. Of a picture
            ``pixel_values`` ``[c, height, width]``.
        tokens: how the tokenizer writes them.
        spans: ``(segment, start, end)`` into ``texts``, or ``None``.
        special: whether the tokenizer added the token.
        texts: the text, or the pair; empty if it is not known. Of words that were split before, they are joined by
            spaces.
        words: for each token, the number of its word among those that were split before, or that the tokenizer tells
            of an encoding; ``None`` for a special token. ``None``: words are found in the text.
        picture: what a model of pictures sees, or a sound as a picture; ``None`` for a text.
        unit: what one position is.
        seconds: of a sound, how long a column of the picture is, if that is known.
        continues: of language models, the ids of the output that is explained, from the token that follows the prompt;
            all but the last of them are in ``inputs`` too. Empty: what the model says next.
        encoder: of a model with a decoder beside its encoder, how many tokens the encoder reads (``input_ids``); the
            decoder reads those after them (``decoder_input_ids``). ``None``: there is no decoder apart.
        reads_again: whether what the decoder reads is the text once more, one place on, and no output.
        window: which part it is of an input that is longer than the model; ``None``: it is whole, or was cut.
        number: which input of the call it is, from 0.
        about: what its explanation says of it besides: how long it was before it was cut, how much was unknown.
    """

    inputs: Mapping[str, Tensor]
    tokens: tuple[str, ...]
    spans: tuple[Span | None, ...]
    special: tuple[bool, ...]
    texts: tuple[str, ...]
    number: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[int | None, ...] | None = None
    picture: Picture | None = None
    unit: Literal["token", "patch", "frame"] = "token"
    seconds: float | None = None
    continues: tuple[int, ...] = ()
    encoder: int | None = None
    reads_again: bool = False
    window: Window | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def ids(self) -> list[int]:
        """Those of all tokens."""
        found = [self.inputs[name] for name in ("input_ids", DECODER_IDS) if name in self.inputs]
        return [number for part in found for number in part.tolist()]

    @property
    def read_by_encoder(self) -> Encoded:
        """What the encoder reads of it, by itself."""
        n, known = self.encoder, [span[0] for span in self.spans[: self.encoder] if span]
        if n is None:
            return self
        return replace(
            self,
            inputs={name: value for name, value in self.inputs.items() if name != DECODER_IDS},
            tokens=self.tokens[:n],
            spans=self.spans[:n],
            special=self.special[:n],
            texts=self.texts[: max(known) + 1] if known else self.texts,
            words=self.words and self.words[:n],
            encoder=None,
            reads_again=False,
        )
