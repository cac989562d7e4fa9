"""``activation_``: the frozen activation on the decomposed hidden of a feed-forward network, in place."""

from typing import Any

from torch import Tensor

from . import checks, registry
from .backends import native
from .shares import RULES, Rule, accumulation_dtype, vector_shares


def activation_(
    a: Tensor,
    slope: Tensor,
    bias: Tensor | None = None,
    *,
    intercept: Tensor | None = None,
    rule: Rule = "absdot",
    backend: str = "auto",
) -> Tensor:
    """Share the bias before an activation, multiply by its frozen slope, and share its intercept, in place.

    ``v[i,k] = slope[i] * (a[i,k] + omega[i,k] bias)``, then ``a[i,k] <- v[i,k] + omega'[i,k] intercept[i]``.
    The shares are those of :func:`bias_split_`: ``omega`` from ``a``, ``omega'`` from ``v`` with the
    intercept as the bias.

    Args:
        a: ``[b, i, k, f]``, float32, float64, bfloat16 or float16; last axis contiguous, other strides free.
        slope: ``[b, i, f]``: ``act(z) / z`` (zero-origin), ``act'(z)`` (tangent) or the mask ``z > 0``, at
            the true pre-activation ``z``; dtype of ``a`` or float32.
        bias: ``[f]`` or ``[b, i, f]`` or ``None``; dtype of ``a`` or float32.
        intercept: ``[b, i, f]``, ``act(z) - act'(z) z`` of the tangent, or ``None``; dtype of ``a`` or
            float32.
        rule: as in :func:`bias_split_`; ``norm`` and ``abssim`` through the twin only. ``none`` adds neither
            the bias nor the intercept.
        backend: ``auto``, ``triton``, ``cuda``, ``native`` or ``torch``.

    Returns:
        ``a``.

    Raises:
        InputError: for a tensor that does not fit, or an unknown rule.
        BackendError: if the named backend cannot be used, with the reason.

    Source: Modarressi et al., ACL 2023, section 3 (activation functions).
    """
    op = "activation_"
    checks.state(op, "a", a, axes="b i k f")
    checks.choice(op, "rule", rule, RULES)
    b, i, _, f = a.shape
    checks.per_position(op, "bias", bias, a, state="a")
    for name, vector in (("slope", slope), ("intercept", intercept)):
        if vector is not None or name == "slope":
            checks.shape(op, name, vector, [[b, i, f]], "b, i and f of `a`")
            checks.per_position(op, name, vector, a, state="a")
    checks.together(op, a=a, slope=slope, bias=bias, intercept=intercept)
    if a.numel():
        _activation(a, slope, bias, intercept, rule, backend)
    return a


def activation_torch(
    a: Tensor,
    slope: Tensor,
    bias: Tensor | None = None,
    *,
    intercept: Tensor | None = None,
    rule: Rule = "absdot",
) -> None:
    """The twin of :func:`activation_` in plain PyTorch; arguments as checked there."""
    work = a.to(accumulation_dtype(a.dtype))  # `a` itself from float32 on
    if bias is not None and rule != "none":
        shares = vector_shares(work, bias, rule=rule)
        work.addcmul_(shares.unsqueeze(-1), bias.to(work.dtype).unsqueeze(-2))
    work *= slope.unsqueeze(-2)  # [b, i, 1, f]
    if intercept is not None and rule != "none":
        shares = vector_shares(work, intercept, rule=rule)
        work.addcmul_(shares.unsqueeze(-1), intercept.to(work.dtype).unsqueeze(-2))
    if work is not a:
        a.copy_(work)


@registry.operator("activation_", writes=("a",))
def _activation(
    a: Tensor, slope: Tensor, bias: Tensor | None, intercept: Tensor | None, rule: str, backend: str
) -> None:
    checks.separate("activation_", {"a": a}, slope=slope, bias=bias, intercept=intercept)
    limits = {
        "triton": registry.triton_dtype_limit(a.dtype) or registry.triton_rule_limit(rule),
        "native": native.limit(a.dtype, rule),
    }
    compute = registry.select("activation_", backend, a.device, limits=limits)
    compute(a, slope, bias, intercept=intercept, rule=rule)


registry.implements("activation_", "torch")(activation_torch)


@registry.implements("activation_", "triton")
def _activation_triton(*tensors: Any, **options: Any) -> None:
    from ..kernels.activation import activation as launch

    launch(*tensors, **options)


@registry.implements("activation_", "native")
def _activation_native(*tensors: Any, **options: Any) -> None:
    native.activation(*tensors, **options)
