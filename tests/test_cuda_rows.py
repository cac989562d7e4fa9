"""The CUDA kernels that go over the sources of a position, on an emulated device, against twins and formulas."""

from __future__ import annotations

import cuda_emulation
import kernel_cases
import ops_formulas as formulas
import pytest
import torch
from ops_cases import NAN, assert_accurate, embedded, random, random_state, surroundings

from decompx_fast.errors import BackendError
from decompx_fast.ops.activation import activation_torch
from decompx_fast.ops.backends import cuda
from decompx_fast.ops.bias_split import bias_split_torch
from decompx_fast.ops.layernorm import layernorm_torch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU test_cuda_gpu.py runs the kernels")

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
WAYS = tuple(cuda_emulation.DEVICES)
TWINS = {"layernorm": layernorm_torch, "bias_split": bias_split_torch, "activation": activation_torch}


def run_in_place(name, x, *tensors, way="fused", contiguous=False, **options):
    """The kernel's result, the same in both orders of threads, and the twin's.

    In a view inside a buffer of NaN that must stay NaN or, with ``contiguous``, in memory whose end is guarded.
    """
    results = []
    for backwards in (False, True):
        view, buffer = (cuda_emulation.guarded(x), None) if contiguous else embedded(x)
        kernels = cuda_emulation.kernels(way, backwards=backwards)
        getattr(kernels, name)(view, *tensors, **options)
        assert buffer is None or surroundings(buffer, view).isnan().all()
        results.append(view.clone())
    assert torch.equal(*results)
    twin = x.clone()
    TWINS[name](twin, *tensors, **options)
    return results[0], twin


@pytest.mark.parametrize(("case", "way"), kernel_cases.BIAS_SPLITS, ids=str)
@pytest.mark.parametrize("contiguous", [False, True], ids=["strided", "contiguous"])
def test_bias_split_is_accurate(case, way, contiguous):
    x, tensors, options, exact = kernel_cases.bias_split(*case)
    got, twin = run_in_place("bias_split", x, *tensors, way=way, contiguous=contiguous, **options)
    assert_accurate(got, twin, exact)


@pytest.mark.parametrize("rule", ["absdot", "dot", "equal"])
@pytest.mark.parametrize("way", WAYS)
def test_bias_split_without_dots_shares_equally_among_sources_that_are_not_zero(rule, way):
    x, bias, expected = kernel_cases.without_dots(1, 4, 33, 48)
    got, _ = run_in_place("bias_split", x, bias, way=way, rule=rule, residual=None, share_after_residual=False)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)  # one division and its rounding


@pytest.mark.parametrize(("case", "way"), kernel_cases.LAYERNORMS, ids=str)
@pytest.mark.parametrize("contiguous", [False, True], ids=["strided", "contiguous"])
def test_layernorm_is_accurate(case, way, contiguous):
    x, tensors, options, exact = kernel_cases.layernorm(*case)
    got, twin = run_in_place("layernorm", x, *tensors, way=way, contiguous=contiguous, **options)
    assert_accurate(got, twin, exact)


def test_layernorm_without_bias_and_with_a_scale_in_float64_is_accurate():
    x, scale = random_state(1, 4, 7, 48, dtype=F32), random(1, 4, low=0.5).double()
    got, twin = run_in_place("layernorm", x, scale, None, None, centre=True, rule="absdot")
    assert_accurate(got, twin, formulas.layernorm(x, scale))


@pytest.mark.parametrize("way", WAYS)
def test_layernorm_without_dots_shares_equally_among_sources_that_are_not_zero(way):
    x, bias, expected = kernel_cases.without_dots(1, 4, 33, 48)
    got, _ = run_in_place("layernorm", x, torch.ones(1, 4), None, bias, way=way, centre=False, rule="absdot")
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)  # one division and its rounding


@pytest.mark.parametrize(("case", "way"), kernel_cases.ACTIVATIONS, ids=str)
@pytest.mark.parametrize("contiguous", [False, True], ids=["strided", "contiguous"])
def test_activation_is_accurate(case, way, contiguous):
    a, tensors, options, exact = kernel_cases.activation(*case)
    got, twin = run_in_place("activation", a, *tensors, way=way, contiguous=contiguous, **options)
    assert_accurate(got, twin, exact)


