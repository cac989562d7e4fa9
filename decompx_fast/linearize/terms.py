"""What is asked of a model: terms, which are numbers that it gives, and columns, which are weighted sums of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..errors import InputError

#: The output that stands for the mean over all outputs.
MEAN_OUTPUT = -1


@dataclass(frozen=True)
class Pooled:
    """What a head reads that pools positions: means of ranges of them, put one after the other to one long row.

    Attributes:
        ranges: ``(start, stop)`` of each; ``None``: to the end.
    """

    ranges: tuple[tuple[int, int | None], ...]


@dataclass(frozen=True)
class Terms:
    """Numbers that a model gives for a batch, each an output at a position, and weighted sums of them.

    Items of a batch may read different positions, but have equally many terms: pad with terms of weight 0.

    Attributes:
        positions: ``[b, t]`` int64, counted from the start; ``None``: the head's own reading.
        outputs: ``[b, t]`` int64, the index of the output; -1: the mean over all outputs.
        columns: ``[b, m, t]`` float64 weights; ``None``: the terms themselves (``m = t``).
    """

    positions: Tensor | None
    outputs: Tensor
    columns: Tensor | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.outputs.shape)
        if self.outputs.dtype != torch.int64 or len(shape) != 2 or 0 in shape:
            raise InputError(f"outputs must be int64 of the shape [b, t], got {_kind(self.outputs)}")
        if self.positions is not None and (self.positions.dtype != torch.int64 or tuple(self.positions.shape) != shape):
            raise InputError(f"positions must be int64 of the shape {list(shape)}, got {_kind(self.positions)}")
        if self.columns is None:
            return
        size = tuple(self.columns.shape)
        if self.columns.dtype != torch.float64 or len(size) != 3 or (size[0], size[2]) != shape or size[1] == 0:
            raise InputError(
                f"columns must be float64 of the shape [{shape[0]}, m, {shape[1]}], got {_kind(self.columns)}"
            )
        if not torch.isfinite(self.columns).all():
            raise InputError("columns holds NaN or infinity: give finite numbers")

    @classmethod
    def of_classes(cls, b: int, classes: int, directions: Tensor | None = None) -> Terms:
        """All outputs of a head that reads by itself, or directions ``[m, C]`` over them, for every item alike.

        Raises:
            InputError: for directions of a wrong shape, or not finite.
        """
        outputs = torch.arange(classes).expand(b, -1)
        if directions is None:
            return cls(None, outputs)
        if directions.ndim != 2 or directions.shape[1] != classes or len(directions) == 0:
            raise InputError(
                f"directions has the shape {tuple(directions.shape)}: give [m, {classes}], that is m directions "
                f"over the {classes} classes"
            )
        if not torch.isfinite(directions).all():
            raise InputError("directions holds NaN or infinity: give finite numbers")
        return cls(None, outputs.to(directions.device), directions.double().expand(b, -1, -1))

    @property
    def count(self) -> int:
        """How many columns there are."""
        return self.outputs.shape[1] if self.columns is None else self.columns.shape[1]

    def to(self, device: torch.device) -> Terms:
        """The same on another device."""
        positions, columns = (None if x is None else x.to(device) for x in (self.positions, self.columns))
        return Terms(positions, self.outputs.to(device), columns)

    def combine(self, values: Tensor) -> Tensor:
        """From terms ``[b, t]`` or ``[b, k, t]`` to columns; summed in float64, which no reduced precision touches."""
        if self.columns is None:
            return values
        columns = self.columns.to(values.device).transpose(1, 2)  # [b, t, m]
        if values.ndim == 2:
            return (values.double().unsqueeze(1) @ columns).squeeze(1).to(values.dtype)
        return (values.double() @ columns).to(values.dtype)


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


@dataclass(frozen=True)
class Reading:
    """Terms sorted by the rows that they are read from: every row of every item with as many outputs.

    Attributes:
        rows: ``[b, r]`` int64, the positions that the head is applied to, each by itself; ``None``: one row, the means
            of ``ranges`` of positions one after the other.
        outputs: ``[b, r, q]`` int64, the outputs wanted of each row; ``None``: all of them, in their order.
        slots: ``[b, t]`` int64, where in ``r q`` each term is; ``None``: the terms are ``r q`` themselves.
        ranges: as :class:`Pooled` has them; by default the mean of all positions.
        averaged: whether terms are means over the rows, which are all positions then, of what the head gives at each;
            ``outputs`` are then ``[b, 1, q]``, and ``slots`` where in ``q`` each term is.
    """

    rows: Tensor | None
    outputs: Tensor | None = None
    slots: Tensor | None = None
    ranges: tuple[tuple[int, int | None], ...] = ((0, None),)
    averaged: bool = False

    @cached_property
    def positions(self) -> tuple[int, ...] | None:
        """The rows of any item, on the host, in their order; ``None``: means of ranges are read."""
        return None if self.rows is None else tuple(sorted(set(self.rows.flatten().tolist())))

    def spans(self, n: int) -> list[tuple[int, int]]:
        """The ranges of ``n`` positions, each with its end."""
        return [(start, n if stop is None else stop) for start, stop in self.ranges]

    def together(self, rows: Tensor) -> Tensor:
        """What is told of rows ``[b, r, ...]``: each of them, or their mean ``[b, 1, ...]`` where terms are such."""
        return rows.mean(1, keepdim=True) if self.averaged else rows

    def pick(self, table: Tensor) -> Tensor:
        """The terms: ``[b, r, q]`` to ``[b, t]``, ``[b, r, k, q]`` to ``[b, k, t]``."""
        flat = self.together(table).movedim(1, -2).flatten(-2)  # [b, ..., (r q)]
        if self.slots is None:
            return flat
        slots = self.slots.to(table.device)
        if flat.ndim == 3:
            slots = slots.unsqueeze(1).expand(-1, flat.shape[1], -1)
        return flat.gather(-1, slots)

    def pick_rows(self, rows: Tensor) -> Tensor:
        """The row of each term, ``[b, k, r]`` to ``[b, k, t]``; the one row there is where terms are not told apart."""
        if self.slots is None or self.outputs is None:
            return rows
        row = (self.slots // self.outputs.shape[2]).to(rows.device)
        return rows.gather(-1, row.unsqueeze(1).expand(-1, rows.shape[1], -1))

    def select(self, whole: Tensor) -> Tensor:
        """The outputs wanted of all: ``[b, r, C]`` to ``[b, r, q]``, ``[b, r, k, C]`` to ``[b, r, k, q]``."""
        if self.outputs is None:
            return whole
        outputs = self.outputs.to(whole.device)
        if whole.ndim == 4:
            outputs = outputs.unsqueeze(2)
        outputs = outputs.expand(*whole.shape[:-1], -1)
        found = whole.gather(-1, outputs.clamp_min(0))
        if not bool((outputs == MEAN_OUTPUT).any()):
            return found
        return torch.where(outputs == MEAN_OUTPUT, whole.mean(-1, keepdim=True), found)

    def spread(self, g: Tensor, count: int) -> Tensor:
        """The transpose of :meth:`select`: cotangents ``[b, m, r, q]`` to ``[b, m, r, C]``."""
        if self.outputs is None:
            return g
        outputs = self.outputs.to(g.device).unsqueeze(1).expand_as(g)
        is_mean = outputs == MEAN_OUTPUT
        whole = g.new_zeros(*g.shape[:-1], count)
        whole.scatter_add_(-1, outputs.clamp_min(0), g.masked_fill(is_mean, 0))
        return whole + g.masked_fill(~is_mean, 0).sum(-1, keepdim=True) / count


def arrange(terms: Terms | None, own: Tensor | None, n: int, count: int) -> Reading:
    """How terms are read.

    Args:
        terms: ``None``: all outputs of the head's own reading.
        own: ``[b, 1]``, the position that the head reads by itself, for terms without positions; ``None``: the mean.
        n: how many positions there are.
        count: how many outputs the head has.

    Raises:
        InputError: for positions or outputs that do not exist.
    """
    if terms is None:
        return Reading(own)
    _check_range("outputs", terms.outputs, MEAN_OUTPUT, count)
    if terms.positions is not None:
        _check_range("positions", terms.positions, 0, n)
        positions = terms.positions
    else:  # of the mean there is one row, whatever its number
        positions = (terms.outputs.new_zeros(len(terms.outputs), 1) if own is None else own).expand_as(terms.outputs)
    alone = own is None and terms.positions is None
    in_order = torch.arange(count, device=positions.device)
    if positions.shape[1] == count and bool(((terms.outputs == in_order) & (positions == positions[:, :1])).all()):
        return Reading(None if alone else positions[:, :1])  # the whole head at one row
    rows, outputs, slots = _sorted_by_row(positions.cpu(), terms.outputs.cpu(), count)
    outputs, slots = outputs.to(positions.device), slots.to(positions.device)
    return Reading(None if alone else rows.to(positions.device), outputs, slots)


def _check_range(name: str, values: Tensor, first: int, end: int) -> None:
    low, high = (int(x) for x in values.aminmax())
    if low < first or high >= end:
        raise InputError(f"{name} holds {low if low < first else high}: give whole numbers from {first} to {end - 1}")


def _sorted_by_row(positions: Tensor, outputs: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows ``[b, r]``, outputs ``[b, r, q]`` and slots ``[b, t]``; padded with what is there already."""
    span = count + 1  # outputs begin at -1
    items = []
    for where, which in zip(positions, outputs, strict=True):
        keys, of_term = torch.unique(where * span + which + 1, return_inverse=True)
        rows, row = torch.unique_consecutive(keys // span, return_inverse=True)
        first = torch.searchsorted(row, torch.arange(len(rows)))
        items.append((rows, row, torch.arange(len(keys)) - first[row], keys % span - 1, of_term))
    r = max(len(rows) for rows, *_ in items)
    q = max(int(place.max()) + 1 for _, _, place, _, _ in items)
    all_rows = torch.stack([torch.cat([rows, rows[:1].expand(r - len(rows))]) for rows, *_ in items])
    table = torch.zeros(len(items), r, q, dtype=torch.int64)
    slots = torch.empty_like(positions)
    for item, (_, row, place, which, of_term) in enumerate(items):
        table[item, row, place] = which
        slots[item] = (row * q + place)[of_term]
    return all_rows, table, slots
