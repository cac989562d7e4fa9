"""Vision Transformers decomposed by their definition, read from the model's own modules: NumPy, one picture.

It shares nothing with the package but the options; weights, scales, norms and what the head reads are found here again.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from naive import ACTIVATIONS, Array, add_bias, array, slope_and_intercept
from torch import nn

ACTIVATION_NAMES = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass
class State:
    """The parts ``u`` ``[i, k, d]`` of the true state ``x`` ``[i, d]``."""

    u: Array
    x: Array


def affine(state: State, module: nn.Linear, rule: str, scale: Array | float = 1.0) -> State:
    weight = array(module.weight).T * scale
    bias = None if module.bias is None else array(module.bias) * scale
    u = np.stack([add_bias(row, bias, rule) for row in state.u @ weight])
    return State(u, state.x @ weight + (0 if bias is None else bias))


def norm(state: State, module: nn.LayerNorm, rule: str) -> State:
    gain, bias = array(module.weight), array(module.bias)
    std = np.sqrt(state.x.var(-1, keepdims=True) + module.eps)
    x = (state.x - state.x.mean(-1, keepdims=True)) / std * gain + bias
    u = (state.u - state.u.mean(-1, keepdims=True)) / std[:, None] * gain
    return State(np.stack([add_bias(row, bias, rule) for row in u]), x)


def attention(state: State, module: nn.Module, out: nn.Linear, bias: Array | None, scale, rule: str) -> State:
    """``bias`` ``[h, i, j]`` is added to the logits."""
    heads = getattr(module, "num_attention_heads", None) or module.num_heads
    names = ("query", "key", "value") if hasattr(module, "query") else ("q_proj", "k_proj", "v_proj")
    query, key = (affine(state, getattr(module, name), rule).x for name in names[:2])
    n, size = len(query), query.shape[1] // heads
    value = getattr(module, names[2])
    w_value, b_value = array(value.weight).T, array(value.bias)
    w_out = array(out.weight).T * scale
    u, x = np.zeros_like(state.u), np.zeros_like(state.x)
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        logits = query[:, part] @ key[:, part].T / np.sqrt(size) + (0 if bias is None else bias[h])
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        through = w_value[:, part] @ w_out[part]
        u += np.einsum("ij,jkd->ikd", weights, state.u @ through)
        x += weights @ (state.x @ through)
    total = array(out.bias) * scale
    if b_value is not None:
        total = total + b_value @ w_out
    return State(np.stack([add_bias(row, total, rule) for row in u]), x + np.zeros((n, 1)) + total)


def gated(module: nn.Module) -> tuple:
    """The maps of gates, of values, and back; some versions of transformers keep the first two as one."""
    if hasattr(module, "gate_proj"):
        return module.gate_proj, module.up_proj, module.down_proj
    weights, biases = module.weights_in.weight.chunk(2), module.weights_in.bias.chunk(2)
    halves = [SimpleNamespace(weight=weight, bias=bias) for weight, bias in zip(weights, biases, strict=True)]
    return *halves, module.weights_out


def network(state: State, module: nn.Module, kind: str, scale, rule: str) -> State:
    if hasattr(module, "gate_proj") or hasattr(module, "weights_in"):
        first, second, out = gated(module)
        gate, value = affine(state, first, rule), affine(state, second, rule)
        slope = 1 / (1 + np.exp(-gate.x))
        by_value, by_gate = value.u * (gate.x * slope)[:, None], gate.u * (slope * value.x)[:, None]
        halves = State(0.5 * by_value + 0.5 * by_gate, value.x * gate.x * slope)
        return affine(halves, out, rule, scale)
    kind = ACTIVATION_NAMES.get(kind, kind)
    first, second = (module.intermediate, module.output) if hasattr(module, "intermediate") else (module, module)
    first, second = (getattr(part, name, None) or part.dense for part, name in ((first, "fc1"), (second, "fc2")))
    hidden = affine(state, first, rule)
    slope, _ = slope_and_intercept(kind, hidden.x, "zero_origin")
    return affine(State(hidden.u * slope[:, None], ACTIVATIONS[kind](hidden.x)), second, rule, scale)


def parts_of(layer: nn.Module) -> tuple:
    """Norms, attention, its output's map and the scales, by whatever names."""
    if hasattr(layer, "layer_scale1"):
        scales = array(layer.layer_scale1.lambda1), array(layer.layer_scale2.lambda1)
        if hasattr(layer.attention, "attention"):
            return layer.norm1, layer.norm2, layer.attention.attention, layer.attention.output.dense, scales
        return layer.norm1, layer.norm2, layer.attention, layer.attention.o_proj, scales
    if hasattr(layer, "self_attn"):
        return layer.layer_norm1, layer.layer_norm2, layer.self_attn, layer.self_attn.out_proj, (1.0, 1.0)
    scales = [getattr(layer, name, 1.0) for name in ("lambda_1", "lambda_2")]
    scales = [array(scale) if isinstance(scale, torch.Tensor) else 1.0 for scale in scales]
    norms = layer.layernorm_before, layer.layernorm_after
    if hasattr(layer.attention, "attention"):
        return *norms, layer.attention.attention, layer.attention.output.dense, scales
    return *norms, layer.attention, layer.attention.o_proj, scales


