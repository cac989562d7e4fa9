"""A convolution of the embedding in the forward engine: a few vectors for each position, put to their sources."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...activations import get_activation, linear_piece
from ...config import DecompXConfig
from ...linearize.layer import Convolution, Sublayer
from ..blocks import Workspace
from .sharing import Sharing


@dataclass(frozen=True)
class Convolved:
    """What the taps of a convolution give each position, before its bias.

    Attributes:
        vectors: ``[1, p, t, d]``, on the joined axis of batch and positions.
        sources: ``[1, p, t]``, whose they are; of sources that are not here the vectors are zero.
        sharing: how the biases before the activation reach the sources: those that the convolution reads.
    """

    vectors: Tensor
    sources: Tensor
    sharing: Sharing

    @classmethod
    def of(cls, op: Convolution, member: Tensor, sharing: Sharing, dtype: torch.dtype) -> Convolved:
        """For all positions, in the dtype of the state; ``member`` ``[b, j]`` is the source of each token."""
        vectors, tokens = op.terms()
        sources = member[:, tokens]  # [b, i, t]
        if sharing.shard is not None:
            sources = sources - sharing.shard.first
            here = (sources >= 0) & (sources < sharing.shard.width)
            vectors, sources = vectors * here.unsqueeze(-1), sources * here
        return cls(vectors.to(dtype).flatten(0, 1)[None], sources.flatten(0, 1)[None], sharing)

    def at(self, rows: slice | Tensor) -> Convolved:
        """The same at some positions."""
        return Convolved(self.vectors[:, rows], self.sources[:, rows], self.sharing.at(rows))

    def add_to_(self, x: Tensor) -> None:
        """Add it to ``x`` ``[1, p, k, d]``, tap by tap, since two taps may belong to one source."""
        p = torch.arange(x.shape[1], device=x.device)
        for tap in range(self.vectors.shape[2]):
            x[0, p, self.sources[0, :, tap]] += self.vectors[0, :, tap]


def finish_convolution_(
    x: Tensor,
    sublayer: Sublayer,
    convolved: Convolved,
    config: DecompXConfig,
    sharing: Sharing,
    workspace: Workspace,
) -> None:
    """``X <- post_norm(X + act(conv(E) + b))``, in place; ``E`` is the embedding.

    Args:
        x: ``[1, p, k, d]``, contiguous: the state.
        sublayer: a convolution alone, with its constants at these positions (:func:`.direct_path.at_rows`).
        convolved: at these positions.
        config, sharing: the options, and how the bias of the norm reaches the sources.
        workspace: for one buffer of the size of ``x``.
    """
    op = sublayer.ops[0]
    assert isinstance(op, Convolution)
    slope, intercept = linear_piece(get_activation(op.activation), op.preactivation, config.activation)
    (branch,) = workspace.take(tuple(x.shape))
    convolved.add_to_(branch.zero_())
    convolved.sharing.activate_(branch, slope, op.bias, intercept)
    sharing.add_norm_(x, branch, None, sublayer.post_norm if config.ln2 else None)
