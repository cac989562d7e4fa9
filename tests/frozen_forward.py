"""The frozen model as a function of the embedding, straight from its equations, for autograd."""

from __future__ import annotations

import torch
from random_models import RandomModel
from torch import Tensor

from decompx_fast.activations import get_activation, linear_piece
from decompx_fast.config import DecompXConfig
from decompx_fast.linearize.layer import Attention, FeedForward, Norm


def frozen_norm(norm: Norm | None, x: Tensor) -> Tensor:
    if norm is None:
        return x
    x = (x - x.mean(-1, keepdim=True) if norm.centre else x) / norm.std[:, :, None] * norm.weight
    return x if norm.bias is None else x + norm.bias


def frozen_op(op: Attention | FeedForward, u: Tensor, config: DecompXConfig) -> Tensor:
    if isinstance(op, Attention):
        p, group = op.pattern, op.heads // op.kv_heads
        logits = p.scale * torch.einsum("bhiv,bhjv->bhij", p.query, p.key.repeat_interleave(group, 1))
        i, j = torch.arange(u.shape[1])[:, None], torch.arange(u.shape[1])[None, :]
        forbidden = (j > i) & torch.tensor(p.causal)
        if p.window is not None:
            forbidden = forbidden | ((i - j).abs() >= p.window)
        alpha = logits.masked_fill(forbidden, -torch.inf).softmax(-1)
        values = u @ op.w_value + (0 if op.b_value is None else op.b_value)
        values = values.unflatten(-1, (op.kv_heads, -1)).repeat_interleave(group, dim=2)
        return torch.einsum("bhij,bjhv->bihv", alpha, values).flatten(2) @ op.w_out + op.b_out
    slope, intercept = linear_piece(get_activation(op.activation), op.preactivation, config.activation)
    hidden = u @ op.w_in + op.b_in
    if op.value is not None:
        hidden = get_activation(op.activation)(op.preactivation) * hidden
        if config.gate == "half":  # the other half by the gate, with the value frozen
            gate = slope * (u @ op.w_gate + op.b_gate) + (0 if intercept is None else intercept)
            hidden = 0.5 * hidden + 0.5 * op.value * gate
    else:
        hidden = slope * hidden + (0 if intercept is None else intercept)
    return hidden @ op.w_out + op.b_out


def frozen_logits(model: RandomModel, x: Tensor, config: DecompXConfig) -> Tensor:
    """The logits for an embedding ``x``, with the attention weights, norms and slopes of the model's own."""
    for layer in model.layers():
        for sublayer in layer.sublayers:
            norms = [getattr(op, "norm", None) or sublayer.pre_norm for op in sublayer.ops]
            read = [frozen_norm(norm, x) for norm in norms]
            branch = torch.stack([frozen_op(op, u, config) for op, u in zip(sublayer.ops, read, strict=True)]).sum(0)
            x = frozen_norm(sublayer.post_norm, x + frozen_norm(sublayer.out_norm, branch))
    head = model.head(layer.output)
    y = head.read(x)  # [b, 1, d]
    for step in head.steps:
        y = y @ step.weight + step.bias
        if step.activation is not None:
            kind = config.tanh if step.activation == "tanh" else config.activation
            slope, intercept = linear_piece(get_activation(step.activation), step.preactivation, kind)
            y = slope * y + (0 if intercept is None else intercept)
    return y[:, 0]
