"""How many floating-point operations an explanation takes, and what processes exchange, as formulas of its sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...bias_rules import VECTOR_RULES

if TYPE_CHECKING:
    from .costs import Costs


def operations(costs: Costs, path: str) -> dict[str, int]:
    """Those of the products, by part; a multiplication and an addition are two."""
    s = costs.shape
    rows = costs.positions * costs.k
    values, mixed = s.kv_heads * s.head_size, s.heads * s.head_size
    dense = s.layers - costs.starts_diagonal - (not costs.keeps_rows)
    whole = s.layers - (not costs.keeps_rows)
    pairs = s.pairs(costs.n, slice(int(costs.starts_diagonal), s.layers - (not costs.keeps_rows)))
    if costs.grouped:
        first = 2 * costs.positions * costs.n * mixed + 2 * rows * mixed * s.d
    else:
        first = 2 * rows * s.heads * s.d
    networks = s.networks if costs.config.ffn else 0
    products = 3 if s.opens_gates(costs.config) else 2
    direct = 2 * products * costs.k * s.d * s.f * networks
    folded = 2 * s.d * s.d * (s.f + costs.k)
    last = (
        0
        if costs.keeps_rows
        else s.rows * costs.batch * (2 * s.heads * costs.n * costs.k * s.d + 2 * costs.k * s.d * 2 * mixed + direct)
    )
    parts = {
        "first attention": first * costs.starts_diagonal,
        "projections": dense * 2 * rows * s.d * (values + mixed),
        "mixing": 2 * costs.batch * pairs * costs.k * mixed,
        "position-wise": whole * costs.positions * (folded if path == "operator" else direct),
        "last row": last,
    }
    if s.outputs:
        parts["vocabulary"] = s.vocabulary_flops(costs.batch, costs.config.bias)
    if s.taps:
        parts["convolution"] = 2 * costs.positions * s.taps * s.d * s.d
    return {name: max(int(count), 0) for name, count in parts.items()}


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
