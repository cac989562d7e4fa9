"""``functional_dots``: a few functionals of every source's vector, with one read of the state."""

from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from . import checks, registry
from .backends import native
from .shares import accumulation_dtype

MOST_FUNCTIONALS = 8


def functional_dots(x: Tensor, g: Tensor, *, backend: str = "auto") -> Tensor:
    """``out[b,i,k,m] = x[b,i,k,:] . g[b,i,m,:]``, accumulated in float32 at least.

    Args:
        x: ``[b, i, k, d]``, float32, float64, bfloat16 or float16; last axis contiguous, other strides free.
        g: ``[b, i, m, d]`` with ``m <= 8``; dtype of ``x`` or float32; last axis contiguous.
        backend: ``auto``, ``triton``, ``native`` or ``torch``.

    Returns:
        ``[b, i, k, m]``, float32 (float64 for a float64 ``x``).

    Raises:
        InputError: for a tensor that does not fit.
        BackendError: if the named backend cannot be used, with the reason.
    """
    op = "functional_dots"
    checks.tensor(op, "x", x, "b i k d")
    checks.contiguous_last(op, "x", x)
    checks.tensor(op, "g", g, "b i m d")
    b, i, k, d = x.shape
    m = g.shape[2]
    checks.shape(op, "g", g, [[b, i, m, d]], "b, i and d of `x`; m free")
    if m > MOST_FUNCTIONALS:
        raise InputError(f"{op}: `g` holds {m} functionals; at most {MOST_FUNCTIONALS} are allowed: split it")
    checks.dtype(op, "g", g, (x.dtype, torch.float32), "that of `x`, or float32")
    checks.contiguous_last(op, "g", g)
    checks.together(op, x=x, g=g)
    out = torch.empty(b, i, k, m, dtype=accumulation_dtype(x.dtype), device=x.device)
    if d == 0:
        return out.zero_()
    if out.numel():
        _functional_dots(out, x, g, backend)
    return out


def functional_dots_torch(out: Tensor, x: Tensor, g: Tensor) -> None:
    """The twin of :func:`functional_dots` in plain PyTorch; arguments as checked there."""
    for n in range(x.shape[0]):
        out[n] = x[n].to(out.dtype) @ g[n].to(out.dtype).transpose(-1, -2)


@registry.operator("functional_dots", writes=("out",))
def _functional_dots(out: Tensor, x: Tensor, g: Tensor, backend: str) -> None:
    checks.separate("functional_dots", {"out": out}, x=x, g=g)
    limits = {"triton": registry.triton_dtype_limit(x.dtype), "native": native.limit(x.dtype)}
    registry.select("functional_dots", backend, x.device, limits=limits)(out, x, g)


registry.implements("functional_dots", "torch")(functional_dots_torch)


@registry.implements("functional_dots", "triton")
def _functional_dots_triton(*tensors: Any, **options: Any) -> None:
    from ..kernels.functional_dots import functional_dots as launch

    launch(*tensors, **options)


@registry.implements("functional_dots", "native")
def _functional_dots_native(*tensors: Any, **options: Any) -> None:
    native.functional_dots(*tensors, **options)
