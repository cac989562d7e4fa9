"""Attention weights by what they are computed from: queries, keys, masks, and what is added to the logits.

Axes: ``b`` batch, ``i`` target position, ``j`` attended position, ``h`` head, ``g`` key-value head, ``v`` head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from .hubs import Hubs

#: How large a block of attention weights may be. Larger blocks leave the cache of a CPU and gain nothing on a GPU.
WORKSPACE_BYTES = 64 << 20

#: The same for weights that are only summed, so that this needs no room that anyone has to plan.
SUMMED_BYTES = 2 << 20

#: Blocks of a narrow window are at least this high, so that there are not too many of them.
MIN_BLOCK_ROWS = 64


@dataclass(frozen=True)
class AttentionPattern:
    """Attention weights by what they are computed from, so that no ``N x N`` matrix need exist.

    ``alpha[h,i,j] = softmax_j(cap(scale * query[h,i] . key[g(h),j]) + bias[h,i,j])`` over the ``j`` that ``causal``
    and ``window`` allow, and a sink if there is one; head ``h`` reads key-value head ``g(h) = h // (H / G)``.

    Attributes:
        query: ``[b, h, i, v]``, rotary positions applied.
        key: ``[b, g, j, v]``; of a cross attention there may be more or fewer ``j`` than ``i``.
        scale: the factor of the logits.
        causal: whether position ``i`` attends ``j <= i`` only.
        window: if given, position ``i`` attends ``j`` with ``|i - j| < window`` only.
        bias: finite additive logits, broadcastable to ``[b, h, i, j]``, or ``None``.
        softcap: if given, logits are ``softcap * tanh(logits / softcap)`` before the bias.
        sink: ``[h]``, one more logit in each row, whose weight goes nowhere: rows then sum to less than 1. Or ``None``.
        hubs: a window with positions that are attended from everywhere, instead of ``causal`` and ``window``; then
            some rows are zero.
    """

    query: Tensor
    key: Tensor
    scale: float
    causal: bool = False
    window: int | None = None
    bias: Tensor | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    hubs: Hubs | None = None

    @property
    def _narrowed(self) -> int | None:
        """The window, unless it is wider than the text."""
        return None if self.window is None or self.window >= self.key.shape[2] else self.window

    def allowed(self, rows: slice = slice(None), columns: slice | Tensor = slice(None)) -> Tensor | None:
        """Where position ``i`` of ``rows`` may attend ``j`` of ``columns``, ``[i, j]``, with hubs ``[b, i, j]``;
        ``None`` where all may."""
        if self.hubs is not None:
            return self.hubs.allowed(rows, columns)
        window = self._narrowed
        if not self.causal and window is None:
            return None
        i = torch.arange(self.query.shape[2], device=self.query.device)[rows, None]
        j = torch.arange(self.key.shape[2], device=self.key.device)[None, columns]
        allowed = j <= i if self.causal else torch.ones_like(i + j, dtype=torch.bool)
        return allowed if window is None else allowed & ((i - j).abs() < window)

    def weights(self, rows: slice = slice(None), columns: slice | Tensor = slice(None)) -> Tensor:
        """The attention weights ``alpha`` of some target positions, ``[b, h, i, j]``.

        Each row sums to 1, less the weight of the sink; with hubs some are zero.

        Args:
            rows: the target positions ``i``.
            columns: the attended positions ``j``, a range or an index; must hold every one that ``rows`` attend (see
                :meth:`columns`).
        """
        logits = self._products(rows, columns)
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        if self.bias is not None:
            bias = self.bias if self.bias.shape[-2] == 1 else self.bias[..., rows, :]
            logits = logits + (bias if bias.shape[-1] == 1 else bias[..., columns])
        logits = self._masked(logits, rows, columns)
        if self.sink is not None:
            sink = self.sink.to(logits.dtype)[None, :, None, None].expand(*logits.shape[:3], 1)
            logits = torch.cat((logits, sink), dim=-1)
        alpha = logits.softmax(-1)
        alpha = alpha if self.sink is None else alpha[..., :-1]
        return alpha if self.hubs is None else alpha * self.hubs.live(rows)[:, None, :, None]

    def _products(self, rows: slice, columns: slice | Tensor) -> Tensor:
        """``scale * query . key``, ``[b, h, i, j]``: the heads of a group as the rows of one product."""
        query, key = self.query[:, :, rows] * self.scale, self.key[:, :, columns]
        together = query.shape[1] // key.shape[1] * query.shape[2]
        grouped = query.reshape(*key.shape[:2], together, query.shape[3])  # [b, g, (h i), v]
        return (grouped @ key.transpose(-1, -2)).view(*query.shape[:3], key.shape[2])

    def _masked(self, logits: Tensor, rows: slice, columns: slice | Tensor) -> Tensor:
        """``logits`` without what the positions ``rows`` may not attend, in place."""
        first = 0
        if self.hubs is None and self._narrowed is None and isinstance(columns, slice):
            if not self.causal:
                return logits
            # All may attend what comes no later than the first of them.
            start, shift = rows.indices(self.query.shape[2])[0], columns.indices(self.key.shape[2])[0]
            first = max(start + 1 - shift, 0)
            columns = slice(shift + first, columns.stop)
        allowed = self.allowed(rows, columns)
        if allowed is not None:
            allowed = allowed if allowed.ndim == 2 else allowed.unsqueeze(1)
            logits[..., first:].masked_fill_(~allowed, float("-inf"))
        return logits

    def row_sums(self, rows: slice = slice(None)) -> Tensor | None:
        """What the weights of some target positions sum to, ``[b, h, i]``; ``None`` where that is 1."""
        if self.sink is None:
            return None
        return torch.cat([alpha.sum(-1) for _, _, alpha in self.blocks(rows, SUMMED_BYTES)], dim=-1)

    def columns(self, rows: slice) -> slice:
        """The narrowest range of positions that holds all that ``rows`` (a slice with a start and a stop) attend."""
        n, window = self.key.shape[2], self._narrowed
        first = 0 if window is None else max(rows.start - window + 1, 0)
        if window is None and not self.causal:
            return slice(0, n)
        last = rows.stop - 1 if window is None or self.causal else rows.stop + window - 2
        return slice(first, min(last + 1, n))

    def of_heads(self, kv_heads: slice) -> AttentionPattern:
        """That of some key-value heads, and of the heads that read them."""
        first, last, _ = kv_heads.indices(self.key.shape[1])
        group = self.query.shape[1] // self.key.shape[1]
        heads = slice(first * group, last * group)
        bias = self.bias if self.bias is None or self.bias.shape[-3] == 1 else self.bias[..., heads, :, :]
        sink = None if self.sink is None else self.sink[heads]
        return replace(self, query=self.query[:, heads], key=self.key[:, kv_heads], bias=bias, sink=sink)

    def block_shape(self, n_rows: int) -> tuple[int, int]:
        """How high a block of so many rows is at the most, and how wide it is then."""
        n = self.key.shape[2]
        window, beside = self._narrowed, 0
        if self.hubs is not None and not self.hubs.own_rows:
            window, beside = self.hubs.block * (self.hubs.radius + 1), len(self.hubs.positions)
        if window is None:
            return n_rows, n
        # Blocks as high as the window is wide: few, and little of each is masked.
        height = max(window, MIN_BLOCK_ROWS)
        return min(height, n_rows), min(height + 2 * window + beside, n)

    def live_rows(self, rows: slice) -> list[slice]:
        """The parts of ``rows`` outside of which all weights are zero."""
        return [rows] if self.hubs is None else self.hubs.runs(rows)

    def blocks(
        self, rows: slice = slice(None), most_bytes: int | None = None
    ) -> Iterator[tuple[slice, slice | Tensor, Tensor]]:
        """The attention weights of ``rows`` in blocks of at most so many bytes (but a row at the least).

        Args:
            rows: the target positions.
            most_bytes: :data:`WORKSPACE_BYTES` at the most, which ``None`` stands for.

        Yields:
            ``(rows, columns, alpha)``: ``alpha`` of these rows and columns, ``[b, h, i, j]``; in every other column
            it is 0, and so it is in rows that are in no block. With hubs, ``columns`` may be an index.
        """
        start, stop, _ = rows.indices(self.query.shape[2])
        b, heads = self.query.shape[:2]
        most, width = self.block_shape(stop - start)
        most_bytes = WORKSPACE_BYTES if most_bytes is None else min(most_bytes, WORKSPACE_BYTES)
        step = max(min(most_bytes // (b * heads * width * self.query.element_size()), most), 1)
        for run in self.live_rows(slice(start, stop)):
            for first in range(run.start, run.stop, step):
                block = slice(first, min(first + step, run.stop))
                columns = self.columns(block) if self.hubs is None else self.hubs.columns(block)
                yield block, columns, self.weights(block, columns)

    def mix(self, values: Tensor) -> Tensor:
        """``sum_j alpha[h,i,j] values[j,g(h)]``, in memory linear in the number of positions.

        Args:
            values: ``[b, j, g, v]``.

        Returns:
            ``[b, i, h, v]``.
        """
        values = self._repeat(values.transpose(1, 2))  # [b, h, j, v]
        plain = self._narrowed is None and self.softcap is None and self.sink is None
        if self.hubs is not None:
            mixed = torch.zeros_like(values)
            for rows, columns, alpha in self.blocks():
                mixed[:, :, rows] = alpha @ values[:, :, columns]
        elif plain and (self.bias is None or not self.causal):
            key = self._repeat(self.key)
            mixed = F.scaled_dot_product_attention(
                self.query, key, values, attn_mask=self.bias, is_causal=self.causal, scale=self.scale
            )
        else:
            mixed = torch.cat([alpha @ values[:, :, columns] for _, columns, alpha in self.blocks()], dim=2)
        return mixed.transpose(1, 2)

    def _repeat(self, x: Tensor) -> Tensor:
        """Repeat ``[b, g, ...]`` to ``[b, h, ...]``."""
        heads, kv_heads = self.query.shape[1], self.key.shape[1]
        return x if heads == kv_heads else x.repeat_interleave(heads // kv_heads, dim=1)
