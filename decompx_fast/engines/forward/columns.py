"""The sources that an encoder's states can have: the decoder's own have vectors of zero there, and are left out.

A state of fewer sources is the beginning of the buffer of one with all, so that it takes no room of its own.
"""

from __future__ import annotations

from torch import Tensor

from ...config import DecompXConfig
from ...linearize.layer import Encoder
from ..blocks import carve


def sources_of_encoder(encoder: Encoder, member: Tensor, embedding: Tensor, config: DecompXConfig) -> int | None:
    """How many sources an encoder's state has: those before the first that only a decoder's tokens belong to, and the
    bias token. ``None``: all are to be carried.

    That is so where stages are kept, which have all; and where a bias may be shared among all sources, whether they
    have vectors or not: under ``equal``, and at a token whose own vector is zero.

    Args:
        encoder: of the model.
        member: ``[b, j]``, the source of each token.
        embedding: ``[b, j, d]``, of the encoder.
        config: the options.
    """
    if config.stages or config.bias == "equal" or bool((embedding == 0).all(-1).any()):
        return None
    return int(member[:, encoder.part(0)].max()) + 1 + (config.bias == "bias_token")


def beginning(buffer: Tensor, sources: int | None) -> Tensor:
    """A state of so many sources at the beginning of a buffer ``[b, i, k, d]``; ``None``: of all."""
    b, n, _, d = buffer.shape
    return buffer if sources is None else carve(buffer, b, n, sources, d)


def widen_(buffer: Tensor, x: Tensor, *, collects: bool) -> Tensor:
    """A state of all sources, those that it has not as zeros, in place.

    Args:
        buffer: ``[b, i, k, d]``, contiguous, of which ``x`` is the beginning.
        x: ``[b, i, s, d]``, of fewer sources, or of all.
        collects: whether the last source, of both, is the bias token.

    Returns:
        ``buffer``.
    """
    if x.shape == buffer.shape:
        return buffer
    own = x.shape[2] - collects
    narrow, wide = x.flatten(0, 1), buffer.flatten(0, 1)
    for row in reversed(range(len(wide))):  # a row moves back, to where those after it no longer are
        vectors = narrow[row].clone()
        wide[row].zero_()
        wide[row, :own] = vectors[:own]
        if collects:
            wide[row, -1] = vectors[-1]
    return buffer
