"""``bias_split_``: a bias shared among the sources, in place, with the residual added in the same pass."""

from typing import Any

from torch import Tensor

from ..errors import InputError
from . import checks, registry
from .backends import native
from .shares import RULES, Rule, accumulation_dtype, vector_shares


def bias_split_(
    x: Tensor,
    bias: Tensor | None,
    *,
    rule: Rule = "absdot",
    residual: Tensor | None = None,
    share_after_residual: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Share a bias among the sources and add it, and the residual, in place.

    ``x[i,k] <- residual[i,k] + x[i,k] + omega[i,k] bias[i]``, where the weights of ``absdot`` are
    ``omega[k] = |bias . u[k]| / sum_k' |bias . u[k']|`` with ``u = x``, or ``u = x + residual`` if
    ``share_after_residual``. Where that sum is zero the sources whose ``u`` is not all zero share equally,
    and where
    there are none, all do: so the shares always add up to one.

    Args:
        x: ``[b, i, k, d]``, float32, float64, bfloat16 or float16; last axis contiguous, other strides free.
        bias: ``[d]``, or ``[b, i, d]`` (one per position), or ``None``; dtype of ``x`` or float32.
        rule: ``absdot``; ``dot`` (signed); ``equal`` (equally among sources that are not zero); ``cls`` (all
            to source 0); ``none`` (no bias is added); ``norm`` (by ``|u[k]|``) and ``abssim`` (by the
            absolute cosine), which
            only the twin has: there ``backend="auto"`` takes plain PyTorch on every device.
        residual: ``[b, i, k, d]`` like ``x``, not overlapping it, or ``None``.
        share_after_residual: whether the weights come from the vectors after the residual is added.
        backend: ``auto``, ``triton``, ``cuda``, ``native`` or ``torch``.

    Returns:
        ``x``.

    Raises:
        InputError: for a tensor that does not fit, or an unknown rule.
        BackendError: if the named backend cannot be used, with the reason.

    Source: Modarressi et al., ACL 2023, section 3; ``share_after_residual`` is what the authors' code does.
    """
    op = "bias_split_"
    checks.state(op, "x", x)
    checks.choice(op, "rule", rule, RULES)
    checks.per_position(op, "bias", bias, x)
    if residual is not None:
        checks.like_state(op, "residual", residual, x)
    elif share_after_residual:
        raise InputError(f"{op}: share_after_residual=True needs a `residual`, and it is None")
    checks.together(op, x=x, bias=bias, residual=residual)
    if x.numel():
        _bias_split(x, bias, residual, rule, share_after_residual, backend)
    return x


def bias_split_torch(
    x: Tensor,
    bias: Tensor | None,
    *,
    rule: Rule = "absdot",
    residual: Tensor | None = None,
    share_after_residual: bool = False,
) -> None:
    """The twin of :func:`bias_split_` in plain PyTorch; arguments as checked there."""
    work = x.to(accumulation_dtype(x.dtype))  # `x` itself from float32 on
    if residual is not None and share_after_residual:
        work += residual
    shares = None if bias is None or rule == "none" else vector_shares(work, bias, rule=rule)
    if residual is not None and not share_after_residual:
        work += residual
    if bias is not None and shares is not None:
        work.addcmul_(shares.unsqueeze(-1), bias.to(work.dtype).unsqueeze(-2))
    if work is not x:
        x.copy_(work)


@registry.operator("bias_split_", writes=("x",))
def _bias_split(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    rule: str,
    share_after_residual: bool,
    backend: str,
) -> None:
    checks.separate("bias_split_", {"x": x}, bias=bias, residual=residual)
    limits = {
        "triton": registry.triton_dtype_limit(x.dtype) or registry.triton_rule_limit(rule),
        "native": native.limit(x.dtype, rule),
    }
    compute = registry.select("bias_split_", backend, x.device, limits=limits)
    compute(x, bias, rule=rule, residual=residual, share_after_residual=share_after_residual)


registry.implements("bias_split_", "torch")(bias_split_torch)


@registry.implements("bias_split_", "triton")
def _bias_split_triton(*tensors: Any, **options: Any) -> None:
    from ..kernels.bias_split import bias_split as launch

    launch(*tensors, **options)


@registry.implements("bias_split_", "native")
def _bias_split_native(*tensors: Any, **options: Any) -> None:
    native.bias_split(*tensors, **options)
