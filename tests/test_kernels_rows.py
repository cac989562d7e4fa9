"""Kernels that go over the sources of a position, in the interpreter (or on a GPU), against twins and formulas."""

from __future__ import annotations

import ops_formulas as formulas
import pytest
import torch
from ops_cases import (
    DEVICE,
    NAN,
    aligned_with,
    assert_accurate,
    embedded,
    random,
    random_state,
    surroundings,
)

from decompx_fast import ops
from decompx_fast.kernels import launch

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
RULES = ("absdot", "dot", "equal", "cls", "none")


def run_in_place(op, x, *args, **kwargs):
    """The op's results by Triton and by its twin, both in a view inside a buffer of NaN that must stay NaN."""
    results = []
    for backend in ("triton", "torch"):
        view, buffer = embedded(x)
        assert op(view, *args, backend=backend, **kwargs) is view
        assert surroundings(buffer, view).isnan().all()
        results.append(view.clone())
    return results


# Rows are fused where there are at least as many as multiprocessors (4 in the interpreter), else split.
@pytest.mark.parametrize(
    ("shape", "dtype", "rule", "residual", "bias_per_position"),
    [
        ((1, 1, 1, 48), F32, "absdot", "none", False),
        ((2, 3, 7, 100), F32, "absdot", "before", True),
        ((1, 2, 65, 384), BF16, "absdot", "after", False),
        ((1, 4, 63, 48), F16, "absdot", "none", True),
        ((1, 1, 64, 100), F32, "dot", "none", False),
        ((1, 4, 7, 48), BF16, "dot", "after", True),
        ((1, 3, 65, 100), F32, "equal", "none", False),
        ((2, 2, 7, 48), F16, "equal", "after", False),
        ((1, 3, 63, 48), BF16, "cls", "before", True),
        ((1, 4, 7, 100), F32, "none", "before", False),
        ((1, 1, 7, 1), F32, "absdot", "none", False),
    ],
    ids=str,
)
def test_bias_split_is_accurate(shape, dtype, rule, residual, bias_per_position):
    b, i, _, d = shape
    bias = random(b, i, d, dtype=dtype) if bias_per_position else random(d)
    x = random_state(*shape, dtype=dtype)
    rest = None if residual == "none" else random_state(*shape, dtype=dtype, seed=2)
    if rule == "dot":
        x = aligned_with(x, bias)
        rest = None if rest is None else aligned_with(rest, bias)
    options = {"rule": rule, "residual": rest, "share_after_residual": residual == "after"}
    got, twin = run_in_place(ops.bias_split_, x, bias, **options)
    assert_accurate(got, twin, formulas.bias_split(x, bias, **options))


@pytest.mark.parametrize("rule", ["absdot", "dot", "equal"])
@pytest.mark.parametrize("shape", [(1, 1, 65, 100), (1, 4, 7, 48)], ids=["split", "fused"])
def test_bias_split_without_dots_shares_equally_among_sources_that_are_not_zero(rule, shape):
    x = random_state(*shape, dtype=F32)
    x[:, :, 1] = 0
    x[..., -1] = 0
    bias = torch.zeros(shape[3], device=DEVICE)
    bias[-1] = 3
    expected = x.clone()
    expected[..., -1] = 3 / (shape[2] - 1)
    expected[:, :, 1] = 0
    if shape[1] == 4:  # there `random_state` leaves nothing at the last position: all share
        expected[-1, -1] = 0
        expected[-1, -1, :, -1] = 3 / shape[2]
    got = ops.bias_split_(x.clone(), bias, rule=rule, backend="triton")
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)  # one division and its rounding


