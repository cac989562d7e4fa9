"""Which sources may have vectors other than zero at which positions, and the state in blocks of these alone.

In a decoder a source reaches the positions from its first token on, and in a model with windows those that are near by
as many windows as there were layers; all other vectors are zeros, of which nothing but zeros is made. So a block of
rows is copied without them, computed, and put back; an attention takes a block of sources from the first row that they
reach.

One rule gives zeros something after all: a bias whose vectors are all zero is shared among all sources. A block takes
along one source more than may live, so that at each of its positions there is a source which shows it
(:meth:`Live.block`, :class:`Leak`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...bias_rules import VECTOR_RULES
from ...config import DecompXConfig
from ...linearize.layer import Attention, Convolution, Sublayer
from ..blocks import blocks
from ..reach import Reach, reach_after

#: So many rows of a product take as long as what a block takes beside its rows: copies, its ops' starts, and laying out
#: the weights. With 256, three layers of GPT-2's sizes took two cores with AVX-512 0.69, 0.68 and 0.66 of the time with
#: zeros at 64, 128 and 256 positions; with 1024 0.82, 0.69 and 0.67. For GPUs it is a guess.
THIN_ON_CPU, THIN_ON_GPU = 256, 8192

#: In half precisions weights are cast for each block, too.
HALF = 4

#: A product of blocks on a GPU begins at a multiple of so many positions, which its kernels load in one piece.
ALIGNED = 16


def thin_rows(device: torch.device, dtype: torch.dtype) -> int:
    """How many rows of a product a block costs, whatever it holds."""
    if device.type != "cpu":
        return THIN_ON_GPU
    return THIN_ON_CPU * (HALF if dtype.itemsize < 4 else 1)


def best_block(thin: int, slope: float, batch: int) -> tuple[int, int]:
    """In blocks of how many rows, and of how many sources, zeros and starts cost the least: with one more living source
    every ``1 / slope`` rows, a row costs ``thin / height + batch * slope * height / 2`` vectors, and a source alike."""
    height = math.sqrt(2 * thin / max(slope * batch, 1e-9))
    return max(math.ceil(height), 1), max(math.ceil(slope * height), 1)


def extent_after(sublayer: Sublayer, extent: Reach | None, config: DecompXConfig) -> Reach | None:
    """:func:`..reach.reach_after`, on the host; ``None`` too where that depends on more than masks."""
    ops = sublayer.ops
    if any(isinstance(op, Convolution) or (isinstance(op, Attention) and op.hubs is not None) for op in ops):
        return None
    return reach_after(sublayer, extent, config)


@dataclass(frozen=True)
class Seen:
    """How many sources the tokens up to each have, in any of the inputs.

    Attributes:
        here: on the host.
        there: ``[i]``, the same on the device.
    """

    here: list[int]
    there: Tensor

    @classmethod
    def of(cls, member: Tensor, *, grouped: bool) -> Seen:
        """By the source ``[b, i]`` of each token; ``grouped``: whether that is not always the token itself."""
        there = member.amax(0).cummax(0).values + 1
        return cls(there.tolist() if grouped else list(range(1, len(there) + 1)), there)


@dataclass(frozen=True)
class Live:
    """The sources that may have vectors other than zero: at each position the first of all, and perhaps the last.

    Attributes:
        stops: for each position how many; they grow along the positions.
        k: how many sources the state has.
        rule: of the biases; under ``bias_token`` the last source lives everywhere.
        height, width: how many rows, and how many sources, are best taken at once.
        stops_there: ``[i]``, the stops on the device.
    """

    stops: tuple[int, ...]
    k: int
    rule: str
    height: int
    width: int
    stops_there: Tensor = field(compare=False)

    @classmethod
    def of(cls, extent: Reach, reach: Reach, seen: Seen, k: int, rule: str, block: tuple[int, int]) -> Live | None:
        """``None`` where all may.

        Args:
            extent, reach: which tokens reach each position, on the CPU and on the device.
            seen: how many sources the tokens up to each have.
            k, rule: as above.
            block: height and width.
        """
        stops = [seen.here[last] for last in extent.last.tolist()]
        if stops[0] >= k - (rule == "bias_token"):
            return None
        return cls(tuple(stops), k, rule, *block, stops_there=seen.there[reach.last])

    @property
    def _collects(self) -> bool:
        return self.rule == "bias_token"

    def first(self, sources: slice) -> int:
        """The first position that any of these sources reaches; the number of positions where none does."""
        return 0 if self._collects and sources.stop == self.k else bisect_right(self.stops, sources.start)

    def block(self, items: slice, rows: slice) -> LiveBlock:
        """Some positions of some inputs, with the sources that live at any of them, and one more whose vectors are zero
        unless a bias was shared among all."""
        stop, most, n = self.stops[rows.stop - 1], self.k - self._collects, len(self.stops)
        watched = self.stops_there[rows] if self.rule in VECTOR_RULES and self.stops[rows.start] < most else None
        if stop >= most:
            return LiveBlock(items, rows, n, self.k, False, watched)
        return LiveBlock(items, rows, n, stop + (watched is not None), self._collects, watched)

    def blocks(self, batch: int, most: int) -> Iterator[LiveBlock]:
        """All positions of so many inputs, at most ``most`` of them at a time."""
        height, together = block_of_rows(batch, most, self.height)
        for items in blocks(batch, together):
            for rows in blocks(len(self.stops), height):
                yield self.block(items, rows)


def block_of_rows(batch: int, most: int, height: int) -> tuple[int, int]:
    """Of how many rows a block is, and of how many inputs, where it may have ``most`` positions."""
    return max(min(most // batch, height), 1), min(max(most, 1), batch)


@dataclass(frozen=True)
class LiveBlock:
    """Some positions of some inputs with some of the sources.

    Attributes:
        items, rows: which positions, of inputs of ``n``.
        stop: how many sources, from the first on.
        last: whether the last source belongs to them too.
        watched: for each of the rows ``[i]`` which source is zero, if no bias was shared among all, and is there if it
            is one of the block's; ``None`` where nobody need look.
    """

    items: slice
    rows: slice
    n: int
    stop: int
    last: bool
    watched: Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        """Positions and sources."""
        count = (self.items.stop - self.items.start) * (self.rows.stop - self.rows.start)
        return count, self.stop + self.last

    def constants(self, device: torch.device) -> slice | Tensor:
        """The positions on the joined axis of batch and positions."""
        if self.items.stop - self.items.start == 1:
            start = self.items.start * self.n
            return slice(start + self.rows.start, start + self.rows.stop)
        items, rows = (torch.arange(part.start, part.stop, device=device) for part in (self.items, self.rows))
        return (items[:, None] * self.n + rows).flatten()

    def take(self, x: Tensor, out: Tensor) -> Tensor:
        """What a state ``[b, i, k, d]`` has here, in ``out`` ``[1, p, s, d]``."""
        part = self._part(x, out)
        part[:, :, : self.stop] = x[self.items, self.rows, : self.stop]
        if self.last:
            part[:, :, -1] = x[self.items, self.rows, -1]
        return out

    def put(self, x: Tensor, new: Tensor) -> None:
        """The way back: a state ``[b, i, k, d]``, or shares ``[b, i, k]``, from ``[1, p, s, ...]``."""
        part = self._part(x, new)
        x[self.items, self.rows, : self.stop] = part[:, :, : self.stop]
        if self.last:
            x[self.items, self.rows, -1] = part[:, :, -1]

    def sources(self, shares: Tensor) -> Tensor:
        """Shares ``[..., k]`` of all sources, of these."""
        some = shares[..., : self.stop]
        return torch.cat([some, shares[..., -1:]], dim=-1) if self.last else some.contiguous()

    def _part(self, x: Tensor, flat: Tensor) -> Tensor:
        """``[1, p, s, ...]`` as ``[b, i, s, ...]``."""
        shape = (self.items.stop - self.items.start, self.rows.stop - self.rows.start)
        return flat.view(*shape, *flat.shape[2:])


@dataclass
class Leak:
    """Whether a bias was shared among all sources, those too that could not have come to a position.

    Attributes:
        found: a number on the device, which nobody waits for before the end.
    """

    found: Tensor | None = field(default=None)

    def watch(self, x: Tensor, block: LiveBlock) -> None:
        """Look at vectors ``[1, p, s, d]``, or shares ``[1, p, s]``, of a block."""
        if block.watched is None:
            return
        first = block.watched.repeat(block.items.stop - block.items.start)  # [p]
        at = first.clamp_max(block.stop - 1).view(1, -1, 1, *[1] * (x.ndim - 3))
        found = x.gather(2, at.expand(1, -1, 1, *x.shape[3:])) != 0
        self._note(found & (first < block.stop).view_as(at))

    def watch_shares(self, shares: Tensor, live: Live, bias: Tensor) -> None:
        """Look at the shares of all sources ``[b, i, k]`` in a bias ``[d]`` or ``[b, i, d]``; one of zeros is
        nobody's."""
        if live.rule in VECTOR_RULES:
            there = (live.stops_there < live.k) & (bias != 0).any(-1)
            at = live.stops_there.clamp_max(live.k - 1).expand(len(shares), -1).unsqueeze(-1)
            self._note(shares.gather(2, at).squeeze(-1) * there)

    def _note(self, zeros: Tensor) -> None:
        found = (zeros != 0).any()
        self.found = found if self.found is None else self.found | found

    def __bool__(self) -> bool:
        return self.found is not None and bool(self.found)
