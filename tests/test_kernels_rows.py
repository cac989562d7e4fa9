"""Kernels that go over the sources of a position, in the interpreter (or on a GPU), against twins and formulas."""

from __future__ import annotations

import kernel_cases
import ops_formulas as formulas
import pytest
import torch
from ops_cases import (
    DEVICE,
    NAN,
    assert_accurate,
    embedded,
    in_place,
    random,
    random_state,
)

from decompx_fast import ops
from decompx_fast.kernels import launch

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


@pytest.mark.parametrize("case", [case for case, _ in kernel_cases.BIAS_SPLITS], ids=str)
def test_bias_split_is_accurate(case):
    x, tensors, options, exact = kernel_cases.bias_split(*case)
    got, twin = in_place(ops.bias_split_, "triton", x, *tensors, **options)
    assert_accurate(got, twin, exact)


@pytest.mark.parametrize("rule", ["absdot", "dot", "equal"])
@pytest.mark.parametrize("shape", [(1, 1, 65, 100), (1, 4, 7, 48)], ids=["split", "fused"])
def test_bias_split_without_dots_shares_equally_among_sources_that_are_not_zero(rule, shape):
    x, bias, expected = kernel_cases.without_dots(*shape)
    got = ops.bias_split_(x.clone(), bias, rule=rule, backend="triton")
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)  # one division and its rounding


@pytest.mark.parametrize("case", [case for case, _ in kernel_cases.LAYERNORMS], ids=str)
def test_layernorm_is_accurate(case):
    x, tensors, options, exact = kernel_cases.layernorm(*case)
    got, twin = in_place(ops.layernorm_, "triton", x, *tensors, **options)
    assert_accurate(got, twin, exact)


def test_layernorm_without_bias_is_accurate():
    x, scale = random_state(1, 4, 7, 48, dtype=F32), random(1, 4, low=0.5)
    got, twin = in_place(ops.layernorm_, "triton", x, scale, None, None)
    assert_accurate(got, twin, formulas.layernorm(x, scale))


@pytest.mark.parametrize("shape", [(1, 1, 65, 100), (1, 4, 7, 48)], ids=["split", "fused"])
def test_layernorm_without_dots_shares_equally_among_sources_that_are_not_zero(shape):
    x, bias, expected = kernel_cases.without_dots(*shape)
    ones = torch.ones(shape[:2], device=DEVICE)
    got = ops.layernorm_(x.clone(), ones, None, bias, centre=False, backend="triton")
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)  # one division and its rounding


@pytest.mark.parametrize("case", [case for case, _ in kernel_cases.ACTIVATIONS], ids=str)
def test_activation_is_accurate(case):
    a, tensors, options, exact = kernel_cases.activation(*case)
    got, twin = in_place(ops.activation_, "triton", a, *tensors, **options)
    assert_accurate(got, twin, exact)


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
