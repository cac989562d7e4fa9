"""``layernorm_``: a LayerNorm or RMSNorm with frozen statistics on the decomposed state, in place."""

from typing import Any

import torch
from torch import Tensor

from . import checks, registry
from .backends import native
from .shares import RULES, Rule, accumulation_dtype, vector_shares


def layernorm_(
    x: Tensor,
    scale: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    centre: bool = True,
    rule: Rule = "absdot",
    backend: str = "auto",
) -> Tensor:
    """Apply the linear part of a norm to every source's vector and share its bias, in place.

    ``y[i,k] = (x[i,k] - mean_d(x[i,k])) / scale[i] * weight``, then ``x[i,k] <- y[i,k] + omega[i,k] bias``
    with the shares of :func:`bias_split_` taken from ``y``.

    Args:
        x: ``[b, i, k, d]``, float32, float64, bfloat16 or float16; last axis contiguous, other strides free.
        scale: ``[b, i]``, ``sqrt(var + eps)`` of the true state; float32 or float64, positive.
        weight: ``[d]`` or ``None`` for ones; dtype of ``x`` or float32.
        bias: ``[d]`` or ``None``; dtype of ``x`` or float32.
        centre: whether the mean over ``d`` is subtracted (``False``: RMSNorm).
        rule: as in :func:`bias_split_`; ``norm`` and ``abssim`` through the twin only.
        backend: ``auto``, ``triton``, ``cuda``, ``native`` or ``torch``.

    Returns:
        ``x``.

    Raises:
        InputError: for a tensor that does not fit, or an unknown rule.
        BackendError: if the named backend cannot be used, with the reason.

    Source: Modarressi et al., ACL 2023, section 3 (LayerNorm and AbsDot).
    """
    op = "layernorm_"
    checks.state(op, "x", x)
    checks.choice(op, "rule", rule, RULES)
    b, i, _, d = x.shape
    checks.shape(op, "scale", scale, [[b, i]], "b and i of `x`")
    checks.dtype(op, "scale", scale, (torch.float32, torch.float64), "it is a statistic of the true state")
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is not None:
            checks.shape(op, name, vector, [[d]], "d of `x`")
            checks.per_position(op, name, vector, x)
    checks.together(op, x=x, scale=scale, weight=weight, bias=bias)
    if x.numel():
        _layernorm(x, scale, weight, bias, centre, rule, backend)
    return x


def layernorm_torch(
    x: Tensor,
    scale: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    centre: bool = True,
    rule: Rule = "absdot",
) -> None:
    """The twin of :func:`layernorm_` in plain PyTorch; arguments as checked there."""
    work = x.to(accumulation_dtype(x.dtype))  # `x` itself from float32 on
    if centre:
        work -= work.mean(-1, keepdim=True)
    scale = scale.to(work.dtype)[:, :, None, None]
    work *= scale.reciprocal() if weight is None else weight.to(work.dtype) / scale  # [b, i, 1, d]
    if bias is not None and rule != "none":
        shares = vector_shares(work, bias, rule=rule)
        work.addcmul_(shares.unsqueeze(-1), bias.to(work.dtype))
    if work is not x:
        x.copy_(work)


@registry.operator("layernorm_", writes=("x",))
def _layernorm(
    x: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    centre: bool,
    rule: str,
    backend: str,
) -> None:
    checks.separate("layernorm_", {"x": x}, scale=scale, weight=weight, bias=bias)
    limits = {
        "triton": registry.triton_dtype_limit(x.dtype) or registry.triton_rule_limit(rule),
        "native": native.limit(x.dtype, rule),
    }
    compute = registry.select("layernorm_", backend, x.device, limits=limits)
    compute(x, scale, weight, bias, centre=centre, rule=rule)


registry.implements("layernorm_", "torch")(layernorm_torch)


@registry.implements("layernorm_", "triton")
def _layernorm_triton(*tensors: Any, **options: Any) -> None:
    from ..kernels.layernorm import layernorm as launch

    launch(*tensors, **options)


@registry.implements("layernorm_", "native")
def _layernorm_native(*tensors: Any, **options: Any) -> None:
    native.layernorm(*tensors, **options)
