"""A convolution over the embedding, linearised: the one operation that reads another state than it is added to.

What it reads is the model's embedding, where each token's vector is its own and nobody else's. So no second decomposed
state is needed: position ``i`` gets one vector from each of the few tokens around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..activations import get_activation


@dataclass(frozen=True)
class Convolution:
    """``act(sum_t e[i + t - r] W_t + b)`` with its pre-activations known; tokens beyond the ends are zero.

    Attributes:
        weight: ``[d_out, d_in / groups, t]`` as torch stores it, of ``t`` taps with ``r = t // 2`` of them before a
            position; ``W_t`` is ``weight[..., t]`` transposed.
        bias: ``[d_out]`` or ``None``.
        groups: how many parts of the hidden state are convolved apart.
        activation: a name of :mod:`decompx_fast.activations`.
        embedding: ``[b, j, d]``, what it reads: ``e``.
        preactivation: ``[b, i, d]``, the true input of the activation.
    """

    kind: ClassVar[str] = "convolution"

    weight: Tensor
    bias: Tensor | None
    groups: int
    activation: str
    embedding: Tensor
    preactivation: Tensor

    @property
    def taps(self) -> int:
        """How many tokens a position reads."""
        return self.weight.shape[2]

    @property
    def before(self) -> int:
        """How many tokens before its own a position reads."""
        return self.taps // 2

    @property
    def after(self) -> int:
        """How many tokens after its own: one less where the number of taps is even."""
        return self.taps - 1 - self.before

    @property
    def constants(self) -> dict[str, Tensor]:
        """What depends on the input; the embedding is the layer's own input."""
        return {"preactivation": self.preactivation}

    def replace_constants(self, constants: Mapping[str, Tensor]) -> Convolution:
        """The same with other :attr:`constants`."""
        changes: dict[str, Any] = dict(constants)
        return replace(self, **changes)

    def __call__(self, x: Tensor) -> Tensor:
        """The forward value, ``[b, i, d]``; the state ``x`` is not read."""
        return get_activation(self.activation)(self.preactivation)

    def terms(self) -> tuple[Tensor, Tensor]:
        """What each tap adds before bias and activation, and whose it is.

        Returns:
            ``(vectors, tokens)``: ``vectors[b,i,t] = e[i + t - r] W_t`` ``[b, i, t, d]``, zero beyond the ends, and
            ``tokens`` ``[i, t]``, the position ``i + t - r``, or any other where that is beyond the ends.
        """
        b, n, _ = self.embedding.shape
        vectors = self.embedding.new_zeros(b, n, self.taps, self.weight.shape[0])
        e = self.embedding.transpose(1, 2)  # [b, d, j]
        for tap in range(self.taps):
            shift = tap - self.before
            rows = slice(max(-shift, 0), min(n - shift, n))
            if rows.start < rows.stop:
                part = e[:, :, rows.start + shift : rows.stop + shift]
                product = F.conv1d(part, self.weight[:, :, tap : tap + 1], groups=self.groups)
                vectors[:, rows, tap] = product.transpose(1, 2)
        i = torch.arange(n, device=self.embedding.device)[:, None]
        tokens = i + torch.arange(self.taps, device=i.device) - self.before
        return vectors, tokens.clamp(0, n - 1)

    def transposed(self, g: Tensor, rows: slice) -> tuple[Tensor, slice]:
        """From ``dy/d(pre-activation)`` ``[b, m, i, d]`` at ``rows`` to ``dy/de`` ``[b, m, j, d]`` at other rows."""
        n = self.embedding.shape[1]
        spread = F.conv_transpose1d(g.flatten(0, 1).transpose(1, 2), self.weight, groups=self.groups)
        spread = spread.transpose(1, 2).unflatten(0, g.shape[:2])  # of the positions from rows.start - r
        reached = slice(max(rows.start - self.before, 0), min(rows.stop + self.after, n))
        first = rows.start - self.before
        return spread[:, :, reached.start - first : reached.stop - first], reached
