"""``position_operator``: all of a feed-forward network and its norms as one ``d x d`` matrix per position.

Row vectors times matrices. A norm with frozen statistics, ``C(r) = (r - mean(r)) * gamma / s``, is the matrix
``P diag(gamma) / s`` with ``P = I - 1 1^T / d`` (RMSNorm: ``P = I``; no norm: ``gamma = s = 1`` as well).
Hence

    C1 (I + W_1 diag(theta) W_2) C2 = (P1 G1 P2 G2 + A diag(theta) B) / (s1 s2)
    A = P1 G1 W_1,    B = W_2 P2 G2

with ``G`` the diagonal matrices of the weights. ``A`` and ``B`` are the same for all positions, and cost one
pass over the weights: multiply by ``gamma`` and subtract the mean of each column of ``A`` (of each row of
``W_2`` for ``B``). ``P1 G1 P2 G2`` is diagonal plus rank two, so its elements are computed where they are
added:

    (P1 G1 P2 G2)[r,c] = delta[r,c] gamma1[c] gamma2[c] + p[c] + q[r] gamma2[c]
    p[c] = gamma2[c] c1 (c2 mean(gamma1) - gamma1[c]) / d,    q[r] = -c2 gamma1[r] / d

where ``c1`` and ``c2`` are 1 for a norm that centres and 0 otherwise.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import checks, registry
from .backends.products import multiply
from .mixing import PRECISIONS, Precision
from .shares import accumulation_dtype


class FrozenNorm(NamedTuple):
    """The linear part of a norm: ``(x - mean_d(x)) / scale * weight``.

    Attributes:
        scale: ``[b, i]``, ``sqrt(var + eps)`` of the true state; float32 or float64, positive.
        weight: ``[d]``, or ``None`` for ones; floating.
        centre: whether the mean is subtracted (``False``: RMSNorm).
    """

    scale: Tensor
    weight: Tensor | None = None
    centre: bool = True


def position_operator(
    theta: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    *,
    norm_in: FrozenNorm | None = None,
    norm_out: FrozenNorm | None = None,
    out: Tensor | None = None,
    precision: Precision = "ieee",
    backend: str = "auto",
) -> Tensor:
    """Build ``T[b,i] = C1 (I + W_1 diag(theta[b,i]) W_2) C2`` for a block of positions.

    ``C1`` is the linear part of ``norm_in``, ``C2`` that of ``norm_out``; an absent norm is the identity. Use
    as ``r T`` on row vectors. Nothing of the size ``[b, i, d, f]`` exists at any time.

    Args:
        theta: ``[b, i, f]``, the slopes; dtype of ``w_in`` or float32; last axis contiguous.
        w_in: ``[d, f]``, float32, float64, bfloat16 or float16.
        w_out: ``[f, d]``, dtype of ``w_in``.
        norm_in, norm_out: a :class:`FrozenNorm`, or ``None``.
        out: ``[b, i, d, d]`` to write to, dtype of ``w_in``, last axis contiguous. ``None``: a new tensor.
        precision: of float32 products in Triton, as in :func:`mixing`.
        backend: ``auto``, ``triton``, ``native`` or ``torch``.

    Returns:
        ``out``, ``[b, i, d, d]``.

    Raises:
        InputError: for a tensor or option that does not fit.
        BackendError: if the named backend cannot be used, with the reason.
    """
    op = "position_operator"
    checks.tensor(op, "theta", theta, "b i f")
    checks.tensor(op, "w_in", w_in, "d f")
    b, i, f = theta.shape
    d = w_in.shape[0]
    checks.shape(op, "w_in", w_in, [[d, f]], "f of `theta`; d free")
    checks.shape(op, "w_out", w_out, [[f, d]], "f and d of `w_in`")
    checks.dtype(op, "w_out", w_out, (w_in.dtype,), "that of `w_in`")
    checks.dtype(op, "theta", theta, (w_in.dtype, torch.float32), "that of `w_in`, or float32")
    checks.contiguous_last(op, "theta", theta)
    checks.choice(op, "precision", precision, PRECISIONS)
    for name, norm in (("norm_in", norm_in), ("norm_out", norm_out)):
        _check_norm(op, name, norm, b, i, d)
    if out is None:
        out = w_in.new_empty(b, i, d, d)
    else:
        checks.shape(op, "out", out, [[b, i, d, d]], "b and i of `theta`, d of `w_in`")
        checks.dtype(op, "out", out, (w_in.dtype,), "that of `w_in`")
        checks.state(op, "out", out, axes="b i d d")
    parts: dict[str, Tensor | None] = {}
    for name, norm in (("norm_in", norm_in), ("norm_out", norm_out)):
        if norm is not None:
            parts |= {f"{name}.scale": norm.scale, f"{name}.weight": norm.weight}
    checks.together(op, theta=theta, w_in=w_in, w_out=w_out, out=out, **parts)
    if out.numel():
        factor = _inverse_scale(theta, w_in, norm_in, norm_out)
        folded_in, folded_out = fold_norm_in(w_in, norm_in), fold_norm_out(w_out, norm_out)
        skip = _skip_vectors(w_in, norm_in, norm_out)
        given = {"w_in": w_in, "w_out": w_out} | {name: part for name, part in parts.items() if part is not None}
        names, tensors = ",".join(given), list(given.values())
        _position_operator(out, theta, folded_in, folded_out, factor, skip, precision, backend, names, tensors)
    return out


def fold_norm_in(w: Tensor, norm: FrozenNorm | None) -> Tensor:
    """``P diag(gamma) W``: a norm folded into the weights ``[d, f]`` that follow it, all but its scale."""
    if norm is None:
        return w
    wide = w.to(accumulation_dtype(w.dtype))
    if norm.weight is not None:
        wide = wide * norm.weight.to(wide.dtype).unsqueeze(-1)
    return (wide - wide.mean(0, keepdim=True) if norm.centre else wide).to(w.dtype)


def fold_norm_out(w: Tensor, norm: FrozenNorm | None) -> Tensor:
    """``W P diag(gamma)``: a norm folded into the weights ``[f, d]`` before it, all but its scale."""
    if norm is None:
        return w
    wide = w.to(accumulation_dtype(w.dtype))
    wide = wide - wide.mean(1, keepdim=True) if norm.centre else wide
    return (wide if norm.weight is None else wide * norm.weight.to(wide.dtype)).to(w.dtype)


def position_operator_torch(
    out: Tensor,
    theta: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    factor: Tensor,
    skip: Tensor,
    *,
    precision: str = "ieee",
) -> None:
    """The twin of :func:`position_operator` in plain PyTorch, on folded weights: one product per position.

    Args:
        out, theta: as there.
        w_in, w_out: with the norms folded in.
        factor: ``[b, i]``, ``1 / (s1 s2)``.
        skip: ``[4, d]``, the vectors ``gamma1 gamma2``, ``p``, ``q`` and ``gamma2`` of the module's formula.
    """
    dtype = accumulation_dtype(w_in.dtype)
    wide_in, wide_out = w_in.to(dtype), w_out.to(dtype)
    diagonal, column, row, right = skip
    identity = torch.addcmul(column, row[:, None], right).add_(diagonal.diag())  # [d, d]
    scaled = torch.empty_like(wide_in)  # one buffer for all positions: fresh memory costs more than the scaling
    room = identity.new_empty(0) if dtype is out.dtype else torch.empty_like(identity)
    for n in range(theta.shape[0]):
        for position in range(theta.shape[1]):
            torch.mul(wide_in, theta[n, position].to(dtype) * factor[n, position], out=scaled)
            built = out[n, position] if dtype is out.dtype else room
            multiply(scaled, wide_out, out=built)
            built.addcmul_(identity, factor[n, position])
            if dtype is not out.dtype:
                out[n, position] = built


def _check_norm(op: str, name: str, norm: FrozenNorm | None, b: int, i: int, d: int) -> None:
    if norm is None:
        return
    scale = f"{name}.scale"
    checks.shape(op, scale, norm.scale, [[b, i]], "b and i of `theta`")
    checks.dtype(op, scale, norm.scale, (torch.float32, torch.float64), "it is a statistic of the true state")
    if norm.weight is not None:
        checks.shape(op, f"{name}.weight", norm.weight, [[d]], "d of `w_in`")
        checks.dtype(op, f"{name}.weight", norm.weight, checks.FLOATS, "floating")


def _inverse_scale(theta: Tensor, w_in: Tensor, *norms: FrozenNorm | None) -> Tensor:
    """``1 / (s1 s2)``, ``[b, i]`` in the dtype of accumulation."""
    product = torch.ones(theta.shape[:2], dtype=accumulation_dtype(w_in.dtype), device=theta.device)
    for norm in norms:
        if norm is not None:
            product = product * norm.scale.to(product.dtype)
    return product.reciprocal()


def _skip_vectors(w_in: Tensor, norm_in: FrozenNorm | None, norm_out: FrozenNorm | None) -> Tensor:
    """``[4, d]``: ``gamma1 gamma2``, ``p``, ``q`` and ``gamma2`` of the module's formula."""
    d = w_in.shape[0]
    ones = torch.ones(d, dtype=accumulation_dtype(w_in.dtype), device=w_in.device)
    left = ones if norm_in is None or norm_in.weight is None else norm_in.weight.to(ones.dtype)
    right = ones if norm_out is None or norm_out.weight is None else norm_out.weight.to(ones.dtype)
    centred_in = float(norm_in is not None and norm_in.centre)
    centred_out = float(norm_out is not None and norm_out.centre)
    column = right * (centred_in / d) * (centred_out * left.mean() - left)
    return torch.stack([left * right, column, left * (-centred_out / d), right])


@registry.operator("position_operator", writes=("out",))
def _position_operator(
    out: Tensor,
    theta: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    factor: Tensor,
    skip: Tensor,
    precision: str,
    backend: str,
    names: str,
    given: Sequence[Tensor],
) -> None:
    # What the user gave counts too: folded weights are copies, and theirs would be overwritten in silence.
    user_given = dict(zip(names.split(","), given, strict=True))
    checks.separate("position_operator", {"out": out}, theta=theta, **user_given)
    limit = registry.triton_dtype_limit(w_in.dtype) or registry.triton_precision_limit(w_in.dtype, precision)
    compute = registry.select("position_operator", backend, theta.device, limits={"triton": limit})
    compute(out, theta, w_in, w_out, factor, skip, precision=precision)


registry.implements("position_operator", "torch")(position_operator_torch)
registry.implements("position_operator", "native")(position_operator_torch)  # whose products are those of a library


@registry.implements("position_operator", "triton")
def _position_operator_triton(*tensors: Any, **options: Any) -> None:
    from ..kernels.position_operator import position_operator as launch

    launch(*tensors, **options)
