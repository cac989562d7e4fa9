"""The method's formulas (DESIGN 2.2, 2.3 and 4.1) in float64, written as loops and full matrices: slow and obvious.

Nothing here comes from the package, so the ops and kernels can be compared with it. All is computed on the CPU,
wherever the arguments are.
"""

from __future__ import annotations

import torch
from torch import Tensor

RULES = ("absdot", "dot", "equal", "cls", "none", "norm", "abssim")


def wide(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if t is None else t.detach().to("cpu", torch.float64).clone() for t in tensors]


def shares_of_position(u: Tensor, bias: Tensor, rule: str) -> list[float]:
    """``u`` is ``[k, d]``, ``bias`` ``[d]``."""
    sources = range(u.shape[0])
    nonzero = [bool((u[k] != 0).any()) for k in sources]
    if rule == "none":
        return [0.0 for _ in sources]
    if rule == "cls":
        return [1.0 if k == 0 else 0.0 for k in sources]
    if rule == "equal":
        weights = [float(n) for n in nonzero]
    else:
        dots = [float((u[k] * bias).sum()) for k in sources]
        norms = [float((u[k] ** 2).sum()) ** 0.5 for k in sources]
        weights = {
            "absdot": [abs(x) for x in dots],
            "dot": dots,
            "norm": norms,
            "abssim": [abs(x) / n if n else 0.0 for x, n in zip(dots, norms, strict=True)],
        }[rule]
    total = sum(weights)
    if total == 0:
        weights = [float(n) for n in nonzero] if any(nonzero) else [1.0 for _ in sources]
        total = sum(weights)
    return [w / total for w in weights]


def shares(u: Tensor, bias: Tensor, rule: str) -> Tensor:
    """``[b, i, k]`` from ``u`` ``[b, i, k, d]`` and ``bias`` ``[d]`` or ``[b, i, d]``."""
    u, bias = wide(u, bias)
    bias = bias.expand(*u.shape[:2], u.shape[3])
    rows = [[shares_of_position(u[n, i], bias[n, i], rule) for i in range(u.shape[1])] for n in range(u.shape[0])]
    return torch.tensor(rows, dtype=torch.float64).reshape(u.shape[:3])


def with_share(u: Tensor, from_vectors: Tensor, bias: Tensor | None, rule: str) -> Tensor:
    if bias is None:
        return u
    share = shares(from_vectors, bias, rule)
    return u + torch.einsum("bik,bid->bikd", share, bias.expand(*u.shape[:2], u.shape[3]))


def bias_split(x, bias, rule="absdot", residual=None, share_after_residual=False):
    x, bias, residual = wide(x, bias, residual)
    together = x if residual is None else x + residual
    return with_share(together, together if share_after_residual else x, bias, rule)


def norm_matrix(d: int, scale: float, weight: Tensor | None, centre: bool) -> Tensor:
    """``C`` with ``r C = (r - mean(r)) * weight / scale``: row ``m`` is what the unit vector ``m`` becomes."""
    (weight,) = wide(weight)
    rows = torch.eye(d, dtype=torch.float64)
    if centre:
        rows = rows - rows.mean(1, keepdim=True)
    return rows * (torch.ones(d, dtype=torch.float64) if weight is None else weight) / scale


def layernorm(x, scale, weight=None, bias=None, centre=True, rule="absdot"):
    x, scale, weight, bias = wide(x, scale, weight, bias)
    y = torch.empty_like(x)
    for n in range(x.shape[0]):
        for i in range(x.shape[1]):
            y[n, i] = x[n, i] @ norm_matrix(x.shape[3], float(scale[n, i]), weight, centre)
    return with_share(y, y, bias, rule)


def add_norm(
    x, branch, branch_bias, scale, weight=None, bias=None, share_after_residual=False, centre=True, rule="absdot"
):
    state = bias_split(branch, branch_bias, rule, x, share_after_residual)
    return layernorm(state, scale, weight, bias, centre, rule)


def activation(a, slope, bias=None, intercept=None, rule="absdot"):
    a, slope, bias, intercept = wide(a, slope, bias, intercept)
    v = torch.einsum("bif,bikf->bikf", slope, with_share(a, a, bias, rule))
    return with_share(v, v, intercept, rule)


def mixing(alpha, p, causal=False, window=None, offset=None):
    alpha, p = wide(alpha, p)
    b, h, n_i, n_j = alpha.shape
    group = h // p.shape[3]
    offset = n_j - n_i if offset is None else offset
    out = torch.zeros(b, n_i, p.shape[2], h, p.shape[4], dtype=torch.float64)
    for head in range(h):
        for i in range(n_i):
            at = i + offset
            seen = [j for j in range(n_j) if (not causal or j <= at) and (window is None or abs(at - j) < window)]
            if seen:
                out[:, i, :, head] = torch.einsum("bj,bjkv->bkv", alpha[:, head, i, seen], p[:, seen, :, head // group])
    return out


def network(u, w_in, w_out, slope, bias=None, shares=None):
    u, w_in, w_out, slope, bias, shares = wide(u, w_in, w_out, slope, bias, shares)
    out = torch.empty_like(u)
    for n in range(u.shape[0]):
        for i in range(u.shape[1]):
            hidden = u[n, i] @ w_in
            if bias is not None:
                hidden += torch.outer(shares[n, i], bias)
            out[n, i] = (hidden * slope[n, i]) @ w_out
    return out


def position_operator(theta, w_in, w_out, norm_in=None, norm_out=None):
    """``norm_in`` and ``norm_out`` are ``(scale, weight, centre)`` or ``None``."""
    theta, w_in, w_out = wide(theta, w_in, w_out)
    d = w_in.shape[0]
    identity = torch.eye(d, dtype=torch.float64)
    out = torch.empty(*theta.shape[:2], d, d, dtype=torch.float64)
    for n in range(theta.shape[0]):
        for i in range(theta.shape[1]):
            left, right = (
                identity if norm is None else norm_matrix(d, float(norm[0][n, i]), norm[1], norm[2])
                for norm in (norm_in, norm_out)
            )
            out[n, i] = left @ (identity + w_in @ torch.diag(theta[n, i]) @ w_out) @ right
    return out


def position_apply(r, t, shares=None, u=None):
    r, t, shares, u = wide(r, t, shares, u)
    out = torch.einsum("bikd,bide->bike", r, t)
    return out if shares is None else out + torch.einsum("bikm,bime->bike", shares, u)


def functional_dots(x, g):
    x, g = wide(x, g)
    return torch.einsum("bikd,bimd->bikm", x, g)


def error(got: Tensor, exact: Tensor) -> float:
    """The largest deviation; infinite where a value is missing."""
    gap = (got.double().cpu() - exact.cpu()).abs()
    return float("inf") if gap.isnan().any() else float(gap.max()) if gap.numel() else 0.0


def rounding(exact: Tensor, dtype: torch.dtype) -> float:
    """What storing the largest value in ``dtype`` may cost: half a unit in the last place."""
    return float(exact.abs().max()) * torch.finfo(dtype).eps / 2 if exact.numel() else 0.0