def relative(table: nn.Module | None, grid: tuple[int, int]) -> Array | None:
    """BEiT's table of relative positions of a grid as it was trained, ``[h, i, j]``: entry by entry."""
    if table is None:
        return None
    values, (rows, columns) = array(table.relative_position_bias_table), grid
    n = rows * columns + 1
    found = np.empty((values.shape[1], n, n))
    for i, j in np.ndindex(n, n):
        if i and j:
            (a, b), (c, d) = divmod(i - 1, columns), divmod(j - 1, columns)
            entry = (a - c + rows - 1) * (2 * columns - 1) + b - d + columns - 1
        else:
            entry = len(values) - (3 if j else 2 if i else 1)
        found[:, i, j] = values[entry]
    return found


def decompose(model: nn.Module, pixels: torch.Tensor, rule: str) -> tuple[Array, Array]:
    """Scores ``[k, c]`` and logits ``[c]`` of one picture ``[1, c, height, width]`` of the model's own size."""
    kept: list[torch.Tensor] = []
    base = next(child for name, child in model.named_children() if "classifier" not in name)
    encoder = getattr(base, "encoder", base)
    layers = getattr(encoder, "layers", None) or encoder.layer
    handle = layers[0].register_forward_pre_hook(lambda _m, args, kwargs: kept.append(args[0]), with_kwargs=True)
    with torch.no_grad():
        model(pixel_values=pixels)
    handle.remove()
    x = array(kept[0], row=True)
    u = np.zeros((len(x), len(x) + (rule == "bias_token"), x.shape[1]))
    u[np.arange(len(x)), np.arange(len(x))] = x
    state, config = State(u, x), getattr(model.config, "vision_config", model.config)
    grid = (config.image_size // config.patch_size,) * 2 if isinstance(config.image_size, int) else None
    for layer in layers:
        first, second, attend, out, scales = parts_of(layer)
        holders = [(layer, "relative_position_bias"), (attend, "relative_position_bias")]
        holders += [(base, "shared_position_bias"), (encoder, "relative_position_bias")]
        tables = [getattr(*holder, None) for holder in holders]
        biases = [relative(table, grid) for table in tables if table is not None]
        added = sum(biases) if biases else None
        z = attention(norm(state, first, rule), attend, out, added, scales[0], rule)
        state = State(state.u + z.u, state.x + z.x)
        mlp = getattr(layer, "mlp", layer)
        z = network(norm(state, second, rule), mlp, config.hidden_act, scales[1], rule)
        state = State(state.u + z.u, state.x + z.x)
    return head(model, base, state, rule)


def head(model: nn.Module, base: nn.Module, state: State, rule: str) -> tuple[Array, Array]:
    """What each class reads."""
    name = type(model).__name__

    def mean(start: int) -> State:
        return State(state.u[start:].mean(0)[None], state.x[start:].mean(0)[None])

    def at(position: int) -> State:
        return State(state.u[position : position + 1], state.x[position : position + 1])

    if name.startswith(("CLIP", "MetaClip2")):
        found = affine(mean(1), model.classifier, rule)
    elif name.startswith(("Beit", "Data2Vec")) and model.config.use_mean_pooling:
        found = affine(norm(mean(1), base.pooler.layernorm, rule), model.classifier, rule)
    elif name.startswith("Siglip"):
        state = norm(state, base.post_layernorm, rule)
        found = affine(mean(0), model.classifier, rule)
    elif name.startswith("IJepa"):
        state = norm(state, base.layernorm, rule)
        found = affine(mean(0), model.classifier, rule)
    else:
        state = norm(state, base.layernorm, rule)
        if name.startswith("Dinov2"):
            one, many = at(0), mean(1 + getattr(model.config, "num_register_tokens", 0))
            both = State(np.concatenate((one.u, many.u), -1), np.concatenate((one.x, many.x), -1))
            found = affine(both, model.classifier, rule)
        elif name.endswith("WithTeacher"):
            heads = model.cls_classifier, model.distillation_classifier
            maps = [array(one.weight).T / 2 for one in heads]
            bias = sum(array(one.bias) / 2 for one in heads)
            u = sum(at(n).u @ one for n, one in enumerate(maps))
            x = sum(at(n).x @ one for n, one in enumerate(maps))
            found = State(add_bias(u[0], bias, rule)[None], x + bias)
        else:
            found = affine(at(0), model.classifier, rule)
    return found.u[0], found.x[0]
