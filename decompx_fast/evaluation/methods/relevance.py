"""Layer-wise relevance propagation with the rules for attention (AttnLRP).

Relevance starts as the logit and is passed back, each component by a rule. With ``R`` the relevance of its output and
``z`` that output, a component that is given the gradient ``g = R / z`` passes on ``x * (dz/dx g)`` to its input ``x``.
So the rules need no propagation of their own: they are the gradient times the input of the same model with a few
factors held constant, which is how the authors' library LXT has it. The numbers are those of the paper, section 3.

    linear map, sum    epsilon rule (equation 8), epsilon -> 0     R_j = sum_i x_j W_ji R_i / z_i
    activation         identity rule (equation 9)                  act(z) = theta z, theta constant
    gate               uniform rule (proposition 3.2)              each factor gets half of the gradient
    softmax            Taylor expansion (proposition 3.1)          R_i = x_i (R_i - s_i sum_j R_j): its own gradient
    matrix product     epsilon and uniform rule (proposition 3.3)  each factor gets half of the gradient
    norm               identity rule (proposition 3.4)             the standard deviation is constant

Nothing is divided by ``z`` here, so no stabilising epsilon is needed: it is 0.

Relevance is conserved by every rule but for what the constant terms take: a bias its share ``b . g``, and a softmax the
remainder ``s - (ds/dx) x`` of its expansion, which the paper calls its bias. So the scores sum to the logit less these.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ...activations import get_activation
from ...linearize.layer import AttentionPattern, Norm
from ...linearize.linearization import linearize, only_device, specification
from ...linearize.spec import (
    NO_CONTEXT,
    Affine,
    AttentionSpec,
    Context,
    FeedForwardSpec,
    HeadStepSpec,
    LayerSpec,
    NormSpec,
    ScaleSpec,
    SublayerSpec,
)
from ..linearized import hubs_refusal, refuse_convolutions
from ..method import Problem, method
from .logits import class_logit, on_device, plain_autograd


@method(
    "attn-lrp",
    "AttnLRP",
    signed=True,
    about="Relevance of the logit passed back to the output of the embedding block and summed over d, with the rules "
    "of AttnLRP (Achtibat et al., ICML 2024, equations 8 and 9, propositions 3.1 to 3.4), epsilon 0.",
)
def attn_lrp(problem: Problem) -> list[Tensor]:
    """``score[k] = sum_d x[k,d] g[k,d]``: ``x`` the output of the embedding block, ``g`` the gradient under the rules.

    The paper stops at the input embeddings. As in DecompX, all that the embedding block adds to a word (its position
    and segment) belongs to its token, so that the relevance of the block's output is that of the token.

    Raises:
        UnsupportedModelError: if the model is not supported, or does not compute what its architecture says.
        InputError: for a class that the model has not.
    """
    spec = specification(problem.model)
    device = only_device(problem.model)
    scores = []
    for encoded, target in zip(problem.inputs, problem.classes, strict=True):
        linearization = linearize(problem.model, on_device(encoded, device))
        with plain_autograd(device, grad=True):
            x = linearization.embedding.clone().requires_grad_()
            state = forward(spec.layers, x, linearization.contexts)
            own = linearization.head(state.detach())  # compares with the model's own logits
            rows = own.read(state)  # [b, r, d], of which the mean of the logits is wanted where there are several
            logit = class_logit(partial(head, spec.head), target)(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
            logit = own.reading.together(logit)[:, 0]
            relevance = gradient_times_input(logit, x)
            scores.append(relevance[0].double().cpu())
    return scores


def gradient_times_input(logit: Tensor, x: Tensor) -> Tensor:
    """The relevance of ``x`` ``[b, i, d]`` for ``logit`` ``[b]``, summed over ``d``: ``[b, i]``."""
    (gradient,) = torch.autograd.grad(logit.sum(), x)
    return (x.detach() * gradient).sum(-1)


def forward(layers: Sequence[LayerSpec], x: Tensor, contexts: Sequence[Context] | None = None) -> Tensor:
    """The layers on the embeddings ``x`` ``[b, i, d]``: true values, and gradients by the rules.

    ``contexts`` are what the model called the layers with besides, for attentions with positions of their own.
    """
    for layer, context in zip(layers, contexts or [NO_CONTEXT] * len(layers), strict=True):
        for sublayer in layer:
            x = _sublayer(sublayer, x, context)
    return x


def head(steps: Sequence[HeadStepSpec], x: Tensor) -> Tensor:
    """The logits ``[b, c]`` from the state ``x`` ``[b, d]`` that the head reads."""
    for step in steps:
        x = x if step.map is None else _linear(step.map, x)
        x = x if step.activation is None else activation(step.activation, x)
        x = norm(step.norm, x.unsqueeze(1)).squeeze(1)
    return x


def half(x: Tensor) -> Tensor:
    """``x``, of which half is constant: the uniform rule for one of two factors."""
    return 0.5 * x + (0.5 * x).detach()


def activation(name: str, z: Tensor) -> Tensor:
    """``theta z`` with ``theta = act(z) / z`` constant: the identity rule."""
    return get_activation(name).theta(z.detach()) * z


def norm(spec: NormSpec | ScaleSpec | None, x: Tensor) -> Tensor:
    """A LayerNorm or RMSNorm with its standard deviation constant; the mean is a linear map."""
    if spec is None or isinstance(spec, ScaleSpec):
        return x if spec is None else x * spec.factor
    true = x.detach()
    second_moment = true.var(-1, unbiased=False) if spec.centre else true.square().mean(-1)
    weight = None if spec.weight is None else _constant(spec.weight, x)
    y = Norm(torch.sqrt(second_moment + spec.eps), weight, None, spec.centre).linear(x)
    return y if spec.bias is None else y + _constant(spec.bias, x)


def attention(spec: AttentionSpec, u: Tensor, context: Context = NO_CONTEXT) -> Tensor:
    """Self-attention on ``u`` ``[b, i, d]``: both of its products under the uniform rule, the softmax as it is."""
    if spec.hubs is not None and spec.hubs.where(u.shape[1], context) is not None:
        raise hubs_refusal("relevance")
    query = _linear(spec.query, u).unflatten(-1, (spec.heads, -1)).transpose(1, 2)  # [b, h, i, v]
    key = _linear(spec.key, u).unflatten(-1, (spec.kv_heads, -1)).transpose(1, 2)  # [b, g, j, v]
    value = _linear(spec.value, u).unflatten(-1, (spec.kv_heads, -1)).transpose(1, 2)  # [b, g, j, v]
    bias = None
    if spec.positions is not None:
        query, key, bias = spec.positions(query, key, context)
    pattern = AttentionPattern(half(query), half(key), spec.scale, spec.causal, spec.window, bias)
    value = half(value).repeat_interleave(spec.heads // spec.kv_heads, dim=1)  # [b, h, j, v]
    mixed = half(pattern.weights()) @ value  # [b, h, i, v]
    return _linear(spec.out, mixed.transpose(1, 2).flatten(-2))


def feed_forward(spec: FeedForwardSpec, u: Tensor) -> Tensor:
    """A feed-forward network on ``u`` ``[b, i, d]``; where it is gated, gate and value are the factors of a product."""
    hidden = _linear(spec.into, u)
    if spec.gate is None:
        hidden = activation(spec.activation, hidden)
    else:
        hidden = half(activation(spec.activation, _linear(spec.gate, u))) * half(hidden)
    return _linear(spec.out, hidden)


def _sublayer(spec: SublayerSpec, x: Tensor, context: Context) -> Tensor:
    refuse_convolutions((spec,), "relevance")
    u = norm(spec.pre_norm, x)
    branch = torch.stack(
        [
            feed_forward(op, u if op.norm is None else norm(op.norm, x))
            if isinstance(op, FeedForwardSpec)
            else attention(op, u, context)
            for op in spec.ops
            if isinstance(op, (FeedForwardSpec, AttentionSpec))  # all others are refused above
        ]
    ).sum(0)
    return norm(spec.post_norm, x + norm(spec.out_norm, branch))


def _linear(map_: Affine, x: Tensor) -> Tensor:
    y, vector = x @ _constant(map_.matrix, x), map_.vector
    return y if vector is None else y + _constant(vector, x)


def _constant(tensor: Tensor, like: Tensor) -> Tensor:
    """A weight in the dtype of the computation; a copy if it was made in inference mode, which autograd refuses."""
    return tensor.clone().to(like.dtype) if tensor.is_inference() else tensor.to(like.dtype)
