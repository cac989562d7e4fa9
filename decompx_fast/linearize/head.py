"""A head on one input, linearised: the rows that it reads, its steps on them, and the outputs that are asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..activations import get_activation
from ..errors import UnsupportedModelError
from .affine import Affine
from .norm import Norm
from .terms import Reading

#: Weights of a vocabulary are converted in blocks of so many bytes.
BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class WholeMap:
    """A map of which only some outputs are formed: what the sharing of its bias needs of all of them.

    Attributes:
        map: to all of them, in the dtype of the model.
    """

    map: Affine

    @property
    def bias(self) -> Tensor | None:
        """``[C]`` or ``None``."""
        return self.map.bias

    def functional(self, dtype: torch.dtype) -> Tensor:
        """``W b`` ``[d]``: ``b . (x W) = x . (W b)``."""
        total = self._zeros()
        if self.bias is not None:
            for part in self._parts():
                total += self.map.block(part).to(dtype) @ self.bias[part].to(dtype)
        return total.to(dtype)

    def mean(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """The map to the mean over all outputs, ``[d]`` and a number."""
        total = self._zeros()
        for part in self._parts():
            total += self.map.block(part).double().sum(1)
        bias = None if self.bias is None else self.bias.double().mean().to(dtype)
        return (total / self.map.weight.shape[1]).to(dtype), bias

    def gram(self) -> Tensor:
        """``W W^T`` ``[d, d]`` float64: ``|x W|^2 = x W W^T x``."""
        total = self._zeros(2)
        for part in self._parts():
            block = self.map.block(part).double()
            total += block @ block.T
        return total

    def _zeros(self, axes: int = 1) -> Tensor:
        device = self.map.block(slice(0, 1)).device
        return torch.zeros(*[self.map.weight.shape[0]] * axes, dtype=torch.float64, device=device)

    def _parts(self) -> Iterator[slice]:
        """Blocks of outputs, so that no other copy of a vocabulary's weights is made."""
        d, count = self.map.weight.shape
        step = max(BLOCK_BYTES // (8 * d), 1)
        for start in range(0, count, step):
            yield slice(start, min(start + step, count))


@dataclass(frozen=True)
class HeadStep:
    """One step of a head on the rows that it reads: ``norm(act(x W + b))``, each part optional.

    Attributes:
        weight: ``[d, c]``, or ``None`` for no map; where each row has outputs of its own, ``[b, r, d, c]``.
        bias: ``[c]``, ``[b, r, c]`` where the weight is, or ``None``.
        activation: a name, or ``None``.
        preactivation: ``[b, r, c]``, the true ``x W + b``.
        norm: with its ``std`` ``[b, r]``, or ``None``.
        narrow: whether these are only the outputs that are asked for.
        whole: of a narrow step the map that has all outputs.
    """

    weight: Tensor | None
    bias: Tensor | None
    activation: str | None
    preactivation: Tensor
    norm: Norm | None = None
    narrow: bool = False
    whole: WholeMap | None = None

    @property
    def output(self) -> Tensor:
        """The true output, ``[b, r, c]``."""
        y = self.preactivation if self.activation is None else get_activation(self.activation)(self.preactivation)
        if self.norm is None:
            return y
        y = self.norm.linear(y)
        return y if self.norm.bias is None else y + self.norm.bias

    def at(self, rows: slice) -> HeadStep:
        """The step on some of the rows, where the weights are those of all."""
        norm = None if self.norm is None else replace(self.norm, std=self.norm.std[:, rows])
        return replace(self, preactivation=self.preactivation[:, rows], norm=norm)


@dataclass(frozen=True)
class Head:
    """A head on the rows that it reads: positions each by itself, or the mean of all.

    Attributes:
        reading: which rows, which outputs of each, and in which order they are asked for.
        n: how many positions the input has.
        steps: in order; the last yields the logits, or of many only those that are asked for (:attr:`is_narrow`).
    """

    reading: Reading
    n: int
    steps: tuple[HeadStep, ...]

    @functools.cached_property
    def positions(self) -> tuple[int, ...]:
        """The positions that are read of any item of the batch, in their order."""
        found = self.reading.positions
        if found is None:
            return tuple(sorted({i for start, stop in self.reading.spans(self.n) for i in range(start, stop)}))
        return found

    @property
    def position(self) -> int:
        """The one position that it reads.

        Raises:
            UnsupportedModelError: if it reads several.
        """
        count = len(self.positions)
        if count > 1:
            read = f"the mean of {count} positions" if self.reading.rows is None else f"{count} different positions"
            raise UnsupportedModelError(
                f"the head of this model reads {read}, where one is needed: what was asked for is told of a single "
                "position's attention, so use another method for this model"
            )
        return self.positions[0]

    def read(self, x: Tensor, held: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """What it reads of the states ``x`` ``[b, i, ...]``: ``[b, r, ...]``.

        Args:
            held: the positions that ``x`` has, the head's own first; ``None``: all.
            dtype: of means, and of a reading that is averaged later.
        """
        rows = self.reading.rows
        if self.reading.averaged:  # all that there are, in their order
            return x if dtype is None else x.to(dtype)
        if rows is None:
            parts = []
            for start, stop in self.reading.spans(self.n):
                first = start if held is None else self.positions.index(start)
                parts.append(x[:, first : first + stop - start].mean(1, keepdim=True, dtype=dtype))
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        if len(self.positions) == 1 and rows.shape[1] == 1:
            at = 0 if held is not None else self.positions[0]
            return x[:, at : at + 1]
        if held is not None:
            rows = torch.searchsorted(torch.tensor(self.positions, device=rows.device), rows)
        return x[torch.arange(len(x), device=x.device)[:, None], rows.to(x.device)]

    def at(self, rows: slice) -> Head:
        """Of a head whose outputs are averaged, the same at some of the positions, each by itself."""
        own = self.reading.rows
        reading = replace(self.reading, rows=None if own is None else own[:, rows], averaged=False)
        return replace(self, reading=reading, steps=tuple(step.at(rows) for step in self.steps))

    @property
    def is_narrow(self) -> bool:
        """Whether the last step gives only the outputs that are asked for."""
        return self.steps[-1].narrow

    @property
    def table(self) -> Tensor:
        """The outputs asked for of each row, ``[b, r, q]``, as recomputed here."""
        output = self.steps[-1].output
        return output if self.is_narrow else self.reading.select(output)

    @property
    def logits(self) -> Tensor:
        """The terms, ``[b, t]``, as recomputed here: without others all logits of the head's own reading."""
        return self.reading.pick(self.table)
