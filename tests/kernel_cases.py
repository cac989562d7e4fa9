"""What the kernels of every backend are tested on: the cases, their arguments, and what the formulas make of them."""

from __future__ import annotations

import ops_formulas as formulas
import torch
from ops_cases import NAN, aligned_with, random, random_state
from torch import Tensor

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16

#: The rules that kernels know.
RULES = ("absdot", "dot", "equal", "cls", "none")

#: The arguments of an op: its state, what else it takes by place and by name; and the exact result.
Call = tuple[Tensor, tuple[Tensor | None, ...], dict, Tensor]

# The last entry is how the CUDA kernels go over the sources (`cuda_emulation.DEVICES`). Those in Triton are fused where
# there are at least as many rows as multiprocessors (4 in the interpreter), else split.

#: ``(shape, dtype, rule, residual, bias_per_position), way``
BIAS_SPLITS = [
    (((1, 1, 1, 48), F32, "absdot", "none", False), "fused"),
    (((2, 3, 7, 100), F32, "absdot", "before", True), "fused"),
    (((1, 2, 65, 384), BF16, "absdot", "after", False), "clustered"),
    (((1, 2, 65, 384), BF16, "absdot", "before", False), "split"),
    (((1, 4, 63, 48), F16, "absdot", "none", True), "refetched"),
    (((1, 1, 64, 100), F32, "dot", "none", False), "clustered"),
    (((1, 4, 7, 48), BF16, "dot", "after", True), "fused"),
    (((1, 3, 65, 100), F32, "equal", "none", False), "split"),
    (((2, 2, 7, 48), F16, "equal", "after", False), "refetched"),
    (((1, 3, 63, 48), BF16, "cls", "before", True), "split"),
    (((1, 4, 7, 100), F32, "none", "before", False), "fused"),
    (((1, 1, 7, 1), F32, "absdot", "none", False), "fused"),
    (((1, 1, 3, 1036), F32, "absdot", "after", False), "refetched"),
]

#: ``(shape, dtype, rule, centre, has_weight), way``
LAYERNORMS = [
    (((1, 1, 1, 48), F32, "absdot", True, True), "fused"),
    (((2, 3, 7, 100), F32, "absdot", True, True), "refetched"),
    (((1, 2, 65, 384), BF16, "absdot", True, True), "clustered"),
    (((1, 2, 64, 384), BF16, "absdot", True, True), "split"),
    (((1, 4, 63, 48), F16, "absdot", False, False), "split"),
    (((1, 4, 7, 100), F32, "dot", True, False), "fused"),
    (((1, 3, 64, 48), F32, "dot", False, True), "clustered"),
    (((1, 1, 65, 100), F32, "equal", True, True), "clustered"),
    (((1, 3, 63, 48), BF16, "cls", True, True), "fused"),
    (((1, 4, 7, 48), F16, "none", True, True), "fused"),
    (((1, 1, 5, 768), F32, "absdot", True, True), "refetched"),
    (((1, 1, 3, 4100), F32, "absdot", True, True), "refetched"),
]

#: ``(shape, dtype, rule, has_bias, has_intercept), way``
ACTIVATIONS = [
    (((1, 1, 1, 48), F32, "absdot", True, True), "fused"),
    (((2, 3, 7, 100), F32, "absdot", True, False), "refetched"),
    (((1, 2, 65, 384), BF16, "absdot", True, False), "clustered"),
    (((1, 4, 63, 100), BF16, "absdot", True, True), "split"),
    (((1, 1, 65, 384), F16, "absdot", True, True), "clustered"),
    (((1, 4, 7, 48), F32, "dot", True, False), "fused"),
    (((1, 2, 65, 100), F32, "equal", True, True), "split"),
    (((1, 4, 7, 100), BF16, "equal", True, True), "refetched"),
    (((1, 4, 7, 48), F32, "absdot", False, True), "fused"),
    (((1, 3, 63, 48), F32, "cls", True, True), "split"),
    (((1, 4, 7, 48), F16, "none", True, True), "fused"),
    (((1, 1, 5, 3072), BF16, "absdot", True, True), "refetched"),
]

