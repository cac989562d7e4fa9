"""What a head reads that takes the mean of a weighted sum over layers, added up as the state goes through them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class LayerSum:
    """The decomposed mean over positions of the states so far.

    Attributes:
        weights: ``[layers + 1]``, of the states before the first layer and after each.
        total: ``[b, 1, k, d]``, in float32 at least.
    """

    weights: Tensor
    total: Tensor

    @classmethod
    def at_start(
        cls, weights: Tensor, embedding: Tensor, owned: tuple[Tensor, Tensor, Tensor], k: int, dtype: torch.dtype
    ) -> LayerSum:
        """That of the embedding ``[b, i, d]``, whose vectors at ``owned`` items and tokens are those of sources, of
        ``k``."""
        b, n, d = embedding.shape
        items, tokens, sources = owned
        total = embedding.new_zeros(b, 1, k, d, dtype=dtype)
        vectors = (weights[0] / n * embedding[items, tokens]).to(dtype)
        total[:, 0].index_put_((items, sources), vectors, accumulate=True)
        return cls(weights, total)

    def add(self, layer: int, mean: Tensor) -> None:
        """Add the mean ``[b, 1, k, d]`` of the state after a layer."""
        self.total += self.weights[layer + 1].to(mean.dtype) * mean
