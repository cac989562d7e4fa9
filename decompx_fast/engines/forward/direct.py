"""Everything between two mixings, step by step, on a block of positions: what the operator path does at once.

Positions do not meet here, so batch and positions are one axis ``p``, and a block is ``[1, p, k, d]``. Each function
follows an equation of DecompX (ACL 2023) and works in place.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ...activations import get_activation, linear_piece
from ...bias_rules import FUNCTIONAL_RULES
from ...config import DecompXConfig
from ...linearize.layer import Attention, Convolution, FeedForward, Norm, Op, Routed, StateMap, Sublayer, networks_of
from ...ops import network, network_is_fused
from ..blocks import Workspace, carve, matmul, wide
from .sharing import PendingBias, Sharing


def finish_sublayer_(
    x: Tensor,
    sublayer: Sublayer,
    config: DecompXConfig,
    sharing: Sharing,
    workspace: Workspace,
    *,
    before: Sharing | None = None,
    pending: PendingBias | None = None,
    branch: Tensor | None = None,
) -> None:
    """The position-wise part of ``X <- post_norm(X + out_norm(op(pre_norm(X))))``, in place.

    Args:
        x: ``[1, p, k, d]``, contiguous: the state, with what the attention gave already added unless it is in
            ``branch``.
        sublayer: with its constants at these positions (:func:`at_rows`).
        config, sharing: the options.
        before: how the biases before an attention of this sublayer, and of networks beside it, reach the sources;
            ``None``: as those after it.
        workspace: for the buffers that :func:`buffer_widths` tells.
        pending: the bias of the attention, if it is still to be added.
        branch: ``[1, p, k, d]``, what the attention gave, where it is kept apart; overwritten.
    """
    with_norm = config.ln1 if sublayer.has_attention else config.ln2
    if pending is not None and pending.shares is not None:
        pending.add_(x if branch is None else branch, sharing)
        pending = None
    networks = [op for op in sublayer.ops if isinstance(op, (FeedForward, Routed)) and config.ffn]
    out_norm, post_norm = (sublayer.out_norm, sublayer.post_norm) if with_norm else (None, None)
    bias = None  # of the branch, still to be added
    if networks or out_norm is not None:
        pre_norm = sublayer.pre_norm if with_norm else None
        norms = [pre_norm if op.norm is None else op.norm if config.ln2 else None for op in networks]
        branch, bias = _branch(x, branch, networks, norms, config, before or sharing, workspace)
    if branch is not None and out_norm is not None:
        sharing.add_(branch, bias)
        if pending is not None:
            pending.add_(branch, sharing)
        bias, pending = None, None
        sharing.norm_(branch, out_norm)
    if branch is not None and pending is None:
        sharing.add_norm_(x, branch, bias, post_norm)
        return
    if branch is not None:
        sharing.add_(branch, bias)
        x += branch
    if pending is not None:
        pending.add_(x, sharing)
    sharing.norm_(x, post_norm)


def does_nothing(sublayer: Sublayer, config: DecompXConfig) -> bool:
    """Whether a sublayer has no position-wise part but what is left to be added of its attention."""
    with_norm = config.ln1 if sublayer.has_attention else config.ln2
    normed = with_norm and (sublayer.out_norm is not None or sublayer.post_norm is not None)
    return not normed and all(isinstance(op, Attention) or (op.kind == "ffn" and not config.ffn) for op in sublayer.ops)


def _branch(
    x: Tensor,
    branch: Tensor | None,
    networks: list[FeedForward | Routed],
    norms: list[Norm | None],
    config: DecompXConfig,
    sharing: Sharing,
    workspace: Workspace,
) -> tuple[Tensor, Tensor | None]:
    """What the feed-forward networks of a sublayer, each after a norm, add to the residual stream, together with
    ``branch``, and the bias that is still to be shared by it (where it comes from one network alone)."""
    shape = x.shape[:-1]
    plain = all(isinstance(op, FeedForward) and op.value is None for op in networks)
    one_op = plain and is_one_op(config, x.device, x.dtype, sharing.backend)
    normed = any(norm is not None for norm in norms)
    widths = branch_widths(x.shape[-1], networks, config, normed, branch is not None, one_op)
    buffers = workspace.take(*((*shape, width) for width in widths))
    fresh = branch is None  # nothing in it yet
    branch = buffers.pop(0) if branch is None else branch
    room = buffers.pop(0) if normed else None
    if not networks:
        return (branch.zero_() if fresh else branch), None
    u, last = x, None
    for op, norm in zip(networks, norms, strict=True):
        if norm is not last:
            u, last = _normed(x, norm, room, sharing), norm
        if isinstance(op, Routed):
            branch = branch.zero_() if fresh else branch
            add_routed_(branch, u, op, config, sharing, buffers)
            fresh = False
            continue
        if fresh and len(networks) == 1:
            feed_forward(u, op, config, sharing, buffers[1:], branch)
            return branch, op.b_out
        out = branch if fresh else buffers[0]
        feed_forward(u, op, config, sharing, buffers[1:], out)
        sharing.add_(out, op.b_out)
        if not fresh:
            branch += out
        fresh = False
    return branch, None


def _normed(x: Tensor, norm: Norm | None, room: Tensor | None, sharing: Sharing) -> Tensor:
    """``x`` ``[1, p, k, d]`` after a norm, in the room for it; ``x`` itself without one."""
    if norm is None or room is None:
        return x
    sharing.norm_(room.copy_(x), norm)
    return room


def branch_widths(
    d: int,
    networks: list[FeedForward | Routed],
    config: DecompXConfig,
    has_pre_norm: bool,
    has_branch: bool,
    one_op: bool,
) -> list[int]:
    """Widths of the buffers that the branch of a sublayer takes at each position and source, the state aside."""
    widths = [] if has_branch else [d]
    if has_pre_norm:
        widths.append(d)
    routed = any(isinstance(op, Routed) for op in networks)
    if networks:
        widths.append(d if has_branch or routed or len(networks) > 1 else 0)
    if networks and not one_op:
        each = [network for op in networks for network in networks_of(op)]
        most = max((network.w_in.shape[1] for network in each), default=0)
        half = config.gate == "half"
        halved = any(network.value is not None and (half or network.shift) for network in each)
        widths += [most, most] if halved else [most]
    if routed:
        widths.append(d)
    return widths


def add_routed_(
    branch: Tensor, u: Tensor, op: Routed, config: DecompXConfig, sharing: Sharing, buffers: list[Tensor]
) -> None:
    """Add what each network gives the positions that are sent to it; ``branch`` and ``u`` are ``[1, p, k, d]``.

    ``buffers`` are those of :func:`branch_widths`, the branch and the normed state aside: for a network's output, its
    hidden layers, and its input.
    """
    out, *hidden, given = buffers
    for part in op.parts:
        shape = (1, len(part.at), *u.shape[2:])
        own, result, there = carve(given, *shape), carve(out, *shape), sharing.at(part.at)
        torch.index_select(u[0], 0, part.at, out=own[0])
        feed_forward(own, part.network, config, there, hidden, result)
        there.add_(result, part.network.b_out)
        result *= part.weight[None, :, None, None].to(result.dtype)
        branch[0].index_add_(0, part.at, result[0])


def is_one_op(config: DecompXConfig, device: torch.device, dtype: torch.dtype, backend: str) -> bool:
    """Whether plain networks on a state of this dtype are computed by one op, which forms no hidden layer."""
    return (
        config.activation != "linear" and config.bias in FUNCTIONAL_RULES and network_is_fused(device, dtype, backend)
    )


def feed_forward(
    u: Tensor, op: FeedForward, config: DecompXConfig, sharing: Sharing, hidden: list[Tensor], out: Tensor
) -> None:
    """Equations 8 to 10, all but the last bias: ``out = (theta * (u W_1 + share of b_1)) W_2``; gated networks alike.

    Args:
        u: ``[1, p, k, d]``, contiguous; left as it is.
        op: with its constants at these positions, ``[1, p, f]``.
        hidden: one buffer of the size of ``[1, p, k, f]``, or two where each factor of a gate gets half; none where the
            network is one op (:func:`is_one_op`).
        out: ``[1, p, k, d]``.
    """
    slope, intercept = linear_piece(get_activation(op.activation), op.preactivation, config.activation)
    if not hidden:
        shared = sharing.shares_before(u, op.w_in, op.b_in)
        if shared is not None:
            w_in, w_out = op.w_in.to(u.dtype), op.w_out.to(u.dtype)
            network(u, w_in, w_out, slope.to(wide(u.dtype)), *shared, out=out, backend="native")
            return
        # Rare: a position at a time, so that the memory is not missed that was not set aside.
        for row in range(u.shape[1]):
            at = slice(row, row + 1)
            one = dataclasses.replace(op, preactivation=op.preactivation[:, at])
            room = u.new_empty(u.shape[2], op.w_in.shape[1])
            feed_forward(u[:, at], one, config, sharing, [room], out[:, at])
        return
    shape = (*u.shape[:-1], op.w_in.shape[1])
    a = carve(hidden[0], *shape)
    matmul(u, op.w_in, out=a)
    if op.value is None:
        sharing.activate_(a, slope, op.b_in, intercept)
    else:
        sharing.activate_(a, op.frozen_gate(), op.b_in, None)
    half = config.gate == "half"
    factor = op.gate_factor(half)
    if factor is not None:
        assert op.w_gate is not None
        g = carve(hidden[1], *shape)
        matmul(u, op.w_gate, out=g)
        late = None if intercept is None else intercept * factor
        sharing.activate_(g, slope * factor, op.b_gate, late)
        a.mul_(0.5 if half else 1.0).add_(g)
    matmul(a, op.w_out, out=out)


def at_rows(sublayer: Sublayer, rows: slice | Tensor) -> Sublayer:
    """A sublayer with its position-wise constants at some positions of the joined axis of batch and positions."""

    def norm(part: Norm | None) -> Norm | None:
        return None if part is None else dataclasses.replace(part, std=part.std.reshape(1, -1)[:, rows])

    def operation(op: Op) -> Op:
        if isinstance(op, (Attention, StateMap)):
            return op
        if isinstance(op, Routed):
            return op.among(rows)
        if isinstance(op, Convolution):
            return dataclasses.replace(op, preactivation=op.preactivation.flatten(0, 1)[None, rows])
        value = None if op.value is None else op.value.flatten(0, 1)[None, rows]
        zeta = op.preactivation.flatten(0, 1)[None, rows]
        return dataclasses.replace(op, preactivation=zeta, value=value, norm=norm(op.norm))

    return Sublayer(
        tuple(map(operation, sublayer.ops)),
        norm(sublayer.pre_norm),
        norm(sublayer.out_norm),
        norm(sublayer.post_norm),
    )
