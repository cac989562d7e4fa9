"""A norm on one input, linearised."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """A LayerNorm or RMSNorm with its statistics frozen: ``(x - mean_d(x)) / std * weight + bias``.

    Attributes:
        std: ``[b, i]``, ``sqrt(var + eps)`` of the true state at each position (RMS: ``sqrt(mean(x^2) + eps)``).
        weight: ``[d]`` or ``None`` for ones.
        bias: ``[d]`` or ``None``.
        centre: whether the mean over ``d`` is subtracted (False: RMSNorm).
        fixed: whether ``std`` is 1 whatever the state, so that this is no norm but a diagonal map.
    """

    std: Tensor
    weight: Tensor | None
    bias: Tensor | None
    centre: bool = True
    fixed: bool = False

    def linear(self, x: Tensor) -> Tensor:
        """The linear part, without the bias; ``x`` is ``[b, i, d]`` or ``[b, i, k, d]``."""
        if self.centre:
            x = x - x.mean(-1, keepdim=True)
        std = self.std[(...,) + (None,) * (x.ndim - 2)]
        x = x / std
        return x if self.weight is None else x * self.weight
