"""Which of all sources a process holds, and what it must know of the others'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .exchange import Exchange


@dataclass(frozen=True)
class Shard:
    """A run of neighbouring sources, as wide in each process: those beyond the last are vectors of zeros.

    Attributes:
        exchange: with the processes that hold the others.
        total: how many sources there are; a bias token is the last.
        width: how many each process holds.
    """

    exchange: Exchange
    total: int
    width: int

    @classmethod
    def of(cls, exchange: Exchange, total: int) -> Shard:
        """The part of so many sources that this process holds."""
        return cls(exchange, total, shard_width(total, exchange.ranks))

    @property
    def first(self) -> int:
        """The number of the first, among all."""
        return self.exchange.rank * self.width

    def place(self, source: int) -> int | None:
        """Where a source is among those held here, if it is; -1 is the last of all."""
        own = source % self.total - self.first
        return own if 0 <= own < self.width else None

    def columns(self, x: Tensor) -> Tensor:
        """Of ``[..., k]`` over all sources, those held here, and zeros beyond the last."""
        own = x[..., self.first : self.first + self.width]
        return torch.nn.functional.pad(own, (0, self.width - own.shape[-1]))

    def gather(self, x: Tensor, dim: int) -> Tensor:
        """A tensor over the sources held here, over all."""
        return torch.cat(self.exchange.gather(x), dim).narrow(dim, 0, self.total)

    def pick(self, x: Tensor, source: int) -> Tensor:
        """The vectors ``[..., 1, d]`` of one source, of ``[..., k, d]`` over those held here."""
        at = self.place(source)
        return self.exchange.sum(torch.zeros_like(x[..., :1, :]) if at is None else x[..., at : at + 1, :])

    def shares(self, weights: Tensor, nonzero: Callable[[], Tensor], *, signed: bool) -> tuple[Tensor, Tensor]:
        """Weights over their sum, and where that is zero, equal shares of the sources that are not.

        Args:
            weights: ``[..., k]``, of the sources held here.
            nonzero: gives ``[..., k]``, whether their vectors are not zero; asked for only where it may matter.
            signed: whether weights may cancel.

        Returns:
            The shares ``[..., k]``, and whether the sum over all sources is zero, ``[...]``.
        """
        # In float64, in which neither the sum of many float32 overflows nor that of tiny ones vanishes.
        total = weights.sum(-1, dtype=torch.float64)
        there = nonzero() if signed or bool((total == 0).any()) else None
        count = torch.full_like(total, weights.shape[-1]) if there is None else there.sum(-1, dtype=torch.float64)
        total, count = self.exchange.sum(torch.stack([total, count])).unbind()
        empty = total == 0
        shares = weights / torch.where(empty, 1, total).unsqueeze(-1)
        if there is not None and bool(empty.any()):  # where the sum is zero, all have looked at their vectors
            none, every = (count == 0).unsqueeze(-1), torch.arange(self.width, device=weights.device)
            equal = torch.where(none, every + self.first < self.total, there)
            equal = equal / torch.where(none, self.total, count.unsqueeze(-1))
            shares = torch.where(empty.unsqueeze(-1), equal, shares)
        return shares.to(weights.dtype), empty


def shard_width(total: int, ranks: int) -> int:
    """How many of so many sources each of so many processes holds."""
    return -(-total // ranks)
