"""How a bias is shared among the sources: one rule, one formula, in plain PyTorch.

Everything here acts on the last axis of small tensors ``[..., k]``; the twins call it, and an engine that
computes the dots by other means may too.
"""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor

from ..bias_rules import DOT_RULES, OP_RULES
from ..errors import InputError
from . import checks

Rule = Literal["absdot", "dot", "equal", "cls", "none", "norm", "abssim"]

#: All rules.
RULES = OP_RULES


def bias_shares(dots: Tensor, *, rule: Rule = "absdot", nonzero: Tensor | None = None) -> Tensor:
    """The share of each source from the dots of the vectors with the bias.

    ``absdot``: ``omega[k] = |dots[k]| / sum_k' |dots[k']|``; ``dot``: the same, signed. Where the sum is
    zero, equal shares among the sources that are not zero; where there are none, among all.

    Args:
        dots: ``[..., k]``, known up to a positive factor common to the sources.
        rule: ``"absdot"`` or ``"dot"``.
        nonzero: ``[..., k]`` bool, whether a source's vector is not all zero. ``None``: taken as not zero.

    Returns:
        ``[..., k]``, adding up to one over ``k``; dtype of ``dots``, at least float32.

    Raises:
        InputError: for another rule.

    Source: Modarressi et al., ACL 2023, section 3 (AbsDot).
    """
    checks.choice("bias_shares", "rule", rule, DOT_RULES)
    dots = dots.to(accumulation_dtype(dots.dtype))
    weights = dots.abs() if rule == "absdot" else dots
    return _normalised(weights, torch.ones_like(dots, dtype=torch.bool) if nonzero is None else nonzero)


def vector_shares(
    u: Tensor, bias: Tensor | None, *, rule: Rule = "absdot", look: Callable[[Tensor], bool] | None = None
) -> Tensor:
    """The share of each source from the vectors themselves, for every rule but ``"none"``.

    Args:
        u: ``[b, i, k, d]``, the vectors before the bias is added; float32 or float64.
        bias: ``[d]`` or ``[b, i, d]``; read by the rules that use dots.
        rule: any of ``absdot``, ``dot``, ``abssim``, ``norm``, ``equal``, ``cls``.
        look: told where all weights are zero, ``[b, i]``, whether it is to be found out which vectors are zero.
            ``None``: on a CPU if they are anywhere; elsewhere always, which takes less time than waiting for a GPU.

    Returns:
        ``[b, i, k]``, adding up to one over ``k``; dtype of ``u``.

    Source: Modarressi et al., ACL 2023, section 3, and the rules of the authors' code.
    """
    if rule == "cls":
        weights = u.new_zeros(u.shape[:-1])
        weights[..., :1] = 1
        return weights
    if rule == "equal":
        weights = nonzero_sources(u).to(u.dtype)
    elif rule == "norm":
        weights = safe_norm(u)
    elif rule == "abssim":
        assert bias is not None
        weights = absolute_similarity(u, bias)
    elif rule in DOT_RULES:
        assert bias is not None
        # Its size is common to all sources, and products with it might vanish.
        weights = vector_dots(u, bias / size_of(bias))
        weights = weights if rule == "dot" else weights.abs()
    else:
        raise InputError(f"vector_shares: `rule` is {rule!r}; allowed: {', '.join(RULES)}, but not 'none'")
    # Zero sums are rare, and telling zero vectors costs another read of the state: only then.
    tell = (look or _any_here)(weights.sum(-1) == 0)
    return _normalised(weights, nonzero_sources(u) if tell else torch.ones_like(weights, dtype=torch.bool))


def _any_here(flags: Tensor) -> bool:
    return flags.device.type != "cpu" or bool(flags.any())


def vector_dots(u: Tensor, bias: Tensor) -> Tensor:
    """``u[b,i,k] . bias``, ``[b, i, k]``, from ``[b, i, k, d]`` and ``[d]`` or ``[b, i, d]``; no copy."""
    bias = bias.to(u.dtype)
    with full_precision(u.device):
        if bias.ndim == 1:
            rows = [u[n] @ bias for n in range(u.shape[0])]
        else:
            rows = [(u[n] @ bias[n].unsqueeze(-1)).squeeze(-1) for n in range(u.shape[0])]
        return torch.stack(rows)


