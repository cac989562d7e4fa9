"""In which blocks an explanation runs: those that cost the least time of all that fit in a workspace.

Blocks cost time in two ways. Where not all attention weights are held at once, every block of sources computes them
anew. And a product of few rows takes as long as one of more rows, since the weights are read and laid out all the same.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import torch

from ..memory import default_workspace
from .costs import SMALLEST, Blocks, Costs

#: Operations of a matrix product in the time that the softmax of one attention weight takes; memory bounds it.
SOFTMAX_OPERATIONS = 200

#: Rows of a product in the time that reading its weights takes.
ROWS_OF_A_BLOCK = 32

#: The part of an explanation's operations that the default workspace may cost in time, rather than be larger.
OVERHEAD_PART = 8

#: However little memory is asked for, blocks get this part of what is held without them.
LEAST_PART = 4

#: Rows of attention weights that are tried where not all can be held: with more, nothing is gained.
ALPHA_ROWS = (256, 64, 8, 1)

#: How many sizes of the buffer are tried.
BUFFERS = 10


def floor_bytes(costs: Costs, path: str) -> int:
    """All but the state with the smallest blocks: most of it is what linearising takes anyway."""
    return costs.beside_bytes(SMALLEST, path)


@functools.lru_cache(maxsize=512)
def choose_blocks(costs: Costs, path: str, asked: int | None, device: torch.device) -> tuple[int, Blocks]:
    """The workspace, and the blocks that fit in it.

    Linearising a layer, and copies of its weights, take what they take. So the default is room for blocks on top of
    that; and where less is asked for than is held anyway, nothing would be gained by the smallest blocks.

    Args:
        costs, path: the request.
        asked: bytes that all but the state should fit in, if the user named some.
        device: where it runs.
    """
    floor = floor_bytes(costs, path)
    if asked is not None:
        budget = max(asked, floor + floor // LEAST_PART)
        return budget, fit_blocks(costs, budget, path)
    room = default_workspace(0 if costs.on_disk else costs.state_bytes, device)
    most = costs.beside_bytes(costs.most, path) - floor
    while True:
        blocks = fit_blocks(costs, floor + room, path)
        if room >= most or overhead(costs, blocks, path) * OVERHEAD_PART <= _operations(costs, path):
            return floor + room, blocks
        room += room // 2


def fit_blocks(costs: Costs, budget: int, path: str) -> Blocks:
    """The fastest blocks with which all but the state fits in the budget; one source and one row where none do."""
    whole = costs.most
    found = SMALLEST
    if costs.beside_bytes(whole, path) <= budget:
        found = whole
    else:
        fitting = (blocks for blocks in _candidates(costs, budget, path) if costs.beside_bytes(blocks, path) <= budget)
        found = min(fitting, key=lambda blocks: overhead(costs, blocks, path), default=SMALLEST)
    if path == "operator":  # rows that take the direct path after all make do with the buffer there is
        room = costs.buffer_numel(found, path) - costs.copied_numel(found.operator_rows)
        rows = _clamp(room // costs.direct_width(), costs.positions)
        found = dataclasses.replace(found, direct_rows=rows)
    return found


def overhead(costs: Costs, blocks: Blocks, path: str) -> int:
    """What these blocks cost in a layer, in operations, beside what has to be computed."""
    s = costs.shape
    mixings, mixed = _count(costs.k, blocks.sources), s.heads * s.head_size
    passes = mixings if blocks.alpha_rows < costs.n else 1
    alpha = costs.positions * costs.n * (2 * mixed + SOFTMAX_OPERATIONS * s.heads)
    extra = (passes - 1) * alpha + passes * _count(costs.n, blocks.alpha_rows) * ROWS_OF_A_BLOCK * 2 * costs.n * mixed
    extra += mixings * ROWS_OF_A_BLOCK * 4 * s.d * mixed
    if path == "operator":  # functionals of each bias are pulled through the whole network
        return extra + _count(costs.positions, blocks.operator_rows) * ROWS_OF_A_BLOCK * 24 * s.d * s.f
    return extra + _count(costs.positions, blocks.direct_rows) * ROWS_OF_A_BLOCK * 4 * s.d * s.f


def _operations(costs: Costs, path: str) -> int:
    """Of one layer."""
    return sum(costs.flops(path).values()) // costs.shape.layers


def _candidates(costs: Costs, budget: int, path: str) -> Iterator[Blocks]:
    """Blocks that a buffer of some size, and what it leaves of the budget for the rest of each phase, have room for."""
    most = budget - costs.linearizing_bytes()
    rows = sorted({costs.n, *(rows for rows in ALPHA_ROWS if rows < costs.n)}, reverse=True)
    for step in range(1, BUFFERS + 1):
        buffer = most * step // BUFFERS
        room = budget - costs.layer_bytes() - buffer
        for alpha_rows in rows if buffer > 0 and room > 0 else ():
            none = Blocks(1, alpha_rows, 1, 1)
            beside = room - costs.mixing_bytes(none)
            if beside < 0:
                continue
            sources = _most(costs.most.sources, buffer, costs.source_width() * costs.item, beside, costs.source_bytes())
            beside = room - costs.position_wise_bytes(none, path)
            if path == "operator":
                width, each = costs.operator_width(), max(costs.operator_row_bytes())
            else:
                width, each = costs.direct_width(), costs.direct_row_bytes()
            width += costs.copied_numel(1)
            rows_at_once = _most(costs.most.direct_rows, buffer, width * costs.item, beside, each)
            yield Blocks(sources, alpha_rows, rows_at_once, rows_at_once)


def _most(count: int, buffer: int, width: int, room: int, each: int) -> int:
    """How many fit both in the buffer, ``width`` bytes each, and in the room beside it, ``each`` bytes each."""
    return _clamp(min(buffer // max(width, 1), room // max(each, 1)), count)


def _count(length: int, most: int) -> int:
    return -(-length // most)


def _clamp(value: int, most: int) -> int:
    return max(1, min(value, most))
