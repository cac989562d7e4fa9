"""``add_norm_``: what a sublayer gives, with its bias, added to the decomposed state, and the norm after it."""

from collections.abc import Callable

import torch
from torch import Tensor

from . import checks, registry
from .backends import native
from .shares import RULES, Rule


def add_norm_(
    x: Tensor,
    branch: Tensor,
    branch_bias: Tensor | None,
    scale: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    share_after_residual: bool = False,
    centre: bool = True,
    rule: Rule = "absdot",
    backend: str = "auto",
) -> Tensor:
    """:func:`bias_split_` of a branch with the state as its residual, then :func:`layernorm_`, all in the state.

    ``r[i,k] = x[i,k] + branch[i,k] + omega[i,k] branch_bias``, then ``x[i,k] <- C(r[i,k]) + omega'[i,k] bias`` with
    ``C`` the linear part of the norm.

    Args:
        x: ``[b, i, k, d]``, float32, float64, bfloat16 or float16; last axis contiguous, other strides free.
        branch: like ``x``, not overlapping it; overwritten, with nothing that is of use.
        branch_bias: ``[d]`` or ``None``; dtype of ``x`` or float32.
        scale, weight, bias, centre: of the norm, as in :func:`layernorm_`.
        share_after_residual: whether the weights ``omega`` come from ``x + branch`` and not from ``branch``.
        rule: as in :func:`bias_split_`, for both biases.
        backend: ``auto``, ``triton``, ``cuda``, ``native`` or ``torch``.

    Returns:
        ``x``.

    Raises:
        InputError: for a tensor that does not fit, or an unknown rule.
        BackendError: if the named backend cannot be used, with the reason.

    Source: Modarressi et al., ACL 2023, section 3 (AbsDot, residual connection and LayerNorm).
    """
    op = "add_norm_"
    checks.state(op, "x", x)
    checks.like_state(op, "branch", branch, x)
    checks.writable(op, "branch", branch)
    checks.choice(op, "rule", rule, RULES)
    checks.shape(op, "scale", scale, [list(x.shape[:2])], "b and i of `x`")
    checks.dtype(op, "scale", scale, (torch.float32, torch.float64), "it is a statistic of the true state")
    for name, vector in (("branch_bias", branch_bias), ("weight", weight), ("bias", bias)):
        if vector is not None:
            checks.shape(op, name, vector, [[x.shape[3]]], "d of `x`")
            checks.per_position(op, name, vector, x)
    checks.together(op, x=x, branch=branch, branch_bias=branch_bias, scale=scale, weight=weight, bias=bias)
    if x.numel():
        _add_norm(x, branch, branch_bias, scale, weight, bias, share_after_residual, centre, rule, backend)
    return x


@registry.operator("add_norm_", writes=("x", "branch"))
def _add_norm(
    x: Tensor,
    branch: Tensor,
    branch_bias: Tensor | None,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    share_after_residual: bool,
    centre: bool,
    rule: str,
    backend: str,
) -> None:
    read = {"branch_bias": branch_bias, "scale": scale, "weight": weight, "bias": bias}
    checks.separate("add_norm_", {"x": x, "branch": branch}, **read)
    limits = {
        "triton": registry.triton_dtype_limit(x.dtype) or registry.triton_rule_limit(rule),
        "native": native.limit(x.dtype, rule),
    }
    compute = registry.select("add_norm_", backend, x.device, limits=limits)
    options = {"share_after_residual": share_after_residual, "centre": centre, "rule": rule}
    compute(x, branch, branch_bias, scale, weight, bias, **options)


registry.implements("add_norm_", "native")(native.add_norm)


def _one_after_the_other(backend: str) -> Callable[..., None]:
    """By the two ops that it is made of."""

    def compute(
        x: Tensor,
        branch: Tensor,
        branch_bias: Tensor | None,
        scale: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        *,
        share_after_residual: bool,
        centre: bool,
        rule: str,
    ) -> None:
        split, norm = (registry.select(op, backend, x.device) for op in ("bias_split_", "layernorm_"))
        split(branch, branch_bias, rule=rule, residual=x, share_after_residual=share_after_residual)
        norm(branch, scale, weight, bias, centre=centre, rule=rule)
        x.copy_(branch)

    return compute


for _backend in ("torch", "triton", "cuda"):
    registry.implements("add_norm_", _backend)(_one_after_the_other(_backend))
