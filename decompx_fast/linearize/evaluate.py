"""From a layer as data (:mod:`.spec`) and a state to a linearised layer (:mod:`.layer`): one forward pass, kept.

The same few functions serve every family.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

import torch
from torch import Tensor

from ..activations import get_activation
from .convolution import Convolution
from .encoder import memory_of
from .hubs import Hubs
from .layer import (
    Attention,
    AttentionPattern,
    FeedForward,
    HubAttention,
    LinearizedLayer,
    Norm,
    Op,
    Routed,
    RoutedPart,
    StateMap,
    Sublayer,
)
from .spec import (
    NO_CONTEXT,
    AttentionSpec,
    Context,
    ConvolutionSpec,
    FeedForwardSpec,
    HubSpec,
    LayerSpec,
    NormSpec,
    OpSpec,
    RoutedSpec,
    ScaleSpec,
    StateMapSpec,
    SublayerSpec,
    choice_name,
)
from .steps import COMPUTED, Steps


def linearize_layer(
    spec: LayerSpec, index: int, x: Tensor, context: Context = NO_CONTEXT, steps: Steps = COMPUTED
) -> LinearizedLayer:
    """One layer on the state ``x`` ``[b, i, d]``; its constants are kept in the dtype of ``x``.

    Args:
        spec: the layer.
        index: its number.
        x: the true state before it.
        context: what the model called the layer with besides, for attentions with ``positions``.
        steps: where the results of the steps come from.
    """
    state = wide = x
    sublayers = []
    for part in spec:
        op = part.ops[0]
        if isinstance(op, StateMapSpec):
            sublayer, wide, state = _cross(part, op, wide, state, steps)
        else:
            sublayer, state = _linearize_sublayer(part, state, wide, x, context, steps)
        sublayers.append(sublayer)
    return LinearizedLayer(index, tuple(sublayers), x, state)


def restore_layer(spec: LayerSpec, layer: LinearizedLayer, context: Context = NO_CONTEXT) -> LinearizedLayer:
    """A layer of which :meth:`LinearizedLayer.without_constants` was kept, for less than half of its cost.

    With the inputs of its sublayers and the statistics of its norms known, neither the mixing nor what leaves a
    branch is computed again.
    """
    sublayers = []
    for part, kept in zip(spec, layer.sublayers, strict=True):
        if kept.input is None:
            raise ValueError(f"layer {layer.index} was kept without the inputs of its sublayers: compute it anew")
        _, u = _linearize_norm(part.pre_norm, layer.input if part.reads_wide else kept.input, COMPUTED)
        ops = []
        for op in part.ops:
            norm, read = own_norm(op, kept.input, u, COMPUTED)
            ops.append(_with_norm(_linearize_op(op, read, layer.input, context, COMPUTED), norm))
        sublayers.append(replace(kept, ops=tuple(ops)))
    return replace(layer, sublayers=tuple(sublayers))


def _cross(
    spec: SublayerSpec, op: StateMapSpec, wide: Tensor, state: Tensor, steps: Steps
) -> tuple[Sublayer, Tensor, Tensor]:
    """The way to a narrower state or back, the residual stream, and the state after it."""
    mapped = steps.multiply(op.map, state)
    if op.kind == "narrow":
        wide = state
    post_norm, out = _linearize_norm(spec.post_norm, mapped if op.kind == "narrow" else wide + mapped, steps)
    map_ = op.map.to(state.dtype)
    return Sublayer((StateMap(op.kind, map_.weight, map_.bias),), post_norm=post_norm, input=state), wide, out


def _linearize_sublayer(
    spec: SublayerSpec, x: Tensor, wide: Tensor, start: Tensor, context: Context, steps: Steps
) -> tuple[Sublayer, Tensor]:
    """A sublayer on the state ``x`` beside the stream ``wide``, of a layer that began with ``start``."""
    pre_norm, u = _linearize_norm(spec.pre_norm, wide if spec.reads_wide else x, steps)
    ops, branches = zip(*(_linearize_branch(op, x, u, start, context, steps) for op in spec.ops), strict=True)
    branch = branches[0]
    for part in branches[1:]:
        branch = branch + part
    out_norm, branch = _linearize_norm(spec.out_norm, branch, steps)
    post_norm, out = _linearize_norm(spec.post_norm, x + branch, steps)
    return Sublayer(ops, pre_norm, out_norm, post_norm, x, spec.reads_wide), out


def _linearize_branch(
    spec: OpSpec, x: Tensor, u: Tensor, start: Tensor, context: Context, steps: Steps
) -> tuple[Op, Tensor]:
    """An op of a sublayer on the state ``x``, which the norm of all makes ``u``; and what it adds, ``[b, i, d]``."""
    norm, u = own_norm(spec, x, u, steps)
    op = _with_norm(_linearize_op(spec, u, start, context, steps), norm)
    return op, _branch(op, spec, u, steps)


def own_norm(spec: OpSpec, x: Tensor, u: Tensor, steps: Steps) -> tuple[Norm | None, Tensor]:
    """The norm that an op has of its own, if it has one, and what the op reads."""
    norm = spec.norm if isinstance(spec, FeedForwardSpec) else None
    return (None, u) if norm is None else steps.normalize(norm, x)


def _with_norm(op: Op, norm: Norm | None) -> Op:
    return replace(op, norm=norm) if isinstance(op, FeedForward) and norm is not None else op


def _linearize_norm(spec: NormSpec | ScaleSpec | None, x: Tensor, steps: Steps) -> tuple[Norm | None, Tensor]:
    return (None, x) if spec is None else steps.normalize(spec, x)


# What each kind of operation does. To add one, register it with both functions.


@singledispatch
def _branch(op: Op, spec: OpSpec, u: Tensor, steps: Steps) -> Tensor:
    """What the op sends into the residual stream, ``[b, i, d]``."""
    raise TypeError(f"a {type(op).__name__} is no operation of a sublayer")


@_branch.register
def _(op: Attention, spec: AttentionSpec, u: Tensor, steps: Steps) -> Tensor:
    values = steps.multiply(spec.value, u if op.memory is None else op.memory)
    mixed = op.context(values)
    if op.hubs is not None and spec.hubs is not None:
        same = spec.hubs.value is spec.value
        mixed = mixed + op.hubs.context(values if same else steps.multiply(spec.hubs.value, u))
    return steps.multiply(spec.out, mixed)


@_branch.register
def _(op: FeedForward, spec: FeedForwardSpec, u: Tensor, steps: Steps) -> Tensor:
    hidden, value = steps.activate(op.activation, op.preactivation), op.gated()
    return steps.multiply(spec.out, hidden if value is None else hidden * (value + op.shift if op.shift else value))


@_branch.register
def _(op: Routed, spec: RoutedSpec, u: Tensor, steps: Steps) -> Tensor:
    return op(u)


@_branch.register
def _(op: Convolution, spec: ConvolutionSpec, u: Tensor, steps: Steps) -> Tensor:
    return steps.activate(op.activation, op.preactivation)


@singledispatch
def _linearize_op(spec: OpSpec, u: Tensor, start: Tensor, context: Context, steps: Steps) -> Op:
    """An op on ``u`` ``[b, i, d]``, in a layer that began with the state ``start``."""
    raise TypeError(f"a {type(spec).__name__} describes no operation of a sublayer")


@_linearize_op.register
def _(spec: AttentionSpec, u: Tensor, start: Tensor, context: Context, steps: Steps) -> Attention:
    read = u
    if spec.before is not None:
        map_, norm = spec.before
        _, read = steps.normalize(norm, steps.multiply(map_, u))
    query = steps.multiply(spec.query, read).unflatten(-1, (spec.heads, -1)).transpose(1, 2)  # [b, h, i, v]
    memory = memory_of(context) if spec.memory else None
    attended = read if memory is None else memory
    key = steps.multiply(spec.key, attended).unflatten(-1, (spec.kv_heads, -1)).transpose(1, 2)  # [b, g, j, v]
    plain_query, plain_key, bias = query, key, None
    if spec.positions is not None:
        query, key, bias = spec.positions(query, key, context)
    sink = None if spec.sink is None else spec.sink.to(u.dtype)
    pattern = AttentionPattern(query, key, spec.scale, spec.causal, spec.window, bias, spec.softcap, sink)
    value, out = spec.value.to(u.dtype), spec.out.to(u.dtype)
    weights = (value.weight, value.vector, out.weight, out.bias)
    op = Attention(pattern, *weights, spec.heads, spec.kv_heads, memory=memory)
    where = None if spec.hubs is None else spec.hubs.where(u.shape[1], context)
    if spec.hubs is None or where is None:
        return op
    hubs = Hubs(where, spec.hubs.radius, spec.hubs.block)
    return _with_hubs(op, spec, spec.hubs, hubs, u, steps, plain_query, plain_key)


def _with_hubs(
    op: Attention,
    spec: AttentionSpec,
    maps: HubSpec,
    hubs: Hubs,
    u: Tensor,
    steps: Steps,
    query: Tensor,
    key: Tensor,
) -> Attention:
    """An attention whose hubs mix by ``maps``; ``query`` and ``key`` are those of the others, without positions."""
    if maps.query is not spec.query:
        query = steps.multiply(maps.query, u).unflatten(-1, (spec.heads, -1)).transpose(1, 2)
    if maps.key is not spec.key:
        key = steps.multiply(maps.key, u).unflatten(-1, (spec.kv_heads, -1)).transpose(1, 2)
    own = AttentionPattern(query, key, spec.scale, hubs=replace(hubs, own_rows=True))
    weight, bias = op.value_weight, op.b_value
    if maps.value is not spec.value:
        value = maps.value.to(u.dtype)
        weight, bias = value.weight, value.vector
    pattern = replace(op.pattern, causal=False, window=None, hubs=hubs)
    return replace(op, pattern=pattern, hubs=HubAttention(own, weight, bias))


@_linearize_op.register
def _(spec: StateMapSpec, u: Tensor, start: Tensor, context: Context, steps: Steps) -> StateMap:
    map_ = spec.map.to(u.dtype)
    return StateMap(spec.kind, map_.weight, map_.bias)


@_linearize_op.register
def _(spec: FeedForwardSpec, u: Tensor, start: Tensor, context: Context, steps: Steps) -> FeedForward:
    into, out = spec.into.to(u.dtype), spec.out.to(u.dtype)
    name = get_activation(spec.activation).name
    if spec.gate is None:
        return FeedForward(into.weight, into.bias, out.weight, out.bias, name, steps.multiply(spec.into, u))
    gate = spec.gate.to(u.dtype)
    zeta, value = steps.multiply(spec.gate, u), steps.multiply(spec.into, u)
    weights = (into.weight, into.bias, out.weight, out.bias)
    return FeedForward(*weights, name, zeta, gate.weight, gate.bias, value, limit=spec.limit, shift=spec.shift)


@_linearize_op.register
def _(spec: RoutedSpec, u: Tensor, start: Tensor, context: Context, steps: Steps) -> Routed:
    flat = u.flatten(0, 1)  # [r, d]
    given = None if spec.chooser is None else context.get(choice_name(spec.chooser))
    weights, chosen = spec.route(steps.multiply(spec.router, u).flatten(0, 1), given)  # [r, k]
    parts = []
    for number in chosen.unique().tolist():
        at, rank = torch.nonzero(chosen == number, as_tuple=True)
        # No module tells what an expert multiplied, so its products are computed from its weights.
        network = _linearize_op(spec.experts[number], flat[at].unsqueeze(0), start, context, COMPUTED)
        assert isinstance(network, FeedForward)
        parts.append(RoutedPart(network, at, weights[at, rank].to(u.dtype)))
    return Routed(tuple(parts), spec.active, len(flat))


@_linearize_op.register
def _(spec: ConvolutionSpec, u: Tensor, start: Tensor, context: Context, steps: Steps) -> Convolution:
    weight, bias = spec.weight.to(u.dtype), None if spec.bias is None else spec.bias.to(u.dtype)
    name = get_activation(spec.activation).name
    return Convolution(weight, bias, spec.groups, name, start, steps.convolve(spec, start))
