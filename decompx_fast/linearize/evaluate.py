"""From a layer as data (:mod:`.spec`) and a state to a linearised layer (:mod:`.layer`): one forward pass, kept.

The same few functions serve every family.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..activations import get_activation
from .layer import Attention, AttentionPattern, FeedForward, Head, HeadStep, LinearizedLayer, Norm, Sublayer
from .spec import AttentionSpec, FeedForwardSpec, HeadStepSpec, LayerSpec, NormSpec, SublayerSpec


def linearize_layer(spec: LayerSpec, index: int, x: Tensor) -> LinearizedLayer:
    """One layer on the state ``x`` ``[b, i, d]``; computed, and its constants kept, in the dtype of ``x``."""
    state = x
    sublayers = []
    for part in spec:
        sublayer, state = _linearize_sublayer(part, state)
        sublayers.append(sublayer)
    return LinearizedLayer(index, tuple(sublayers), x, state)


def restore_layer(spec: LayerSpec, layer: LinearizedLayer) -> LinearizedLayer:
    """A layer of which :meth:`LinearizedLayer.without_ops` was kept: its ops again, for less than half of its cost.

    With the inputs of its sublayers and the statistics of its norms known, neither the mixing nor what leaves a
    branch is computed again.
    """
    sublayers = []
    for part, kept in zip(spec, layer.sublayers, strict=True):
        if kept.input is None:
            raise ValueError(f"layer {layer.index} was kept without the inputs of its sublayers: compute it anew")
        u = kept.input if kept.pre_norm is None else _apply_norm(kept.pre_norm, kept.input)
        sublayers.append(replace(kept, ops=tuple(_linearize_op(op, u) for op in part.ops)))
    return replace(layer, sublayers=tuple(sublayers))


def linearize_head(steps: tuple[HeadStepSpec, ...], position: int, x: Tensor) -> Head:
    """The head on the last layer's output ``x`` ``[b, i, d]``."""
    state = x[:, position]
    done = []
    for step in steps:
        map_ = step.map.to(x.dtype)
        done.append(HeadStep(map_.weight, map_.bias, step.activation, map_(state)))
        state = done[-1].output
    return Head(position, tuple(done))


def _linearize_sublayer(spec: SublayerSpec, x: Tensor) -> tuple[Sublayer, Tensor]:
    pre_norm, u = _linearize_norm(spec.pre_norm, x)
    ops = tuple(_linearize_op(op, u) for op in spec.ops)
    branch = ops[0](u)
    for op in ops[1:]:
        branch = branch + op(u)
    out_norm, branch = _linearize_norm(spec.out_norm, branch)
    post_norm, out = _linearize_norm(spec.post_norm, x + branch)
    return Sublayer(ops, pre_norm, out_norm, post_norm, x), out


def _linearize_norm(spec: NormSpec | None, x: Tensor) -> tuple[Norm | None, Tensor]:
    if spec is None:
        return None, x
    second_moment = x.var(-1, unbiased=False) if spec.centre else x.square().mean(-1)
    weight = None if spec.weight is None else spec.weight.to(x.dtype)
    bias = None if spec.bias is None else spec.bias.to(x.dtype)
    norm = Norm(torch.sqrt(second_moment + spec.eps), weight, bias, spec.centre)
    return norm, _apply_norm(norm, x)


def _apply_norm(norm: Norm, x: Tensor) -> Tensor:
    y = norm.linear(x)
    return y if norm.bias is None else y + norm.bias


def _linearize_op(spec: AttentionSpec | FeedForwardSpec, u: Tensor) -> Attention | FeedForward:
    return _linearize_attention(spec, u) if isinstance(spec, AttentionSpec) else _linearize_ffn(spec, u)


def _linearize_attention(spec: AttentionSpec, u: Tensor) -> Attention:
    query = spec.query.to(u.dtype)(u).unflatten(-1, (spec.heads, -1)).transpose(1, 2)  # [b, h, i, v]
    key = spec.key.to(u.dtype)(u).unflatten(-1, (spec.kv_heads, -1)).transpose(1, 2)  # [b, g, j, v]
    pattern = AttentionPattern(query, key, spec.scale, spec.causal, spec.window)
    value, out = spec.value.to(u.dtype), spec.out.to(u.dtype)
    return Attention(pattern, value.weight, value.bias, out.weight, out.bias, spec.heads, spec.kv_heads)


def _linearize_ffn(spec: FeedForwardSpec, u: Tensor) -> FeedForward:
    into, out = spec.into.to(u.dtype), spec.out.to(u.dtype)
    name = get_activation(spec.activation).name
    if spec.gate is None:
        return FeedForward(into.weight, into.bias, out.weight, out.bias, name, into(u))
    gate = spec.gate.to(u.dtype)
    return FeedForward(
        into.weight, into.bias, out.weight, out.bias, name, gate(u), gate.weight, gate.bias, value=into(u)
    )
