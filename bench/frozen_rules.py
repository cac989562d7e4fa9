"""Other rules than the engines have, tried by automatic differentiation: DecompX without biases.

With norms and activations frozen, what a token contributes is its embedding times the gradient of the frozen model.
What is then left that is not linear are two products, each of which is made linear with constant coefficients.

A gated network ``act(g) * u``, in ``g`` and ``u``:

    share      share act(g) u  +  (1 - share) theta(g) g u        the rules of the engines are 1 (value) and 1/2 (half)
    path       I(g) u  +  (act(g) - I(g)) / g  g u,               I(g) = integral over t from 0 to 1 of act(t g)

The last is what each factor gains along the straight way from 0 (Aumann and Shapley's values of two players), of which
the slope through the origin is the case of one: half for a gate that is linear.

An attention ``sum_j a_j v_j``, ``a = softmax(z)`` with ``z = q . k``, in ``v``, ``q`` and ``k``, by a part of it that
goes to the values and what the logits gain, ``W[z]``: the softmax's Jacobian ``J`` times ``z``, of which half goes to
the query, by ``q`` with the keys constant, and half to the keys.

    parts      value a v  +  logits J(z)[z] v       (1, 0) is the rule of the engines, (1/2, 1/2) that of AttnLRP
    local      (a - W[z]) v  +  W[z] v,             W = J(z) / 2
    path       the same with W = integral over t of 2 t^2 J(t^2 z): Aumann and Shapley's values of q, k and v

The last two are complete, as is (1, 0): the scores sum to what is explained. With other parts the rest of ``a v`` is
left out, like a bias that no token has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from attributions import Said, Scores, positions_of
from torch import Tensor, nn

from decompx_fast.activations import get_activation
from decompx_fast.evaluation.methods import relevance
from decompx_fast.linearize.layer import AttentionPattern
from decompx_fast.linearize.linearization import linearize, specification
from decompx_fast.linearize.spec import AttentionSpec, Context, FeedForwardSpec, LayerSpec

#: Of Gauss-Legendre quadrature, and where ``(act(g) - I(g)) / g`` is its limit, ``g act'(0) / 2``.
NODES, SMALL = 8, 1e-3

#: The parts of the value and of the logits, or a rule that is complete.
AttentionRule = tuple[float, float] | Literal["local", "path"]
FROZEN, LRP = (1.0, 0.0), (0.5, 0.5)


@dataclass(frozen=True)
class Rules:
    """How products are made linear.

    Attributes:
        gate: the share of a gated product that goes through the value, or ``"path"``.
        attention: which rule for attentions.
    """

    gate: float | Literal["path"] = 0.5
    attention: AttentionRule = FROZEN


def with_rules(rules: Rules) -> Scores:
    """Scores with these rules."""

    def score(model: nn.Module, said: Said) -> Tensor:
        spec, linearization = specification(model), linearize(model, {"input_ids": said.fed})
        with torch.enable_grad():
            x = linearization.embedding.clone().requires_grad_()
            rows = _layers(spec.layers, x, linearization.contexts, rules)[:, positions_of(model, said)]
            logits = relevance.head(spec.head, rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
            (gradient,) = torch.autograd.grad(said.value(logits).sum(), x)
        return (x.detach() * gradient).sum(-1).double()

    return score


def _layers(layers: Sequence[LayerSpec], x: Tensor, contexts: Sequence[Context], rules: Rules) -> Tensor:
    for layer, context in zip(layers, contexts, strict=True):
        for sublayer in layer:
            (op,) = sublayer.ops
            u = relevance.norm(sublayer.pre_norm, x)
            if isinstance(op, AttentionSpec):
                branch = _attention(op, u, context, rules.attention)
            elif isinstance(op, FeedForwardSpec):
                branch = relevance.feed_forward(op, u) if op.gate is None else _gated(op, u, rules.gate)
            else:
                raise TypeError(f"layers of attentions and networks, not of a {type(op).__name__}")
            x = relevance.norm(sublayer.post_norm, x + relevance.norm(sublayer.out_norm, branch))
    return x


def _linear(map_, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    y = x @ map_.matrix.to(x.dtype)
    return y if map_.vector is None else y + map_.vector.to(x.dtype)


def _attention(spec: AttentionSpec, u: Tensor, context: Context, rule: AttentionRule) -> Tensor:
    query = _linear(spec.query, u).unflatten(-1, (spec.heads, -1)).transpose(1, 2)  # [b, h, i, v]
    key = _linear(spec.key, u).unflatten(-1, (spec.kv_heads, -1)).transpose(1, 2)  # [b, g, j, v]
    value = _linear(spec.value, u).unflatten(-1, (spec.kv_heads, -1)).transpose(1, 2)  # [b, g, j, v]
    bias = None
    if spec.positions is not None:
        query, key, bias = spec.positions(query, key, context)
    pattern = AttentionPattern(query, key, spec.scale, spec.causal, spec.window, bias)
    key, value = (one.repeat_interleave(spec.heads // spec.kv_heads, dim=1) for one in (key, value))  # [b, h, j, v]
    weights = pattern.weights().detach()  # [b, h, i, j]
    by_logits = _by_logits(pattern, key, rule)
    by_value = weights - by_logits.detach() if isinstance(rule, str) else rule[0] * weights
    mixed = by_value @ value + by_logits @ value.detach()
    mixed = mixed + (weights @ value - mixed).detach()  # what a rule leaves out is a constant of the true state
    return _linear(spec.out, mixed.transpose(1, 2).flatten(-2))


def _by_logits(pattern: AttentionPattern, key: Tensor, rule: AttentionRule) -> Tensor:
    """``W[z]``, ``[b, h, i, j]``, linear in the queries and the keys ``[b, h, j, v]``, of which each has half."""
    if rule == "path":
        nodes, parts = np.polynomial.legendre.leggauss(NODES)
        at = [(((t + 1) / 2) ** 2, w * ((t + 1) / 2) ** 2) for t, w in zip(nodes, parts, strict=True)]
    else:
        at = [(1.0, 0.5 if isinstance(rule, str) else rule[1])]
    query, fixed = pattern.query, key.detach()
    logits = 0.5 * pattern.scale * (query @ fixed.transpose(-1, -2) + query.detach() @ key.transpose(-1, -2))
    total = torch.zeros_like(logits)
    for scale, part in (one for one in at if one[1] > 0):
        weights = AttentionPattern(
            query.detach() * scale, pattern.key.detach(), pattern.scale, pattern.causal, pattern.window, pattern.bias
        ).weights()
        total = total + part * weights * (logits - (weights * logits).sum(-1, keepdim=True))
    return total


def _gated(spec: FeedForwardSpec, u: Tensor, rule: float | Literal["path"]) -> Tensor:
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
