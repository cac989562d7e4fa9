"""The encoder of an encoder-decoder, whose last state is the memory that the decoder's cross attentions read.

Its layers come first, on the tokens that come first; the decoder's begin anew with the embedding of the tokens after
them. So sources, and the positions that are asked for, are numbered through both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from ..errors import InputError
from .spec import Context
from .terms import Terms

#: Under this name a layer's context has the memory.
MEMORY = "memory of the decoder"


@dataclass(frozen=True)
class Encoder:
    """Which part of a model is its encoder.

    Attributes:
        layers: how many of the model's layers are the encoder's, the first of them.
        tokens: how many of its tokens are.
    """

    layers: int
    tokens: int

    def part(self, layer: int) -> slice:
        """The tokens whose states a layer works on."""
        return slice(0, self.tokens) if layer < self.layers else slice(self.tokens, None)

    def in_decoder(self, positions: Tensor) -> Tensor:
        """Positions among all tokens, int64, as positions of the decoder.

        Raises:
            InputError: for one of the encoder.
        """
        first = int(positions.min()) if positions.numel() else self.tokens
        if first < self.tokens:
            raise InputError(
                f"position {first} is one of the encoder, and the head reads the decoder: give positions from "
                f"{self.tokens}, the number of tokens of the encoder"
            )
        return positions - self.tokens

    def terms_in_decoder(self, terms: Terms | None) -> Terms | None:
        """The same for what a head is asked.

        Raises:
            InputError: for a position of the encoder.
        """
        if terms is None or terms.positions is None:
            return terms
        return replace(terms, positions=self.in_decoder(terms.positions))


def with_memory(context: Context, memory: Tensor) -> Context:
    """A layer's context with the memory ``[b, j, d]``."""
    return {**context, MEMORY: memory}


def memory_of(context: Context) -> Tensor:
    """The memory ``[b, j, d]`` in a layer's context.

    Raises:
        ValueError: if there is none: a cross attention outside of a decoder.
    """
    memory = context.get(MEMORY)
    if not isinstance(memory, Tensor):
        raise ValueError("a cross attention needs the memory of an encoder")
    return memory
