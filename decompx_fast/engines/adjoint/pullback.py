"""The transpose of each component of a linearised layer: from ``dy/d(output)`` to ``dy/d(input)``, written out.

With its constants frozen a component is ``x -> x A + b``. A gradient goes back through it as ``g -> g A^T``, and the
bias contributes ``g . b`` to ``y``:

    norm          y = C(x) / s * gamma              g -> C(g * gamma / s),      C(x) = x - mean_d(x) = C^T
    feed-forward  y = (slope * (x W_1)) W_2         g -> (slope * (g W_2^T)) W_1^T
    convolution   y[i] = slope * sum_t e[i+t-r] W_t     g[j] -> sum_t (slope * g)[j-t+r] W_t^T   (to the embedding e)
    attention     y[i] = sum_hj alpha[h,i,j] x[j] W_V^h W_O^h
                                                    g[j] -> sum_hi alpha[h,i,j] g[i] (W_V^h W_O^h)^T

Gradients are ``[b, m, i, d]``: ``m`` directions at once, and of the positions only the range ``rows`` (a slice with a
start and a stop) outside of which they are zero. The head reads one position, so until an attention makes it all of
them, every component has one row to do.

Each function notes the biases that it passes in a :class:`BiasLedger`, from the output to the input.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ...activations import get_activation, linear_piece
from ...config import DecompXConfig
from ...linearize.layer import (
    WORKSPACE_BYTES,
    Attention,
    AttentionPattern,
    Convolution,
    FeedForward,
    HeadStep,
    Norm,
    Routed,
)
from ..blocks import blocks
from ..head import head_piece

#: How large a block of FFN hidden, and of attention weights, may be on a CPU, so that it stays in the cache with what
#: is made of it: measured from 1 to 64 MiB at 2,048 positions. Blocks of 64 MiB, which malloc gets anew from the system
#: each time, take twice as long.
CPU_HIDDEN_BYTES, CPU_ALPHA_BYTES = 6 << 20, 2 << 20

#: Target positions of a block of attention weights, while it may hold several heads.
MIX_ROWS = 512


def _most_bytes(like: Tensor, on_cpu: int) -> int:
    """How large the blocks may be that a component is pulled back in; fewer and larger ones keep a GPU busy."""
    return min(WORKSPACE_BYTES, on_cpu) if like.device.type == "cpu" else WORKSPACE_BYTES


class BiasLedger(Protocol):
    """What takes note of the biases that a gradient meets."""

    def add(self, place: str, g: Tensor, bias: Tensor | None, rows: slice) -> None:
        """Note ``g[i] . bias`` for ``rows``; ``bias`` is ``[d]``, or ``[b, i, d]`` with these ``i``."""

    def note(self, place: str, share: Tensor, rows: slice) -> None:
        """Note what a bias adds at ``rows``, ``[b, m, i]``."""

    def credit(self, scores: Tensor, rows: slice) -> None:
        """Note scores ``[b, m, k]`` that are the tokens' own under every rule, for the tokens ``rows``."""


def pull_norm(norm: Norm, g: Tensor, rows: slice) -> Tensor:
    """Back through the linear part of a norm; ``[b, m, i, d]`` to the same."""
    std = norm.std[:, None, rows, None]
    g = g / std if norm.weight is None else (g * norm.weight).div_(std)
    return g.sub_(g.mean(-1, keepdim=True)) if norm.centre else g


