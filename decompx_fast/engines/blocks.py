"""The workspace of the forward engine: one allocation that every phase divides anew, and blocks of an axis."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..ops.backends.products import multiply


class Workspace:
    """One flat buffer, divided anew by each phase, so that no block is allocated inside a loop."""

    def __init__(self, numel: int, dtype: torch.dtype, device: torch.device) -> None:
        self._flat = torch.empty(numel, dtype=dtype, device=device)

    def take(self, *shapes: tuple[int, ...]) -> list[Tensor]:
        """Contiguous, uninitialised tensors that do not overlap; they are void at the next call.

        The buffer grows if they do not fit (a layer that is larger than the one the plan was made for).
        """
        sizes = [math.prod(shape) for shape in shapes]
        if sum(sizes) > self._flat.numel():
            self._flat = self._flat.new_empty(sum(sizes))
        parts, start = [], 0
        for size, shape in zip(sizes, shapes, strict=True):
            parts.append(self._flat[start : start + size].view(shape))
            start += size
        return parts

    def beside(self, *shapes: tuple[int, ...]) -> tuple[list[Tensor], Workspace]:
        """The same, and what they leave of the buffer as a workspace of its own, whose calls do not void them."""
        parts = self.take(*shapes)
        rest = Workspace(0, self._flat.dtype, self._flat.device)
        rest._flat = self._flat[sum(part.numel() for part in parts) :]
        return parts, rest


def carve(buffer: Tensor, *shape: int) -> Tensor:
    """The beginning of a contiguous buffer, in this shape."""
    return buffer.view(-1)[: math.prod(shape)].view(shape)


def blocks(length: int, most: int) -> Iterator[slice]:
    """Cut ``range(length)`` in as few blocks of at most ``most`` as possible, of nearly the same size."""
    step = block_length(length, most)
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def block_length(length: int, most: int) -> int:
    """The length of all :func:`blocks` but perhaps the last; 1 at the least."""
    count = max(-(-length // max(most, 1)), 1)
    return max(-(-length // count), 1)


def among(rows: slice | Tensor, few: slice) -> slice | Tensor:
    """Of some rows, by their range or index, a few."""
    return rows[few] if isinstance(rows, Tensor) else slice(*_ends(range(rows.start, rows.stop, rows.step or 1)[few]))


def _ends(numbers: range) -> tuple[int, int, int]:
    return numbers.start, numbers.stop, numbers.step


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums, shares and dots: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def matmul(x: Tensor, weight: Tensor, *, out: Tensor) -> None:
    """``x W`` of contiguous ``[..., d]``, as one product of matrices."""
    multiply(x.flatten(0, -2), weight.to(x.dtype), out=out.flatten(0, -2))