@pytest.mark.parametrize("way", WAYS)
def test_activation_with_mask_that_is_zero_leaves_equal_shares_of_the_intercept(way):
    shape = (1, 2, 33, 48)
    a, bias, intercept = random_state(*shape, dtype=F32), random(48), random(1, 2, 48)
    options = {"intercept": intercept, "rule": "absdot"}
    got, _ = run_in_place("activation", a, torch.zeros(1, 2, 48), bias, way=way, **options)
    torch.testing.assert_close(got, (intercept / 33)[:, :, None].expand(shape), rtol=1e-6, atol=0)


def test_large_numbers_do_not_overflow_float16():
    shape, big = (1, 4, 7, 100), 3e4
    x = random_state(*shape, dtype=F16).clamp(-2, 2) * big  # sums and dots are far outside float16
    bias, scale = random(100, dtype=F16), torch.full((1, 4), big)
    normed = run_in_place("layernorm", x, scale, None, bias, centre=True, rule="absdot")
    assert_accurate(*normed, formulas.layernorm(x, scale, None, bias))
    split = run_in_place("bias_split", x, bias, rule="absdot", residual=-x / 2, share_after_residual=False)
    assert_accurate(*split, formulas.bias_split(x, bias, residual=-x / 2))
    slope = torch.full((1, 4, 100), 1 / big)
    active = run_in_place("activation", x, slope, bias, intercept=None, rule="absdot")
    assert_accurate(*active, formulas.activation(x, slope, bias))


def test_offsets_beyond_32_bits():
    # Only the pages that are written exist, so this takes little memory.
    buffer = torch.empty(2**31 + 4096, dtype=F16)
    x = buffer.as_strided((1, 2, 3, 16), (2**31, 2**31, 16, 1))
    values = random_state(1, 2, 3, 16, dtype=F16)
    bias = random(16)
    x.copy_(values)
    options = {"rule": "absdot", "residual": None, "share_after_residual": False}
    cuda_emulation.kernels().bias_split(x, bias, **options)
    twin = values.clone()
    bias_split_torch(twin, bias, rule="absdot")
    assert_accurate(x, twin, formulas.bias_split(values, bias))


def test_nan_in_a_state_is_not_hidden():
    x = random_state(1, 1, 5, 48, dtype=F32)
    x[0, 0, 2, 7] = NAN
    got, twin = run_in_place(
        "bias_split", torch.nan_to_num(x), random(48), rule="absdot", residual=None, share_after_residual=False
    )
    kernels = cuda_emulation.kernels()
    kernels.bias_split(x, random(48), rule="absdot", residual=None, share_after_residual=False)
    assert x.isnan().all() and not got.isnan().any()


# How often a state of 16 sources of 384 bytes, one position, is read. There is room for 3 KB of vectors a block: 8 of a
# row are read again, and none where two blocks share a row. A launch for every pass reads it in every launch.
@pytest.mark.parametrize(("way", "reads"), [("fused", 1), ("refetched", 1.5), ("clustered", 1), ("split", 2)])
@pytest.mark.parametrize("name", TWINS)
def test_state_is_read_once_as_far_as_it_fits_on_chip_and_written_once(monkeypatch, name, way, reads):
    room = cuda.Device(1, 2 * (8 * 384 + 512 + 512), way == "clustered")  # of `room` in row_launch.cuh
    monkeypatch.setitem(cuda_emulation.DEVICES, "refetched", room)
    monkeypatch.setitem(cuda_emulation.DEVICES, "clustered", room)
    x, vector = random(1, 1, 16, 192, dtype=BF16), random(192)
    kernels = cuda_emulation.kernels(way)
    cuda_emulation.bytes_moved()
    if name == "layernorm":
        kernels.layernorm(x, random(1, 1, low=0.5), vector, vector, centre=True, rule="absdot")
    elif name == "bias_split":
        kernels.bias_split(x, vector, rule="absdot", residual=None, share_after_residual=False)
    else:
        kernels.activation(x, random(1, 1, 192), vector, intercept=None, rule="absdot")
    assert cuda_emulation.bytes_moved() == (reads * x.nbytes, x.nbytes)


@pytest.mark.parametrize("rule", ["norm", "abssim"])
def test_rules_without_a_kernel_are_refused(rule):
    with pytest.raises(BackendError, match=f"its kernels share by absdot, dot, equal, cls, none, and rule is '{rule}'"):
        cuda_emulation.kernels().activation(random(1, 1, 2, 8), random(1, 1, 8), random(8), intercept=None, rule=rule)


def test_float64_is_refused():
    x = random(1, 1, 2, 8).double()
    with pytest.raises(BackendError, match="layernorm_: .* float32, bfloat16 and float16, and the state is float64"):
        cuda_emulation.kernels().layernorm(x, random(1, 1), None, None, centre=True, rule="absdot")
