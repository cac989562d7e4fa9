"""Attention in a window and to a few positions besides: Longformer's global tokens, BigBird's outer blocks.

The few are called hubs here. Every position attends those of its window and the hubs; a hub attends all positions, by
maps that may be its own. So an attention with hubs is two patterns, of which each has rows of zeros where the other
has weights: that of all other positions, and that of the hubs (``own_rows``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Hubs:
    """Which positions are hubs, and how far the window of the others reaches.

    Attributes:
        where: ``[b, j]`` bool, at least one of each input.
        radius: position ``i`` attends ``j`` with ``|i // block - j // block| <= radius``.
        block: of so many positions.
        own_rows: whether the pattern is that of the hubs; else that of the others.
    """

    where: Tensor
    radius: int
    block: int = 1
    own_rows: bool = False

    @cached_property
    def positions(self) -> Tensor:
        """``[h]``, what is a hub in any of the inputs, in order."""
        return self.where.any(0).nonzero().flatten()

    def live(self, rows: slice) -> Tensor:
        """``[b, i]``, True where the rows have weights."""
        found = self.where[:, rows]
        return found if self.own_rows else ~found

    def allowed(self, rows: slice, columns: slice | Tensor) -> Tensor | None:
        """``[b, i, j]``, True where position ``i`` of ``rows`` may attend ``j`` of ``columns``; ``None``: all may."""
        if self.own_rows:
            return None
        position = torch.arange(self.where.shape[1], device=self.where.device)
        far = (position[rows, None] // self.block - position[columns][None] // self.block).abs() > self.radius
        return ~far | self.where[:, None, columns]

    def window(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """The first and the last position that lie in the window of each."""
        number = position // self.block
        first = ((number - self.radius) * self.block).clamp_min(0)
        return first, ((number + self.radius + 1) * self.block - 1).clamp_max(self.where.shape[1] - 1)

    def columns(self, rows: slice) -> Tensor | slice:
        """The fewest positions that hold all that ``rows`` (a slice with a start and a stop) attend, as an index."""
        if self.own_rows:
            return slice(0, self.where.shape[1])
        ends = torch.tensor([rows.start, rows.stop - 1], device=self.where.device)
        (first, _), (_, last) = (end.tolist() for end in self.window(ends))
        hubs = self.positions
        inside = torch.arange(first, last + 1, device=hubs.device)
        return torch.cat([hubs[hubs < first], inside, hubs[hubs > last]])

    def runs(self, rows: slice) -> list[slice]:
        """The parts of ``rows`` that have weights in any input, as ranges."""
        if not self.own_rows:
            return [rows]
        found: list[slice] = []
        for position in self.positions.tolist():
            if not rows.start <= position < rows.stop:
                continue
            if found and found[-1].stop == position:
                found[-1] = slice(found[-1].start, position + 1)
            else:
                found.append(slice(position, position + 1))
        return found