@pytest.mark.parametrize(
    ("shape", "dtype", "rule", "centre", "weight", "dots"),
    [
        ((1, 1, 1, 48), F32, "absdot", True, True, False),
        ((2, 3, 7, 100), F32, "absdot", True, True, False),
        ((1, 2, 65, 384), BF16, "absdot", True, True, False),
        ((1, 2, 65, 384), BF16, "absdot", True, True, True),
        ((1, 4, 63, 48), F16, "absdot", False, False, False),
        ((1, 4, 7, 100), F32, "dot", True, False, False),
        ((1, 3, 64, 48), F32, "dot", False, True, True),
        ((1, 1, 65, 100), F32, "equal", True, True, False),
        ((1, 3, 63, 48), BF16, "cls", True, True, False),
        ((1, 4, 7, 48), F16, "none", True, True, False),
    ],
    ids=str,
)
def test_layernorm_is_accurate(shape, dtype, rule, centre, weight, dots):
    b, i, _, d = shape
    weight = random(d, dtype=dtype, low=0.5) if weight else None
    bias, scale = random(d, seed=3), random(b, i, low=0.5, seed=4)
    x = random_state(*shape, dtype=dtype)
    if rule == "dot":
        x = aligned_with(x, centred(bias if weight is None else bias * weight) if centre else bias * weight)
    exact = formulas.layernorm(x, scale, weight, None, centre)
    known = (2 * exact @ bias.double().cpu()).to(F32).to(DEVICE) if dots else None  # a common factor does not count
    options = {"centre": centre, "rule": rule}
    got, twin = run_in_place(ops.layernorm_, x, scale, weight, bias, dots=known, **options)
    assert_accurate(got, twin, formulas.layernorm(x, scale, weight, bias, **options))


def centred(v):
    return v - v.mean()


def test_layernorm_without_bias_is_accurate():
    x, scale = random_state(1, 4, 7, 48, dtype=F32), random(1, 4, low=0.5)
    got, twin = run_in_place(ops.layernorm_, x, scale, None, None)
    assert_accurate(got, twin, formulas.layernorm(x, scale))


@pytest.mark.parametrize("shape", [(1, 1, 65, 100), (1, 4, 7, 48)], ids=["split", "fused"])
def test_layernorm_with_dots_that_are_zero_shares_equally(shape):
    x, scale, bias = random_state(*shape, dtype=F32), random(*shape[:2], low=0.5), random(shape[3])
    got = ops.layernorm_(x.clone(), scale, None, bias, dots=torch.zeros(shape[:3], device=DEVICE), backend="triton")
    exact = formulas.layernorm(x, scale, None, bias, rule="equal")
    torch.testing.assert_close(got.cpu(), exact.to(F32), rtol=1e-5, atol=1e-6)  # float32, values of order 1


@pytest.mark.parametrize(
    ("shape", "dtype", "rule", "bias", "intercept"),
    [
        ((1, 1, 1, 48), F32, "absdot", True, True),
        ((2, 3, 7, 100), F32, "absdot", True, False),
        ((1, 2, 65, 384), BF16, "absdot", True, False),
        ((1, 4, 63, 100), BF16, "absdot", True, True),
        ((1, 1, 65, 384), F16, "absdot", True, True),
        ((1, 4, 7, 48), F32, "dot", True, False),
        ((1, 2, 65, 100), F32, "equal", True, True),
        ((1, 4, 7, 100), BF16, "equal", True, True),
        ((1, 4, 7, 48), F32, "absdot", False, True),
        ((1, 3, 63, 48), F32, "cls", True, True),
        ((1, 4, 7, 48), F16, "none", True, True),
    ],
    ids=str,
)
def test_activation_is_accurate(shape, dtype, rule, bias, intercept):
    b, i, _, f = shape
    slope = random(b, i, f, dtype=dtype, seed=5)
    bias = random(f, seed=6) if bias else None
    a = random_state(*shape, dtype=dtype)
    if rule == "dot":
        a = aligned_with(a, bias)
    intercept = random(b, i, f, dtype=dtype, seed=7) if intercept else None
    options = {"intercept": intercept, "rule": rule}
    got, twin = run_in_place(ops.activation_, a, slope, bias, **options)
    assert_accurate(got, twin, formulas.activation(a, slope, bias, **options))


@pytest.mark.parametrize("shape", [(1, 1, 65, 100), (1, 4, 7, 48)], ids=["split", "fused"])
def test_activation_with_mask_that_is_zero_leaves_equal_shares_of_the_intercept(shape):
    a, bias, intercept = random_state(*shape, dtype=F32), random(shape[3]), random(1, shape[1], shape[3])
    mask = torch.zeros(1, shape[1], shape[3], device=DEVICE)
    got = ops.activation_(a.clone(), mask, bias, intercept=intercept, backend="triton")
    expected = (intercept / shape[2])[:, :, None].expand(shape)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("shape", "m", "dtype"),
    [((1, 1, 1, 48), 1, F32), ((2, 3, 7, 100), 5, F32), ((1, 2, 65, 384), 8, BF16), ((1, 4, 63, 100), 3, F16)],
    ids=str,
)
def test_functional_dots_are_accurate(shape, m, dtype):
    b, i, _, d = shape
    x, _ = embedded(random_state(*shape, dtype=dtype))
    g, _ = embedded(random(b, i, m, d))
    got, twin = (ops.functional_dots(x, g, backend=backend) for backend in ("triton", "torch"))
    assert got.dtype is F32
    assert_accurate(got, twin, formulas.functional_dots(x, g))


