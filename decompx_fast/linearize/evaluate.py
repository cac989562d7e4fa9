"""From a layer as data (:mod:`.spec`) and a state to a linearised layer (:mod:`.layer`): one forward pass, kept.

The same few functions serve every family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..activations import get_activation
from ..errors import InputError
from .convolution import Convolution
from .hubs import Hubs
from .layer import (
    Attention,
    AttentionPattern,
    FeedForward,
    Head,
    HeadStep,
    HubAttention,
    LinearizedLayer,
    Norm,
    Op,
    Routed,
    RoutedPart,
    StateMap,
    Sublayer,
    WholeMap,
)
from .spec import (
    NO_CONTEXT,
    Affine,
    AttentionSpec,
    Context,
    ConvolutionSpec,
    FeedForwardSpec,
    HeadStepSpec,
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
from .terms import MEAN_OUTPUT, Pooled, Reading, Terms, arrange


class Steps:
    """The steps that layers are made of, each computed from its weights in the dtype of ``x``."""

    def multiply(self, map_: Affine, x: Tensor) -> Tensor:
        """``x W + b``; ``[b, i, d_in]`` to ``[b, i, d_out]``."""
        return map_.to(x.dtype)(x)

    def normalize(self, spec: NormSpec | ScaleSpec, x: Tensor) -> tuple[Norm, Tensor]:
        """A norm with its statistics at ``x`` ``[b, i, d]``, and its output."""
        if isinstance(spec, ScaleSpec):
            norm = Norm(x.new_full(x.shape[:-1], 1 / spec.factor), None, None, centre=False)
            return norm, norm.linear(x)
        weight = None if spec.weight is None else spec.weight.to(x.dtype)
        bias = None if spec.bias is None else spec.bias.to(x.dtype)
        if spec.fixed:
            fixed = Norm(torch.ones_like(x[..., 0]), weight, bias, centre=False, fixed=True)
            return fixed, fixed.linear(x) if bias is None else fixed.linear(x) + bias
        second_moment = x.var(-1, unbiased=False) if spec.centre else x.square().mean(-1)
        norm = Norm(torch.sqrt(second_moment + spec.eps), weight, bias, spec.centre)
        y = norm.linear(x)
        return norm, y if bias is None else y + bias

    def convolve(self, spec: ConvolutionSpec, x: Tensor) -> Tensor:
        """A convolution with its bias, before its activation; ``[b, i, d]`` to the same."""
        bias = None if spec.bias is None else spec.bias.to(x.dtype)
        padding = spec.weight.shape[2] // 2
        weight = spec.weight.to(x.dtype)
        y = F.conv1d(x.transpose(1, 2), weight, bias, padding=padding, groups=spec.groups)
        return y.transpose(1, 2).contiguous()

    def activate(self, name: str, z: Tensor) -> Tensor:
        """An activation by its name; elementwise."""
        return get_activation(name)(z)


COMPUTED = Steps()


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


#: What a head reads by itself: a position (negative ones count from the end), one for each item of the batch ``[b]``,
#: the mean of all or means of some, or nothing: then each position by itself, and terms say which.
Read = int | Tensor | Literal["mean", "each"] | Pooled


def linearize_head(steps: Sequence[HeadStepSpec], read: Read, x: Tensor, terms: Terms | None = None) -> Head:
    """The head on the last layer's output ``x`` ``[b, i, d]``, where it is read for ``terms``.

    Args:
        steps: of the head.
        read: what it reads where the terms do not say.
        x: the state.
        terms: ``None``: all outputs of the head's own reading.

    Raises:
        InputError: for positions or outputs that do not exist.
    """
    n = x.shape[1]
    reading = read_terms(steps, read, x, terms)
    head = Head(reading, n, ())
    state, done = head.read(x), []
    for step in steps:
        narrow = step is steps[-1] and _is_narrow(step, reading)
        done.append(_linearize_step(step, state, reading.outputs if narrow else None))
        state = done[-1].output
    return replace(head, steps=tuple(done))


def read_terms(steps: Sequence[HeadStepSpec], read: Read, x: Tensor, terms: Terms | None) -> Reading:
    """Where a head is read for terms, of a state ``x`` ``[b, i, d]``."""
    b, n, d = x.shape
    if isinstance(read, str) and read == "each" and (terms is None or terms.positions is None):
        raise InputError(
            "this model has outputs at each position: say which positions are asked for, by terms with positions"
        )
    if terms is not None and terms.positions is not None and not (isinstance(read, str) and read == "each"):
        raise InputError("positions are given, but the head of this model reads by itself: use positions=None")
    own: Tensor | None
    if isinstance(read, Tensor):
        own = read.to(x.device).unsqueeze(1)
    else:
        own = None if isinstance(read, (str, Pooled)) else torch.full((b, 1), read % n, device=x.device)
    maps = [step.map for step in steps if step.map is not None]
    count = maps[-1].weight.shape[1] if maps else d
    if terms is not None:
        terms = terms.to(x.device)
        if bool((terms.outputs == MEAN_OUTPUT).any()) and steps[-1].activation is not None:
            raise InputError(
                f"outputs holds {MEAN_OUTPUT}, the mean over all outputs, but this head ends with an activation: name "
                "outputs themselves"
            )
    reading = arrange(terms, own, n, count)
    return replace(reading, ranges=read.ranges) if isinstance(read, Pooled) else reading


def _is_narrow(step: HeadStepSpec, reading: Reading) -> bool:
    """Whether only the outputs that are asked for are formed: where they are more than what they are made of."""
    if reading.outputs is None or step.map is None or step.norm is not None:
        return False
    d, count = step.map.weight.shape
    return count > d


def _linearize_step(spec: HeadStepSpec, x: Tensor, outputs: Tensor | None) -> HeadStep:
    """One step of a head on ``x`` ``[b, r, d]``; of the outputs only ``[b, r, q]``, if given."""
    if outputs is not None and spec.map is not None:
        return _narrow_step(spec.map, spec.activation, x, outputs)
    map_ = None if spec.map is None else spec.map.to(x.dtype)
    zeta = x if map_ is None else map_(x)
    weight, bias = (None, None) if map_ is None else (map_.weight, map_.bias)
    step = HeadStep(weight, bias, spec.activation, zeta)
    if spec.norm is None:
        return step
    norm, _ = COMPUTED.normalize(spec.norm, step.output)
    return replace(step, norm=norm)


def _narrow_step(map_: Affine, activation: str | None, x: Tensor, outputs: Tensor) -> HeadStep:
    """The same of some outputs of a map, whose weights are copied for these alone."""
    if bool((outputs == outputs[:1, :1]).all()):
        outputs = outputs[0, 0]  # [q], alike for all rows
    whole = WholeMap(map_.weight, map_.bias)
    rows = map_.weight.T[outputs.clamp_min(0)].to(x.dtype)  # [..., q, d]
    bias = None if map_.bias is None else map_.bias[outputs.clamp_min(0)].to(x.dtype)
    is_mean = outputs == MEAN_OUTPUT
    if bool(is_mean.any()):
        mean, mean_bias = whole.mean(x.dtype)
        rows[is_mean] = mean
        if bias is not None and mean_bias is not None:
            bias[is_mean] = mean_bias
    weight = rows.transpose(-1, -2)
    zeta = x @ weight if weight.ndim == 2 else (x.unsqueeze(-2) @ weight).squeeze(-2)
    zeta = zeta if bias is None else zeta + bias
    return HeadStep(weight, bias, activation, zeta, narrow=True, whole=whole)


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
    values = steps.multiply(spec.value, u)
    mixed = op.context(values)
    if op.hubs is not None and spec.hubs is not None:
        same = spec.hubs.value is spec.value
        mixed = mixed + op.hubs.context(values if same else steps.multiply(spec.hubs.value, u))
    return steps.multiply(spec.out, mixed)


@_branch.register
def _(op: FeedForward, spec: FeedForwardSpec, u: Tensor, steps: Steps) -> Tensor:
    hidden, value = steps.activate(op.activation, op.preactivation), op.gated()
    return steps.multiply(spec.out, hidden if value is None else hidden * (value + op.shift))


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
    key = steps.multiply(spec.key, read).unflatten(-1, (spec.kv_heads, -1)).transpose(1, 2)  # [b, g, j, v]
    plain_query, plain_key, bias = query, key, None
    if spec.positions is not None:
        query, key, bias = spec.positions(query, key, context)
    sink = None if spec.sink is None else spec.sink.to(u.dtype)
    pattern = AttentionPattern(query, key, spec.scale, spec.causal, spec.window, bias, spec.softcap, sink)
    value, out = spec.value.to(u.dtype), spec.out.to(u.dtype)
    op = Attention(pattern, value.weight, value.vector, out.weight, out.bias, spec.heads, spec.kv_heads)
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
