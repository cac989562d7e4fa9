"""Other rules for gates than the engines have, tried by automatic differentiation: DecompX of a model without biases.

With attention weights, norms and activations frozen, what a token contributes is its embedding times the gradient of
the frozen model. A gated network ``act(g) * u`` is made linear in ``g`` and ``u``, with constant coefficients:

    share      share act(g) u  +  (1 - share) theta(g) g u        the rules of the engines are 1 (value) and 1/2 (half)
    path       I(g) u  +  (act(g) - I(g)) / g  g u,               I(g) = integral over t from 0 to 1 of act(t g)

The last is what each factor gains along the straight way from 0 (Aumann and Shapley's values of two players), of which
the slope through the origin is the case of one: half for a gate that is linear.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from causal_methods import Said, Scores, positions_of
from torch import Tensor, nn

from decompx_fast.activations import get_activation
from decompx_fast.evaluation.methods import relevance
from decompx_fast.linearize.layer import AttentionPattern
from decompx_fast.linearize.linearization import linearize, specification
from decompx_fast.linearize.spec import AttentionSpec, Context, FeedForwardSpec, LayerSpec

#: Of Gauss-Legendre quadrature, and where ``(act(g) - I(g)) / g`` is its limit, ``g act'(0) / 2``.
NODES, SMALL = 8, 1e-3


def with_rule(rule: float | str) -> Scores:
    """Scores with the share of the product that goes through the value, or ``"path"``."""

    def score(model: nn.Module, said: Said) -> Tensor:
        spec, linearization = specification(model), linearize(model, {"input_ids": said.fed})
        with torch.enable_grad():
            x = linearization.embedding.clone().requires_grad_()
            rows = _layers(spec.layers, x, linearization.contexts, rule)[:, positions_of(model, said)]
            logits = relevance.head(spec.head, rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
            (gradient,) = torch.autograd.grad(said.value(logits).sum(), x)
        return (x.detach() * gradient).sum(-1).double()

    return score


def _layers(layers: Sequence[LayerSpec], x: Tensor, contexts: Sequence[Context], rule: float | str) -> Tensor:
    for layer, context in zip(layers, contexts, strict=True):
        for sublayer in layer:
            (op,) = sublayer.ops
            u = relevance.norm(sublayer.pre_norm, x)
            if isinstance(op, AttentionSpec):
                branch = _attention(op, u, context)
            elif isinstance(op, FeedForwardSpec) and op.gate is not None:
                branch = _gated(op, u, rule)
            else:
                raise TypeError(f"layers of attentions and gated networks, not of a {type(op).__name__}")
            x = relevance.norm(sublayer.post_norm, x + relevance.norm(sublayer.out_norm, branch))
    return x


def _linear(map_, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    y = x @ map_.matrix.to(x.dtype)
    return y if map_.vector is None else y + map_.vector.to(x.dtype)


def _attention(spec: AttentionSpec, u: Tensor, context: Context) -> Tensor:
    """With its weights frozen."""
    fixed = u.detach()
    query = _linear(spec.query, fixed).unflatten(-1, (spec.heads, -1)).transpose(1, 2)
    key = _linear(spec.key, fixed).unflatten(-1, (spec.kv_heads, -1)).transpose(1, 2)
    value = _linear(spec.value, u).unflatten(-1, (spec.kv_heads, -1)).transpose(1, 2)
    bias = None
    if spec.positions is not None:
        query, key, bias = spec.positions(query, key, context)
    weights = AttentionPattern(query, key, spec.scale, spec.causal, spec.window, bias).weights()
    mixed = weights @ value.repeat_interleave(spec.heads // spec.kv_heads, dim=1)
    return _linear(spec.out, mixed.transpose(1, 2).flatten(-2))


def _gated(spec: FeedForwardSpec, u: Tensor, rule: float | str) -> Tensor:
    value, gate = _linear(spec.into, u), _linear(spec.gate, u)
    activation, g, v = get_activation(spec.activation), gate.detach(), value.detach()
    if rule == "path":
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        through_value = sum(w / 2 * activation((t + 1) / 2 * g) for t, w in zip(nodes, weights, strict=True))
        small = g.abs() < SMALL
        slope = (activation(g) - through_value) / torch.where(small, torch.ones_like(g), g)
        through_gate = torch.where(small, activation.theta(torch.zeros_like(g)) * g / 2, slope)
        through_value = activation(g) - through_gate * g  # the same, and complete where the limit is not exact
    else:
        through_value, through_gate = rule * activation(g), (1 - rule) * activation.theta(g)
    return _linear(spec.out, through_value * value + through_gate * v * gate)