def test_large_numbers_do_not_overflow_float16():
    shape, big = (1, 4, 7, 100), 3e4
    x = random_state(*shape, dtype=F16).clamp(-2, 2) * big  # sums and dots are far outside float16
    bias, scale = random(100, dtype=F16), torch.full((1, 4), big, device=DEVICE)
    normed = ops.layernorm_(x.clone(), scale, None, bias, backend="triton")
    assert_accurate(normed, ops.layernorm_(x.clone(), scale, None, bias), formulas.layernorm(x, scale, None, bias))
    split = ops.bias_split_(x.clone(), bias, residual=-x / 2, backend="triton")
    assert_accurate(
        split, ops.bias_split_(x.clone(), bias, residual=-x / 2), formulas.bias_split(x, bias, residual=-x / 2)
    )
    slope = torch.full((1, 4, 100), 1 / big, device=DEVICE)
    active = ops.activation_(x.clone(), slope, bias, backend="triton")
    assert_accurate(active, ops.activation_(x.clone(), slope, bias), formulas.activation(x, slope, bias))


def test_offsets_beyond_32_bits():
    # Only the pages that are written exist, so this takes little memory.
    buffer = torch.empty(2**31 + 4096, dtype=F16, device=DEVICE)
    x = buffer.as_strided((1, 2, 3, 16), (2**31, 2**31, 16, 1))
    values = random_state(1, 2, 3, 16, dtype=F16)
    bias, scale, slope = random(16), random(1, 2, low=0.5), random(1, 2, 16)
    for op, args in (
        (ops.bias_split_, (bias,)),
        (ops.layernorm_, (scale, None, bias)),
        (ops.activation_, (slope, bias)),
    ):
        x.copy_(values)
        op(x, *args, backend="triton")
        assert_accurate(x, op(values.clone(), *args), getattr(formulas, op.__name__.rstrip("_"))(values, *args))
    x.copy_(values.round())
    g = random(1, 2, 2, 16).round()  # whole numbers: every sum is exact
    dots = ops.functional_dots(x, g, backend="triton")
    assert torch.equal(dots.cpu().double(), formulas.functional_dots(x.cpu(), g.cpu()))


def test_rows_are_split_only_where_there_are_few():
    few = launch.row_launch(torch.empty(1, 1, 65, 100, device=DEVICE))
    many = launch.row_launch(torch.empty(1, 1, 65, 100, device=DEVICE).expand(1, 1000, 65, 100))
    assert few.splits > 1 and many.splits == 1
    assert few.k_per_program % few.block_k == 0 and few.k_per_program * few.splits >= 65


@pytest.mark.parametrize("n_k", [1, 7, 64, 65, 513])
@pytest.mark.parametrize("n_d", [1, 48, 100, 384, 768, 5000])
@pytest.mark.parametrize("whole", [False, True])
def test_row_tiles_are_powers_of_two_within_shared_memory(n_k, n_d, whole):
    for arch, limit in launch.SHARED_BYTES.items():
        for item in (2, 4):
            block_k, block_d, warps, stages = launch.row_tile(n_k, n_d, item, arch, streams=1, whole=whole)
            assert all(n & (n - 1) == 0 for n in (block_k, block_d, warps))
            assert not whole or block_d >= n_d
            assert block_k * block_d * item * (stages - 1) <= limit


def test_out_is_never_read():
    x, g = random_state(1, 4, 7, 48, dtype=F32), random(1, 4, 3, 48)
    out = torch.full((1, 4, 7, 3), NAN, device=DEVICE)
    torch.ops.decompx_fast.functional_dots(out, x, g, "triton")
    assert_accurate(out, ops.functional_dots(x, g), formulas.functional_dots(x, g))
