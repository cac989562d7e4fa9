"""A linear map of a model as data: views on the weights, in row-vector form ``y = x W + b``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Affine:
    """``y = x W + b``: ``weight`` is ``[d_in, d_out]``, ``bias`` ``[d_out]`` or ``None``.

    Attributes:
        weight, bias: views on what the model holds. Where it stores several maps in turns, group by group of their
            outputs, no view has two axes: then ``weight`` is ``[d_in, groups, size]``, ``bias`` ``[groups, size]``.
        module: what the map was read from, if anything: whoever runs the model can listen there for its output.
        columns: which of the module's outputs are this map's, where several maps are stored as one (:meth:`columns_of`,
            :meth:`part`); of each of so many ``groups`` of them.
        gain: ``[d_out]``, what the model multiplies the module's output by (layer scale): the map is then
            ``(x W + b) * gain``, a diagonal that is folded in when the layer is computed. Or ``None``.
    """

    weight: Tensor
    bias: Tensor | None
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    columns: slice = field(default_factory=lambda: slice(None), repr=False, compare=False)
    groups: int = field(default=1, repr=False, compare=False)
    gain: Tensor | None = None

    def to(self, dtype: torch.dtype) -> Affine:
        """The same map in another dtype; the very same tensors where the dtype is already right. A gain is multiplied
        into it, so that what is given has none."""
        weight, bias = self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype)
        if self.gain is None and weight is self.weight and bias is self.bias:
            return self
        if self.gain is not None:
            gain = self.gain.to(dtype)
            weight, bias = weight * gain, None if bias is None else bias * gain
        return replace(self, weight=weight, bias=bias, gain=None)

    def rows_of(self, outputs: Tensor) -> Tensor:
        """What makes some outputs ``[...]``, ``[..., d_in]``: a copy of these columns of ``W`` alone."""
        return self.weight.T[outputs]

    def block(self, outputs: slice) -> Tensor:
        """The columns of ``W`` of a range of outputs, ``[d_in, .]``."""
        return self.weight[:, outputs]

    @property
    def matrix(self) -> Tensor:
        """``W`` ``[d_in, d_out]``: the view, or, where maps are stored in turns, a copy for the moment."""
        return self.weight.flatten(1)

    @property
    def vector(self) -> Tensor | None:
        """``b`` ``[d_out]``, likewise."""
        return None if self.bias is None else self.bias.flatten()

    def part(self, number: int, count: int) -> Affine:
        """The maps that are stored as one, ``[d_in, count * d_out]``, taken apart again: views, no copies."""
        size = self.weight.shape[1] // count
        return self.columns_of(number * size, (number + 1) * size)

    def columns_of(self, start: int, stop: int, groups: int = 1) -> Affine:
        """The map of some outputs, those from ``start`` to ``stop`` in each of the groups: a view, no copy.

        Args:
            start, stop: as numbers of a group's outputs.
            groups: how many equal groups the outputs come in, one after the other.
        """
        if self.columns != slice(None):
            raise ValueError("a part of a map has no parts")
        columns = slice(start, stop)
        if groups == 1:
            bias = None if self.bias is None else self.bias[columns]
            return Affine(self.weight[:, columns], bias, self.module, columns)
        bias = None if self.bias is None else self.bias.unflatten(0, (groups, -1))[:, columns]
        return Affine(self.weight.unflatten(1, (groups, -1))[..., columns], bias, self.module, columns, groups)

    def of_output(self, y: Tensor) -> Tensor:
        """This map's part of what its module gave, ``[..., d_out]``."""
        if self.groups == 1:
            y = y[..., self.columns]
            return y if self.gain is None else y * self.gain
        return y.unflatten(-1, (self.groups, -1))[..., self.columns].flatten(-2)

    def __call__(self, x: Tensor) -> Tensor:
        vector = self.vector
        y = x @ self.matrix if vector is None else x @ self.matrix + vector
        return y if self.gain is None else y * self.gain


@dataclass(frozen=True)
class Stacked(Affine):
    """A map that the model keeps as several, of which each reads some of the inputs: ``y = sum_n x_n W_n + b``.

    Attributes:
        parts: the ``W_n``, ``[d_n, d_out]``, views on what the model holds. ``weight`` is a tensor without numbers, for
            its shape ``[d_in, d_out]``.
    """

    parts: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, parts: tuple[Tensor, ...], bias: Tensor | None) -> Stacked:
        """The map of these ``W_n``."""
        rows = sum(part.shape[0] for part in parts)
        return cls(parts[0].new_empty(rows, parts[0].shape[1], device="meta"), bias, parts=parts)

    def to(self, dtype: torch.dtype) -> Affine:
        """The same as one map in a dtype."""
        return Affine(self.matrix, self.bias).to(dtype)

    def rows_of(self, outputs: Tensor) -> Tensor:
        """As of any map."""
        return torch.cat([part.T[outputs] for part in self.parts], dim=-1)

    def block(self, outputs: slice) -> Tensor:
        """As of any map; a copy for the moment."""
        return torch.cat([part[:, outputs] for part in self.parts])

    @property
    def matrix(self) -> Tensor:
        """``W`` ``[d_in, d_out]``: a copy for the moment."""
        return torch.cat(self.parts)
