"""Back through a layer with a narrower state beside the residual stream (:mod:`...linearize.narrow`).

widen    x <- norm(x + h W + b)     g -> g beside, and g W^T to h
narrow   h <- norm(x W + b)         g -> g W^T, and what came back beside
"""

from __future__ import annotations

from torch import Tensor

from ...config import DecompXConfig
from ...linearize.layer import Attention, StateMap, Sublayer
from ..reach import active_ops
from .ledger import Ledger
from .pullback import pull_attention, pull_norm

#: A gradient of the residual stream, ``[b, m, i, d]``, and its positions.
Beside = tuple[Tensor, slice]


def pull_state_map(
    op: StateMap,
    sublayer: Sublayer,
    g: Tensor,
    rows: slice,
    beside: Beside | None,
    config: DecompXConfig,
    ledger: Ledger,
) -> tuple[Tensor, slice, Beside | None]:
    """Back through the way in or out, ``[b, m, i, d_out]`` to ``[b, m, i, d_in]``; with the stream's own gradient."""
    norm = sublayer.post_norm
    if norm is not None and config.ln2:
        ledger.add(f"{op.kind}.norm", g, norm.bias, rows)
        g = pull_norm(norm, g, rows)
    ledger.add(op.kind, g, op.bias, rows)
    if op.kind == "widen":
        return g @ op.weight.T, rows, (g, rows)
    g = g @ op.weight.T
    if beside is None:
        return g, rows, None
    return *_sum(beside, (g, rows)), None


def pull_wide_attention(
    sublayer: Sublayer,
    g: Tensor,
    rows: slice,
    beside: Beside | None,
    wide: Tensor,
    config: DecompXConfig,
    ledger: Ledger,
    *,
    rides: bool,
) -> tuple[Tensor, Beside | None]:
    """Back through ``h <- norm(h + attention(x))``: the gradient of ``h``, and that of ``x`` beside it, if any.

    ``ledger`` is at what reaches the positions after it; ``wide`` ``[b, i, d]`` is the true ``x``.
    """
    if sublayer.post_norm is not None and config.ln1:
        ledger.add("ln1", g, sublayer.post_norm.bias, rows)
        g = pull_norm(sublayer.post_norm, g, rows)
    if sublayer.input is not None:
        ledger.carry("attention_residual", g, sublayer.input[:, rows], rows)
    for op in active_ops(sublayer, config):
        if isinstance(op, Attention):
            part, columns = pull_attention(op, g, rows, ledger, value_bias_rides=rides)
            ledger.carry("attention", part, wide[:, columns], columns)
            beside = (part, columns) if beside is None else _sum((part, columns), beside)
    return g, beside


def _sum(one: Beside, other: Beside) -> Beside:
    """Two gradients, of which one holds the positions of the other; that one is changed in place."""
    (g, rows), (part, some) = (
        (one, other) if one[1].stop - one[1].start >= other[1].stop - other[1].start else (other, one)
    )
    if rows == some:
        return g + part, rows
    g[:, :, some.start - rows.start : some.stop - rows.start] += part
    return g, rows
