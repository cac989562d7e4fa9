"""Networks of which each position goes through a few, with the choice and its weights frozen: mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .layer import FeedForward


@dataclass(frozen=True)
class RoutedPart:
    """One network on the positions that are sent to it.

    Attributes:
        network: with the constants of these positions, ``[1, r, f]``.
        at: ``[r]`` int64, these positions on the joined axis of batch and positions.
        weight: ``[r]``, what its output is multiplied by, its bias included.
    """

    network: FeedForward
    at: Tensor
    weight: Tensor

    def among(self, rows: slice | Tensor) -> RoutedPart:
        """The same for those of its positions that are among ``rows`` of the joined axis, numbered as there; an index
        ascends."""
        if isinstance(rows, Tensor):
            place = torch.searchsorted(rows, self.at)
            held = rows[place.clamp_max(len(rows) - 1)] == self.at
            return self.chosen(held, place[held])
        step = 1 if rows.step is None else rows.step
        offset = self.at - rows.start
        held = (offset >= 0) & (self.at < rows.stop) & (offset % step == 0)
        return self.chosen(held, offset[held] // step)

    def chosen(self, held: Tensor, at: Tensor) -> RoutedPart:
        """The same for some of its positions, ``held`` ``[r]``, which are called ``at`` from now on."""
        constants = {name: value[:, held] for name, value in self.network.constants.items()}
        return RoutedPart(self.network.replace_constants(constants), at, self.weight[held])


@dataclass(frozen=True)
class Routed:
    """``sum_e weight[e] * network_e(x)``, over the networks ``e`` that a position is sent to.

    Attributes:
        parts: those networks that any position is sent to.
        active: how many a position is sent to.
        positions: how many there are, on the joined axis of batch and positions.
    """

    kind: ClassVar[str] = "ffn"
    norm: ClassVar[None] = None

    parts: tuple[RoutedPart, ...]
    active: int
    positions: int

    @property
    def constants(self) -> dict[str, Tensor]:
        """What depends on the input, less who goes where."""
        found: dict[str, Tensor] = {}
        for number, part in enumerate(self.parts):
            found |= {f"{number}.{name}": value for name, value in part.network.constants.items()}
        return found

    def replace_constants(self, constants: Mapping[str, Tensor]) -> Routed:
        """The same with other :attr:`constants`."""
        parts = []
        for number, part in enumerate(self.parts):
            own = {name: constants[f"{number}.{name}"] for name in part.network.constants}
            parts.append(replace(part, network=part.network.replace_constants(own)))
        return replace(self, parts=tuple(parts))

    def among(self, rows: slice | Tensor) -> Routed:
        """The same at some positions of the joined axis of batch and positions."""
        found = [part.among(rows) for part in self.parts]
        count = len(rows) if isinstance(rows, Tensor) else len(range(self.positions)[rows])
        return replace(self, parts=tuple(part for part in found if len(part.at)), positions=count)

    def __call__(self, x: Tensor) -> Tensor:
        """The forward value, ``[b, i, d]``; ``x`` gives its shape and is not read, since pre-activations are known."""
        out = torch.zeros_like(x)
        for part in self.parts:
            out.flatten(0, 1).index_add_(0, part.at, part.weight.unsqueeze(-1) * part.network(x)[0])
        return out