#: ``b, heads, kv_heads, i, j, k, v, dtype``: around tiles of 64, and of odd sizes.
MIXINGS = [
    (1, 1, 1, 1, 1, 1, 1, F32),
    (2, 4, 2, 7, 9, 3, 12, F32),
    (1, 2, 2, 65, 63, 2, 48, F32),
    (1, 2, 1, 64, 65, 3, 64, BF16),
    (1, 3, 3, 129, 64, 1, 100, F16),
    (1, 6, 2, 1, 65, 7, 8, F16),
    (1, 1, 1, 33, 160, 2, 64, BF16),
]

#: ``i, j, causal, window, offset``
EXCLUSIONS = [
    (65, 65, True, None, None),
    (7, 65, True, None, None),
    (65, 65, True, 7, None),
    (130, 130, False, 3, None),
    (130, 130, True, 1, None),
    (64, 130, True, 70, 63),
    (7, 9, True, None, -3),
    (9, 65, False, 5, 70),
]


def bias_split(shape, dtype, rule, residual, bias_per_position) -> Call:
    """A bias shared before or after a residual is added, or without one."""
    b, i, _, d = shape
    bias = random(b, i, d, dtype=dtype) if bias_per_position else random(d)
    x = random_state(*shape, dtype=dtype)
    rest = None if residual == "none" else random_state(*shape, dtype=dtype, seed=2)
    if rule == "dot":
        x = aligned_with(x, bias)
        rest = None if rest is None else aligned_with(rest, bias)
    options = {"rule": rule, "residual": rest, "share_after_residual": residual == "after"}
    return x, (bias,), options, formulas.bias_split(x, bias, **options)


def layernorm(shape, dtype, rule, centre, has_weight) -> Call:
    """A norm with its bias."""
    b, i, _, d = shape
    weight = random(d, dtype=dtype, low=0.5) if has_weight else None
    bias, scale = random(d, seed=3), random(b, i, low=0.5, seed=4)
    x = random_state(*shape, dtype=dtype)
    if rule == "dot":
        towards = bias if weight is None else bias * weight
        x = aligned_with(x, towards - towards.mean() if centre else towards)
    if d == 1 and centre:
        x.zero_()  # its mean is the vector
    options = {"centre": centre, "rule": rule}
    return x, (scale, weight, bias), options, formulas.layernorm(x, scale, weight, bias, **options)


def activation(shape, dtype, rule, has_bias, has_intercept) -> Call:
    """A slope after a bias, and an intercept after that."""
    b, i, _, f = shape
    slope = random(b, i, f, dtype=dtype, seed=5)
    bias = random(f, seed=6) if has_bias else None
    intercept = random(b, i, f, dtype=dtype, seed=7) if has_intercept else None
    a = random_state(*shape, dtype=dtype)
    if rule == "dot":  # signed shares whose sum almost cancels magnify every rounding
        a = ((a != 0).any(-1, keepdim=True) * random(*shape[:3], 1, low=0.5)).expand(shape).to(dtype).contiguous()
        bias, intercept = (None if t is None else t.abs() for t in (bias, intercept))
    options = {"intercept": intercept, "rule": rule}
    return a, (slope, bias), options, formulas.activation(a, slope, bias, **options)


def without_dots(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """A state and a bias whose dots are all zero, and what becomes of it.

    The sources that are not zero share the bias equally; where all are, as :func:`ops_cases.random_state` leaves them
    at the last of four positions, all do.
    """
    x = random_state(*shape, dtype=F32)
    x[:, :, 1] = 0
    x[..., -1] = 0
    bias = torch.zeros(shape[3], device=x.device)
    bias[-1] = 3
    sharing = (x != 0).any(-1)
    sharing[~sharing.any(-1)] = True
    expected = x.clone()
    expected[..., -1] = 3 * sharing / sharing.sum(-1, keepdim=True)
    return x, bias, expected


def attention(*shape, dtype) -> Tensor:
    """Weights that add up to 1."""
    return random(*shape, low=-0.5).mul(8).softmax(-1).to(dtype)


def with_exclusions(alpha: Tensor, causal, window, offset) -> Tensor:
    """Which weights ``[i, j]`` are excluded; those of ``alpha`` ``[b, h, i, j]`` become NaN."""
    i, j = alpha.shape[2:]
    distance = torch.arange(i)[:, None] + (j - i if offset is None else offset) - torch.arange(j)
    excluded = torch.zeros(i, j, dtype=torch.bool)
    if causal:
        excluded |= distance < 0
    if window is not None:
        excluded |= distance.abs() >= window
    alpha.masked_fill_(excluded.to(alpha.device), NAN)
    return excluded