def safe_norm(u: Tensor) -> Tensor:
    """``|u|`` over the last axis, for vectors of any size; float32 at least.

    Squares of numbers below 1e-19 vanish in float32, and those above 1e19 are infinite. Such vectors are scaled first;
    all others take no second look.
    """
    norms = torch.linalg.vector_norm(u, dim=-1, dtype=accumulation_dtype(u.dtype))
    odd = _out_of_range(u, norms)
    if odd is not None:
        scaled, size = _scaled(u[odd])
        norms[odd] = torch.linalg.vector_norm(scaled, dim=-1) * size.squeeze(-1)
    return norms


def absolute_similarity(u: Tensor, bias: Tensor, dots: Tensor | None = None) -> Tensor:
    """``|u . b| / |u|`` up to a factor common to all sources, and 0 for a vector of zeros; float32 at least.

    Args:
        u: ``[b, i, k, d]``.
        bias: ``[d]`` or ``[b, i, d]``.
        dots: ``[b, i, k]``, their products, if known already.
    """
    dtype = accumulation_dtype(u.dtype)
    bias = bias.to(dtype)
    size = size_of(bias)  # [1] or [b, i, 1]
    bias = bias / size
    norms = torch.linalg.vector_norm(u, dim=-1, dtype=dtype)
    dots = vector_dots(u.to(dtype), bias) if dots is None else dots.to(dtype) / size
    similar = dots.abs() / _nonzero(norms)
    odd = _out_of_range(u, norms)
    if odd is not None:
        rows, _ = _scaled(u[odd])
        each = bias.unsqueeze(-2).expand(*u.shape[:-1], -1)[odd]
        similar[odd] = (rows * each).sum(-1).abs() / torch.linalg.vector_norm(rows, dim=-1)
    return similar


def _out_of_range(u: Tensor, norms: Tensor) -> Tensor | None:
    """Which vectors are not zero, but so small or large that their squares are not accurate; ``None`` if none is."""
    limits = torch.finfo(norms.dtype)
    odd = ~((norms >= (limits.tiny * u.shape[-1] / limits.eps) ** 0.5) & torch.isfinite(norms))
    if not bool(odd.any()):
        return None
    odd &= nonzero_sources(u)
    return odd if bool(odd.any()) else None


def _scaled(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors ``[r, d]`` over :func:`size_of` them, and that size ``[r, 1]``."""
    rows = rows.to(accumulation_dtype(rows.dtype))
    size = size_of(rows)
    return rows / size, size


def size_of(x: Tensor) -> Tensor:
    """A power of two near the largest number of the last axis (1/2 for zeros): to divide by it changes no digit.

    ``[..., d]`` to ``[..., 1]``.
    """
    exponent = torch.frexp(x.abs().amax(-1, keepdim=True)).exponent
    return torch.ldexp(torch.ones_like(exponent, dtype=x.dtype), exponent - 1)


def _nonzero(x: Tensor) -> Tensor:
    return torch.where(x == 0, torch.ones_like(x), x)


def nonzero_sources(u: Tensor) -> Tensor:
    """Whether each vector is not all zero: ``[b, i, k, d]`` to ``[b, i, k]`` bool."""
    return torch.linalg.vector_norm(u, float("inf"), dim=-1) != 0


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precisions, else the dtype itself."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """No autocast on this device inside the block, where a product would lose the precision of what it is given."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def _normalised(weights: Tensor, nonzero: Tensor) -> Tensor:
    # The sum of weights may leave the range that each is in; their size does not matter.
    weights = weights / size_of(weights)
    total = weights.sum(-1, keepdim=True)
    nonzero = nonzero.to(weights.dtype)
    count = nonzero.sum(-1, keepdim=True)
    all_sources = torch.full_like(nonzero, 1 / max(weights.shape[-1], 1))
    equal = torch.where(count > 0, nonzero / count.clamp(min=1), all_sources)
    return torch.where(total != 0, weights / torch.where(total != 0, total, torch.ones_like(total)), equal)
