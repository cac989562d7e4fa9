"""How many floating-point operations an explanation takes, and what processes exchange, as formulas of its sizes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ...bias_rules import VECTOR_RULES
from ..blocks import blocks
from ..shape import Mask

if TYPE_CHECKING:
    from .costs import Costs


def operations(costs: Costs, path: str) -> dict[str, int]:
    """Those of the products, by part; a multiplication and an addition are two."""
    s = costs.shape
    rows, (projected, living) = costs.positions * costs.k, living_vectors(costs)
    values, mixed = s.kv_heads * s.head_size, s.heads * s.head_size
    dense = s.layers - costs.starts_diagonal - (not costs.keeps_rows)
    whole = s.layers - (not costs.keeps_rows)
    masks = s.masks_of(slice(int(costs.starts_diagonal), s.layers - (not costs.keeps_rows)))
    if costs.grouped:
        first = 2 * costs.positions * costs.n * mixed + 2 * rows * mixed * s.d
    else:
        first = 2 * rows * s.heads * s.d
    networks = s.networks if costs.config.ffn else 0
    products = 3 if s.opens_gates(costs.config) else 2
    network = 2 * products * s.d * s.f * networks
    direct, folded = network * living, 2 * s.d * s.d * (s.f * costs.positions + living)
    row = 2 * s.heads * costs.n * costs.k * s.d + 2 * costs.k * s.d * 2 * mixed + network * costs.k
    last = 0 if costs.keeps_rows else s.rows * costs.batch * row
    parts = {
        "first attention": first * costs.starts_diagonal,
        "projections": dense * 2 * projected * s.d * (values + mixed),
        "mixing": 2 * costs.batch * mixed * sum(mixed_pairs(costs, mask) for mask in masks),
        "position-wise": whole * (folded if path == "operator" else direct),
        "last row": last,
    }
    if s.outputs:
        parts["vocabulary"] = s.vocabulary_flops(costs.batch, costs.config.bias)
    if s.taps:
        parts["convolution"] = 2 * costs.positions * s.taps * s.d * s.d
    return {name: max(int(count), 0) for name, count in parts.items()}


def living_vectors(costs: Costs) -> tuple[int, int]:
    """At how many positions and sources vectors are computed, by attentions and position by position: at all, or in a
    decoder, block by block, at those that have come so far (and at one more that is watched, :mod:`.live`)."""
    every = costs.positions * costs.k
    if not (costs.cuts and costs.shape.causal):
        return every, every
    height, width = costs.cut
    watched = (costs.k - 1) / costs.k if costs.config.bias in VECTOR_RULES else 0
    by_sources = costs.positions * (costs.k + width) // 2
    by_rows = costs.positions * ((costs.k + max(costs.k * height / costs.n, 1)) / 2 + watched)
    return min(by_sources, every), min(int(by_rows), every)


def mixed_pairs(costs: Costs, mask: Mask) -> int:
    """Over how many pairs of positions a mixing goes, of all sources of an input together."""
    if not (costs.cuts and costs.shape.causal):
        return mask.pairs(costs.n) * costs.k
    return _pairs_of_blocks(mask, costs.n, costs.k, costs.cut[1])


@functools.lru_cache(maxsize=256)
def _pairs_of_blocks(mask: Mask, n: int, k: int, width: int) -> int:
    """The same by blocks of sources, each from the first position that it reaches."""
    return sum((some.stop - some.start) * mask.pairs(n - some.start * n // k) for some in blocks(k, width))


#: A sum of weights and a number of vectors that are not zero, in float64, for each position and bias.
SUMS_BYTES = 16

#: Biases of a head: most have two maps.
HEAD_SITES = 2


def exchanged_bytes(costs: Costs) -> int:
    """What each of several processes that divide the sources sends to the others: sums for each bias and position, and
    scores."""
    if costs.ranks == 1:
        return 0
    s = costs.shape
    read = s.rows * costs.batch
    numbers = (s.layers - (not costs.keeps_rows)) * s.sites * costs.positions + HEAD_SITES * read
    numbers += 0 if costs.keeps_rows else s.sites * read
    sums = SUMS_BYTES * numbers if costs.config.bias in VECTOR_RULES else 0
    scores = costs.k * costs.batch * s.classes * costs.wide
    return 2 * (costs.ranks - 1) * sums // costs.ranks + (costs.ranks - 1) * scores
