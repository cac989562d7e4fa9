"""One input as the model takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..result.picture import Picture
from ..result.words import Span
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
        picture: what a model of pictures sees; ``None`` for a text.
        continues: of language models, the ids of the output that is explained, from the token that follows the prompt;
            all but the last of them are in ``inputs`` too. Empty: what the model says next.
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
    continues: tuple[int, ...] = ()
    window: Window | None = None

    def __len__(self) -> int:
        return len(self.tokens)
