"""What the forward engine is compared with: the pattern of the released code, written anew from the equations."""

from __future__ import annotations

import torch
from torch import Tensor

from decompx_fast.activations import get_activation
from decompx_fast.linearize.layer import Attention, FeedForward, Linearization, LinearizedLayer, Norm


def released_pattern(linearization: Linearization) -> Tensor:
    """Scores by one tensor operation after the other, as research code does it: ``variant="released"``, AbsDot.

    Every head's vectors are projected before they are mixed, ``[b, h, i, k, d]``, and summed over the heads afterwards;
    every component makes a new tensor; the shares of a bias, and the shared bias, are tensors of their own.

    Args:
        linearization: of a post-norm encoder (BERT, RoBERTa).

    Returns:
        ``[b, k, c]``.

    Source: Modarressi et al., ACL 2023, equations 4 to 11; how their code orders the products.
    """
    x = None
    with torch.no_grad():
        for layer in linearization.layers():
            x = _layer(x, layer)
        head = linearization.head(layer.output)
        x = head.read(x)[:, 0]
        for step in head.steps:
            x = _share(x @ step.weight, step.bias)
            if step.activation is not None:
                x = x * get_activation(step.activation).theta(step.preactivation)
    return x


def _layer(x: Tensor | None, layer: LinearizedLayer) -> Tensor:
    first, second = layer.sublayers
    attention, network = first.ops[0], second.ops[0]
    if x is None:
        z, x = _attend_first(layer.input, attention), torch.diag_embed(layer.input.transpose(1, 2)).permute(0, 2, 3, 1)
        bias = attention.b_out
    else:
        z, bias = _attend(x, attention), attention.bias()
    y = _norm(_share(x + z, bias), first.post_norm)
    return _norm(y + _feed_forward(y, network), second.post_norm)


def _attend_first(x: Tensor, op: Attention) -> Tensor:
    values = (x @ op.w_value + op.b_value).unflatten(-1, (op.heads, -1)).transpose(1, 2)
    projected = torch.einsum("bhkv,hvd->bhkd", values, op.w_out.view(op.heads, -1, op.w_out.shape[1]))
    weighted = torch.einsum("bhik,bhkd->bhikd", op.pattern.weights(), projected)
    return weighted.sum(1)


def _attend(x: Tensor, op: Attention) -> Tensor:
    values = torch.einsum("bjkd,de->bjke", x, op.w_value).unflatten(-1, (op.heads, -1)).permute(0, 3, 1, 2, 4)
    projected = torch.einsum("bhjkv,hvd->bhjkd", values, op.w_out.view(op.heads, -1, op.w_out.shape[1]))
    weighted = torch.einsum("bhij,bhjkd->bhikd", op.pattern.weights(), projected)
    return weighted.sum(1)


def _feed_forward(x: Tensor, op: FeedForward) -> Tensor:
    hidden = _share(x @ op.w_in, op.b_in)
    theta = get_activation(op.activation).theta(op.preactivation)
    hidden = hidden * theta.unsqueeze(2)
    return _share(hidden @ op.w_out, op.b_out)


def _norm(x: Tensor, norm: Norm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / norm.std[:, :, None, None]
    return _share(scaled * norm.weight, norm.bias)


def _share(x: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return x
    weights = torch.einsum("...kd,d->...k", x, bias).abs()
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-12)
    return x + torch.einsum("...k,d->...kd", weights, bias)
