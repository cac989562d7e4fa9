"""Attention on one input, linearised: values and their maps, and the patterns that mix them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from .pattern import AttentionPattern


@dataclass(frozen=True)
class HubAttention:
    """The values that hubs mix (:mod:`.hubs`), by a map that may be their own; see :class:`Attention`.

    Attributes:
        pattern: whose rows are zero but at hubs.
        w_value, b_value: as those of :class:`Attention`, which they are where hubs have no map of their own.
    """

    pattern: AttentionPattern
    w_value: Tensor
    b_value: Tensor | None

    def context(self, values: Tensor) -> Tensor:
        """``[b, i, (h v)]`` from the values ``[b, j, (g v)]``."""
        return self.pattern.mix(values.unflatten(-1, (self.pattern.key.shape[1], -1))).flatten(-2)


@dataclass(frozen=True)
class Attention:
    """Attention as a linear map of the values: ``sum_h sum_j alpha[h,i,j] (x[j] W_V^g(h) + b_V) W_O^h + b_O``.

    Attributes:
        pattern: where the attention weights come from.
        value_weight: what the model holds of ``W_V``: ``[d, (g v)]``; or of three axes, the last two to be flattened,
            where it is stored in turns with others, so that no view has two (:attr:`w_value`).
        b_value: ``[g v]`` or ``None``.
        w_out: ``[h v, d]``.
        b_out: ``[d]`` or ``None``.
        heads, kv_heads: ``H`` and ``G``.
        hubs: what the rows of hubs mix, where there are some: these rows of ``pattern`` are zero.
        memory: ``[b, j, d]``, of a cross attention the true state that keys and values are read from, the encoder's
            last (:mod:`.encoder`); ``None``: they are of the state that queries are read from.
    """

    kind: ClassVar[str] = "attention"

    pattern: AttentionPattern
    value_weight: Tensor
    b_value: Tensor | None
    w_out: Tensor
    b_out: Tensor | None
    heads: int
    kv_heads: int
    hubs: HubAttention | None = None
    memory: Tensor | None = None

    @property
    def parts(self) -> tuple[Attention | HubAttention, ...]:
        """The patterns, and the values that each mixes: their sum is what the output's map is applied to."""
        return (self,) if self.hubs is None else (self, self.hubs)

    @property
    def has_value_bias(self) -> bool:
        return any(part.b_value is not None for part in self.parts)

    @property
    def w_value(self) -> Tensor:
        """``W_V`` ``[d, (g v)]``: a view, or a copy for the moment where it is stored in turns with others."""
        return self.value_weight.flatten(1)

    @property
    def constants(self) -> dict[str, Tensor]:
        """What depends on the input."""
        found = {"query": self.pattern.query, "key": self.pattern.key, "bias": self.pattern.bias}
        if self.hubs is not None:
            found |= {"hubs.query": self.hubs.pattern.query, "hubs.key": self.hubs.pattern.key}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def replace_constants(self, constants: Mapping[str, Tensor]) -> Attention:
        """The same with other :attr:`constants`."""
        changes: dict[str, Any] = {name: value for name, value in constants.items() if "." not in name}
        of_hubs: dict[str, Any] = {
            name.removeprefix("hubs."): value for name, value in constants.items() if "." in name
        }
        hubs = self.hubs and replace(self.hubs, pattern=replace(self.hubs.pattern, **of_hubs))
        return replace(self, pattern=replace(self.pattern, **changes), hubs=hubs)

    def expand_heads(self, values: Tensor) -> Tensor:
        """Repeat ``[..., g, v]`` to ``[..., h, v]``."""
        return values if self.heads == self.kv_heads else values.repeat_interleave(self.heads // self.kv_heads, dim=-2)

    def bias(self, rows: slice = slice(None)) -> Tensor | None:
        """``b_att = b_V W_O + b_O``, ``[d]``: where attention weights sum to 1, the value bias passes unchanged.

        With a sink it is scaled by what the weights of each head sum to, and hubs may have a value bias of their own:
        then each position has its own, ``[b, i, d]`` of the positions ``rows``.
        """
        through = self._through(self.b_value, rows)
        if self.hubs is not None and self.hubs.w_value is not self.value_weight:
            of_hubs = self._through(self.hubs.b_value, rows)
            zero = torch.zeros_like(self.w_out[0])
            assert self.hubs.pattern.hubs is not None
            where = self.hubs.pattern.hubs.where[:, rows, None]
            through = torch.where(where, zero if of_hubs is None else of_hubs, zero if through is None else through)
        if through is None or self.b_out is None:
            return self.b_out if through is None else through
        return through + self.b_out

    def _through(self, b_value: Tensor | None, rows: slice) -> Tensor | None:
        """What a bias of the values, ``[(g v)]``, gives after the output's map, ``[d]``; with a sink ``[b, i, d]``."""
        if b_value is None:
            return None
        b_value = self.expand_heads(b_value.view(self.kv_heads, -1))  # [h, v]
        sums = self.pattern.row_sums(rows)
        if sums is not None:
            b_value = sums.transpose(1, 2).unsqueeze(-1) * b_value  # [b, i, h, v]
        return b_value.flatten(-2) @ self.w_out

    def __call__(self, x: Tensor) -> Tensor:
        """The forward value, ``[b, i, d]``, from the normed state ``[b, j, d]``, or the memory."""
        x = x if self.memory is None else self.memory
        mixed = torch.zeros((), dtype=x.dtype, device=x.device)
        for part in self.parts:
            values = x @ part.w_value
            mixed = mixed + part.context(values if part.b_value is None else values + part.b_value)
        out = mixed @ self.w_out
        return out if self.b_out is None else out + self.b_out

    def context(self, values: Tensor) -> Tensor:
        """What the output's map is applied to, but for hubs: ``[b, i, (h v)]`` from the values ``[b, j, (g v)]``."""
        return self.pattern.mix(values.unflatten(-1, (self.kv_heads, -1))).flatten(-2)