def pull_feed_forward(op: FeedForward, g: Tensor, rows: slice, config: DecompXConfig, ledger: BiasLedger) -> Tensor:
    """Back through a feed-forward network, in blocks of rows; ``[b, m, i, d]`` to the same."""
    ledger.add("ffn.out", g, op.b_out, rows)
    b, m, n_rows, _ = g.shape
    out = g.new_empty(b, m, n_rows, op.w_in.shape[0])
    row_bytes = b * m * op.w_out.shape[0] * g.element_size()
    for block in blocks(n_rows, _most_bytes(g, CPU_HIDDEN_BYTES) // row_bytes):
        positions = slice(rows.start + block.start, rows.start + block.stop)
        # One product of all directions: of a part that lies in pieces, torch makes one of each direction.
        hidden = g[:, :, block].contiguous() @ op.w_out.T  # [b, m, i, f]
        if op.value is None or op.w_gate is None:
            out[:, :, block] = _pull_activation(op, hidden, positions, config, ledger)
        else:
            out[:, :, block] = _pull_gated(op, op.w_gate, hidden, positions, config, ledger)
    return out


class _Among:
    """A ledger of the positions that one network of several is given, all of them as one input.

    Args:
        ledger: of all positions.
        item, position: ``[r]``, where each stands in the gradient ``[b, m, i, d]`` of ``rows``.
        shape: ``b`` and ``i`` of that.
    """

    def __init__(self, ledger: BiasLedger, item: Tensor, position: Tensor, shape: tuple[int, int], rows: slice) -> None:
        self._ledger, self._item, self._position, self._shape, self._rows = ledger, item, position, shape, rows

    def add(self, place: str, g: Tensor, bias: Tensor | None, rows: slice) -> None:
        if bias is not None:
            self.note(place, g @ bias if bias.ndim == 1 else (g * bias.unsqueeze(1)).sum(-1), rows)

    def note(self, place: str, share: Tensor, rows: slice) -> None:
        b, n_rows = self._shape
        each = share.new_zeros(b, n_rows, share.shape[1])
        each[self._item[rows], self._position[rows]] = share[0].T
        self._ledger.note(place, each.transpose(1, 2), self._rows)

    def credit(self, scores: Tensor, rows: slice) -> None:
        raise TypeError("a network has nothing that is the tokens' own")


def pull_routed(op: Routed, g: Tensor, rows: slice, config: DecompXConfig, ledger: BiasLedger) -> Tensor:
    """Back through networks of which each position went through a few; ``[b, m, i, d]`` to the same."""
    b, _, n_rows, _ = g.shape
    n = op.positions // b
    out = g.new_zeros(b, n_rows, g.shape[1], g.shape[3])  # [b, i, m, d]
    for part in op.parts:
        held = (part.at % n >= rows.start) & (part.at % n < rows.stop)
        here = part.chosen(held, part.at[held])
        item, position = here.at // n, here.at % n - rows.start
        given = g[item, :, position].transpose(0, 1) * here.weight.unsqueeze(-1)  # [m, r, d]
        among = _Among(ledger, item, position, (b, n_rows), rows)
        part_of = slice(0, len(here.at))
        pulled = pull_feed_forward(here.network, given.unsqueeze(0), part_of, config, among)[0]
        out.index_put_((item, position), pulled.transpose(0, 1), accumulate=True)
    return out.transpose(1, 2).contiguous()


def pull_convolution(
    op: Convolution, g: Tensor, rows: slice, config: DecompXConfig, ledger: BiasLedger
) -> tuple[Tensor, slice]:
    """Back through a convolution to the embedding; ``[b, m, i, d]`` of ``rows`` to ``[b, m, j, d]`` of other rows."""
    activation = get_activation(op.activation)
    slope, intercept = linear_piece(activation, op.preactivation[:, rows], config.activation)
    ledger.add("convolution.intercept", g, intercept, rows)
    g = g * slope.unsqueeze(1)
    ledger.add("convolution.in", g, op.bias, rows)
    return op.transposed(g, rows)


def _pull_activation(op: FeedForward, hidden: Tensor, rows: slice, config: DecompXConfig, ledger: BiasLedger) -> Tensor:
    """``act(x W_1 + b_1)`` as ``slope * (x W_1 + b_1) + intercept``."""
    activation = get_activation(op.activation)
    slope, intercept = linear_piece(activation, op.preactivation[:, rows], config.activation)
    ledger.add("ffn.intercept", hidden, intercept, rows)
    hidden.mul_(slope.unsqueeze(1))
    ledger.add("ffn.in", hidden, op.b_in, rows)
    return hidden @ op.w_in.T


def _pull_gated(
    op: FeedForward,
    w_gate: Tensor,
    hidden: Tensor,
    rows: slice,
    config: DecompXConfig,
    ledger: BiasLedger,
) -> Tensor:
    """``act(G) * U`` with ``act(G)`` frozen, or half of it through ``G``, half through ``U``."""
    half = config.gate == "half"
    factor, frozen_gate = op.gate_factor(half, rows), op.frozen_gate(rows)
    through_gate = None
    if factor is not None:
        activation, zeta = get_activation(op.activation), op.preactivation[:, rows]
        slope, intercept = linear_piece(activation, zeta, config.activation)
        ledger.add("ffn.intercept", hidden, None if intercept is None else intercept * factor, rows)
        through_gate = hidden * (slope * factor).unsqueeze(1)
        ledger.add("ffn.gate", through_gate, op.b_gate, rows)
    through_value = hidden.mul_((0.5 * frozen_gate if half else frozen_gate).unsqueeze(1))
    ledger.add("ffn.in", through_value, op.b_in, rows)
    pulled = through_value @ op.w_in.T
    return pulled if through_gate is None else pulled + through_gate @ w_gate.T


def pull_attention(
    op: Attention, g: Tensor, rows: slice, ledger: BiasLedger, *, value_bias_rides: bool
) -> tuple[Tensor, slice]:
    """Back through an attention; ``[b, m, i, d]`` of the target positions ``rows`` to ``[b, m, j, d]`` of those that
    they attend, which are told as well: where it is causal or windowed, not all; of a cross attention, of the memory.

    Args:
        value_bias_rides: whether the value bias of position ``j`` is token ``j``'s own (the released code, in its
            first layer); else ``b_V W_O + b_O`` is one bias of the target position.
    """
    rides = value_bias_rides and op.has_value_bias
    ledger.add("attention" if op.memory is None else "cross_attention", g, op.b_out if rides else op.bias(rows), rows)
    mixed = (g @ op.w_out.T).unflatten(-1, (op.heads, -1))  # [b, m, i, h, v]
    columns = op.pattern.columns(rows)
    out: Tensor | None = None
    for part in op.parts:
        values = pull_mix(part.pattern, mixed, rows)[:, :, columns].flatten(-2)  # [b, m, j, (g v)]
        if value_bias_rides and part.b_value is not None:
            ledger.credit(values @ part.b_value, columns)
        out = values @ part.w_value.T if out is None else out.add_(values @ part.w_value.T)
    assert out is not None
    return out, columns


def pull_mix(pattern: AttentionPattern, g: Tensor, rows: slice) -> Tensor:
    """``sum_i alpha[h,i,j] g[i,h]``, summed over the heads that read the same key-value head.

    The weights are made in blocks of target positions, and serve all directions at once: ``m + 1`` products of
    ``N^2 v`` per head. (The backward pass of a fused attention gives the same with query and key detached, but
    recomputes the weights for each direction, and the unwanted gradients with it: ``5 m + 2`` products.)

    Args:
        g: ``[b, m, i, h, v]``, of the target positions ``rows``.

    Returns:
        ``[b, m, j, g, v]``, of all positions.
    """
    b, m, n_rows, heads, size = g.shape
    kv_heads, n = pattern.key.shape[1:3]
    group, most_bytes = heads // kv_heads, _most_bytes(g, CPU_ALPHA_BYTES)
    height, width = pattern.block_shape(min(n_rows, MIX_ROWS))
    at_once = most_bytes // (b * group * height * width * g.element_size())
    out = g.new_empty(b, m, n, kv_heads, size)
    for kv in blocks(kv_heads, at_once):
        part = g[:, :, :, kv.start * group : kv.stop * group].permute(0, 3, 2, 1, 4)  # [b, h, i, m, v]
        out[:, :, :, kv] = (
            _pull_heads(pattern.of_heads(kv), part.flatten(-2), rows, most_bytes)
            .unflatten(-1, (m, size))
            .permute(0, 3, 2, 1, 4)
        )
    return out


def _pull_heads(pattern: AttentionPattern, g: Tensor, rows: slice, most_bytes: int) -> Tensor:
    """The same for ``g`` as ``[b, h, i, (m v)]``, all heads at once; ``[b, g, j, (m v)]``."""
    b, _, _, width = g.shape
    kv_heads, n = pattern.key.shape[1:3]
    out = g.new_zeros(b * kv_heads, n, width)
    for block, columns, alpha in pattern.blocks(rows, most_bytes):
        part = g[:, :, block.start - rows.start : block.stop - rows.start]
        # The heads of a group follow each other, so they join the positions as one axis to be summed over.
        part = part.reshape(b * kv_heads, -1, width)
        alpha = alpha.reshape(b * kv_heads, -1, alpha.shape[-1])
        if isinstance(columns, slice):
            out[:, columns].baddbmm_(alpha.transpose(1, 2), part)
        else:
            out.index_add_(1, columns, torch.bmm(alpha.transpose(1, 2), part))
    return out.view(b, kv_heads, n, width)


def pull_head_step(step: HeadStep, place: str, g: Tensor, config: DecompXConfig, ledger: BiasLedger) -> Tensor:
    """Back through one step ``norm(act(x W + b))`` of a head; ``[b, m, r, c]`` to ``[b, m, r, d]``."""
    rows = slice(0, g.shape[2])
    if step.norm is not None:
        ledger.add(f"{place}.norm", g, step.norm.bias, rows)
        g = pull_norm(step.norm, g, rows)
    if step.activation is not None:
        slope, intercept = head_piece(step, config)
        ledger.add(f"{place}.intercept", g, intercept, rows)
        g = g * slope.unsqueeze(1)
    ledger.add(place, g, step.bias, rows)
    if step.weight is None:
        return g
    if step.weight.ndim == 2:
        return g @ step.weight.T
    return torch.einsum("bmrc,brdc->bmrd", g, step.weight)
