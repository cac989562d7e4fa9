"""``position_apply``: one matrix per position applied to all its sources, and the bias updates with it."""

from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from . import checks, registry
from .backends.products import multiply_each
from .functional_dots import MOST_FUNCTIONALS
from .mixing import PRECISIONS, Precision
from .shares import accumulation_dtype


def position_apply(
    r: Tensor,
    t: Tensor,
    shares: Tensor | None = None,
    u: Tensor | None = None,
    *,
    out: Tensor | None = None,
    precision: Precision = "ieee",
    backend: str = "auto",
) -> Tensor:
    """``out[b,i,k,:] = r[b,i,k,:] t[b,i] + sum_m shares[b,i,k,m] u[b,i,m,:]``.

    Args:
        r: ``[b, i, k, d]``, float32, float64, bfloat16 or float16; last axis contiguous, other strides free.
        t: ``[b, i, d, e]``, dtype of ``r``; last axis contiguous.
        shares: ``[b, i, k, m]`` with ``m <= 8``; dtype of ``r`` or float32.
        u: ``[b, i, m, e]``; dtype of ``r`` or float32; last axis contiguous. Given if and only if ``shares``
            are.
        out: ``[b, i, k, e]`` to write to, dtype of ``r``, last axis contiguous, not overlapping any input.
            ``None``: a new tensor.
        precision: of float32 products in Triton, as in :func:`mixing`.
        backend: ``auto``, ``triton``, ``native`` or ``torch``.

    Returns:
        ``out``, ``[b, i, k, e]``.

    Raises:
        InputError: for a tensor or option that does not fit.
        BackendError: if the named backend cannot be used, with the reason.
    """
    op = "position_apply"
    checks.tensor(op, "r", r, "b i k d")
    checks.contiguous_last(op, "r", r)
    checks.tensor(op, "t", t, "b i d e")
    b, i, k, d = r.shape
    e = t.shape[-1]
    checks.shape(op, "t", t, [[b, i, d, e]], "b, i and d of `r`; e free")
    checks.dtype(op, "t", t, (r.dtype,), "that of `r`")
    checks.contiguous_last(op, "t", t)
    _check_update(op, r, t, shares, u)
    checks.choice(op, "precision", precision, PRECISIONS)
    if out is None:
        out = r.new_empty(b, i, k, e)
    else:
        checks.shape(op, "out", out, [[b, i, k, e]], "b, i and k of `r`, e of `t`")
        checks.dtype(op, "out", out, (r.dtype,), "that of `r`")
        checks.state(op, "out", out, axes="b i k e")
    checks.together(op, r=r, t=t, shares=shares, u=u, out=out)
    if out.numel():
        _position_apply(out, r, t, shares, u, precision, backend)
    return out


def _check_update(op: str, r: Tensor, t: Tensor, shares: Tensor | None, u: Tensor | None) -> None:
    if (shares is None) != (u is None):
        missing, given = ("shares", "u") if shares is None else ("u", "shares")
        raise InputError(f"{op}: `{given}` is given and `{missing}` is None: give both, or neither")
    if shares is None or u is None:
        return
    checks.tensor(op, "shares", shares, "b i k m")
    b, i, k, _ = r.shape
    m = shares.shape[-1]
    if m > MOST_FUNCTIONALS:
        raise InputError(f"{op}: `shares` hold {m} updates; at most {MOST_FUNCTIONALS} are allowed")
    checks.shape(op, "shares", shares, [[b, i, k, m]], "b, i and k of `r`; m free")
    checks.shape(op, "u", u, [[b, i, m, t.shape[-1]]], "b, i of `r`, m of `shares`, e of `t`")
    for name, part in (("shares", shares), ("u", u)):
        checks.dtype(op, name, part, (r.dtype, torch.float32), "that of `r`, or float32")
    checks.contiguous_last(op, "u", u)


def position_apply_torch(
    out: Tensor, r: Tensor, t: Tensor, shares: Tensor | None, u: Tensor | None, *, precision: str = "ieee"
) -> None:
    """The twin of :func:`position_apply` in plain PyTorch; arguments as checked there."""
    dtype = accumulation_dtype(r.dtype)
    for n in range(r.shape[0]):
        # Half precisions position by position: only then are the float32 copies small.
        for rows in [slice(None)] if dtype is r.dtype else [slice(p, p + 1) for p in range(r.shape[1])]:
            product = out[n, rows] if dtype is r.dtype else out.new_empty(1, *out.shape[2:], dtype=dtype)  # [i, k, e]
            multiply_each(r[n, rows].to(dtype), t[n, rows].to(dtype), out=product)
            if shares is not None and u is not None:
                product.baddbmm_(shares[n, rows].to(dtype), u[n, rows].to(dtype))
            if dtype is not r.dtype:
                out[n, rows] = product


@registry.operator("position_apply", writes=("out",))
def _position_apply(
    out: Tensor,
    r: Tensor,
    t: Tensor,
    shares: Tensor | None,
    u: Tensor | None,
    precision: str,
    backend: str,
) -> None:
    checks.separate("position_apply", {"out": out}, r=r, t=t, shares=shares, u=u)
    limit = registry.triton_dtype_limit(r.dtype) or registry.triton_precision_limit(r.dtype, precision)
    compute = registry.select("position_apply", backend, r.device, limits={"triton": limit})
    compute(out, r, t, shares, u, precision=precision)


registry.implements("position_apply", "torch")(position_apply_torch)
registry.implements("position_apply", "native")(position_apply_torch)  # whose products are those of a library


@registry.implements("position_apply", "triton")
def _position_apply_triton(*tensors: Any, **options: Any) -> None:
    from ..kernels.position_apply import position_apply as launch

    launch(*tensors, **options)
