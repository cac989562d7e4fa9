"""From a layer as data (:mod:`.spec`) and a state to a linearised layer (:mod:`.layer`): one forward pass, kept.

The same few functions serve every family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..activations import get_activation
from .layer import Attention, AttentionPattern, FeedForward, Head, HeadStep, LinearizedLayer, Norm, Sublayer
from .spec import Affine, AttentionSpec, FeedForwardSpec, HeadStepSpec, LayerSpec, NormSpec, SublayerSpec

#: ``x W + b`` of a map and its input ``[b, i, d_in]``, ``[b, i, d_out]``.
Multiply = Callable[[Affine, Tensor], Tensor]


def multiply(map_: Affine, x: Tensor) -> Tensor:
    """``x W + b``, computed in the dtype of ``x``."""
    return map_.to(x.dtype)(x)


def linearize_layer(spec: LayerSpec, index: int, x: Tensor, multiply: Multiply = multiply) -> LinearizedLayer:
    """One layer on the state ``x`` ``[b, i, d]``; its constants are kept in the dtype of ``x``.

    Args:
        spec: the layer.
        index: its number.
        x: the true state before it.
        multiply: where the products with weights come from, nearly all of the arithmetic; all else is computed here.
    """
    state = x
    sublayers = []
    for part in spec:
        sublayer, state = _linearize_sublayer(part, state, multiply)
        sublayers.append(sublayer)
    return LinearizedLayer(index, tuple(sublayers), x, state)


def restore_layer(spec: LayerSpec, layer: LinearizedLayer) -> LinearizedLayer:
    """A layer of which :meth:`LinearizedLayer.without_constants` was kept, for less than half of its cost.

    With the inputs of its sublayers and the statistics of its norms known, neither the mixing nor what leaves a
    branch is computed again.
    """
    sublayers = []
    for part, kept in zip(spec, layer.sublayers, strict=True):
        if kept.input is None:
            raise ValueError(f"layer {layer.index} was kept without the inputs of its sublayers: compute it anew")
        _, u = _linearize_norm(part.pre_norm, kept.input)
        sublayers.append(replace(kept, ops=tuple(_linearize_op(op, u, multiply) for op in part.ops)))
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


def _linearize_sublayer(spec: SublayerSpec, x: Tensor, multiply: Multiply) -> tuple[Sublayer, Tensor]:
    pre_norm, u = _linearize_norm(spec.pre_norm, x)
    ops = tuple(_linearize_op(op, u, multiply) for op in spec.ops)
    branch = _branch(spec.ops[0], ops[0], u, multiply)
    for part, op in zip(spec.ops[1:], ops[1:], strict=True):
        branch = branch + _branch(part, op, u, multiply)
    out_norm, branch = _linearize_norm(spec.out_norm, branch)
    post_norm, out = _linearize_norm(spec.post_norm, x + branch)
    return Sublayer(ops, pre_norm, out_norm, post_norm, x), out


def _linearize_norm(spec: NormSpec | None, x: Tensor) -> tuple[Norm | None, Tensor]:
    if spec is None:
        return None, x
    weight = None if spec.weight is None else spec.weight.to(x.dtype)
    bias = None if spec.bias is None else spec.bias.to(x.dtype)
    if spec.centre:
        y, _, inverse_std = torch.native_layer_norm(x, x.shape[-1:], weight, bias, spec.eps)
        return Norm(inverse_std.squeeze(-1).reciprocal(), weight, bias), y
    norm = Norm(torch.sqrt(x.square().mean(-1) + spec.eps), weight, bias, centre=False)
    y = norm.linear(x)
    return norm, y if bias is None else y + bias


def _branch(
    spec: AttentionSpec | FeedForwardSpec, op: Attention | FeedForward, u: Tensor, multiply: Multiply
) -> Tensor:
    """What the op sends into the residual stream, ``[b, i, d]``."""
    if isinstance(spec, AttentionSpec) and isinstance(op, Attention):
        return multiply(spec.out, op.context(multiply(spec.value, u)))
    if isinstance(spec, FeedForwardSpec) and isinstance(op, FeedForward):
        return multiply(spec.out, _hidden(op))
    raise TypeError(f"a {type(op).__name__} is not what a {type(spec).__name__} describes")


#: Activations by their usual formula, in one pass; those that are missing go by :mod:`decompx_fast.activations`.
_FUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu": torch.relu,
    "tanh": torch.tanh,
}


def _hidden(op: FeedForward) -> Tensor:
    """What the second map of a feed-forward network is applied to, ``[b, i, f]``."""
    activation = _FUSED.get(op.activation) or get_activation(op.activation)
    hidden = activation(op.preactivation)
    return hidden if op.value is None else hidden * op.value


def _linearize_op(spec: AttentionSpec | FeedForwardSpec, u: Tensor, multiply: Multiply) -> Attention | FeedForward:
    if isinstance(spec, AttentionSpec):
        return _linearize_attention(spec, u, multiply)
    return _linearize_ffn(spec, u, multiply)


def _linearize_attention(spec: AttentionSpec, u: Tensor, multiply: Multiply) -> Attention:
    query = multiply(spec.query, u).unflatten(-1, (spec.heads, -1)).transpose(1, 2)  # [b, h, i, v]
    key = multiply(spec.key, u).unflatten(-1, (spec.kv_heads, -1)).transpose(1, 2)  # [b, g, j, v]
    pattern = AttentionPattern(query, key, spec.scale, spec.causal, spec.window)
    value, out = spec.value.to(u.dtype), spec.out.to(u.dtype)
    return Attention(pattern, value.weight, value.bias, out.weight, out.bias, spec.heads, spec.kv_heads)


def _linearize_ffn(spec: FeedForwardSpec, u: Tensor, multiply: Multiply) -> FeedForward:
    into, out = spec.into.to(u.dtype), spec.out.to(u.dtype)
    name = get_activation(spec.activation).name
    if spec.gate is None:
        return FeedForward(into.weight, into.bias, out.weight, out.bias, name, multiply(spec.into, u))
    gate = spec.gate.to(u.dtype)
    zeta, value = multiply(spec.gate, u), multiply(spec.into, u)
    return FeedForward(into.weight, into.bias, out.weight, out.bias, name, zeta, gate.weight, gate.bias, value=value)
