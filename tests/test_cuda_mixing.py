"""The CUDA kernel that mixes, on an emulated device with its matrix instructions, against twin and formula."""

from __future__ import annotations

import cuda_emulation
import kernel_cases
import ops_formulas as formulas
import pytest
import torch
from kernel_cases import attention, with_exclusions
from ops_cases import NAN, assert_accurate, embedded, random, surroundings

from decompx_fast.errors import BackendError
from decompx_fast.ops.mixing import mixing_torch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU test_cuda_gpu.py runs the kernels")

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def run_into_views(alpha, p, *, contiguous=False, causal=False, window=None, offset=None, precision="ieee"):
    """The kernel's result, the same in both orders of threads, and the twin's.

    In a view inside a buffer of NaN that must stay NaN or, with ``contiguous``, from and to memory whose end is
    guarded.
    """
    b, h, i, j = alpha.shape
    shape = (b, i, p.shape[2], h, p.shape[4])
    options = {"causal": causal, "window": window, "offset": j - i if offset is None else offset}
    empty, results = torch.full(shape, NAN, dtype=p.dtype), []
    if contiguous:
        alpha, p = (cuda_emulation.guarded(t.contiguous()) for t in (alpha, p))
    for backwards in (False, True):
        view, buffer = (cuda_emulation.guarded(empty), None) if contiguous else embedded(empty)
        kernels = cuda_emulation.kernels(backwards=backwards)
        kernels.mixing(view, alpha, p, precision=precision, **options)
        assert buffer is None or surroundings(buffer, view).isnan().all()
        results.append(view.clone())
    assert torch.equal(*results)
    mixing_torch(empty, alpha, p, **options)
    return results[0], empty


@pytest.mark.parametrize(("b", "heads", "kv_heads", "i", "j", "k", "v", "dtype"), kernel_cases.MIXINGS)
@pytest.mark.parametrize("contiguous", [False, True], ids=["strided", "contiguous"])
def test_mixing_is_accurate(b, heads, kv_heads, i, j, k, v, dtype, contiguous):
    alpha, _ = embedded(attention(b, heads, i, j, dtype=dtype))
    p, _ = embedded(random(b, j, k, kv_heads, v, dtype=dtype))
    got, twin = run_into_views(alpha, p, contiguous=contiguous)
    assert_accurate(got, twin, formulas.mixing(alpha, p))


@pytest.mark.parametrize(("i", "j", "causal", "window", "offset"), kernel_cases.EXCLUSIONS)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_mixing_takes_what_is_excluded_as_zero(i, j, causal, window, offset, dtype):
    # Rows of a multiple of 8 numbers, so that what is not excluded is copied in 16 bytes.
    alpha = attention(1, 1, i, j + -j % 8, dtype=dtype)[..., :j]
    excluded = with_exclusions(alpha, causal, window, offset)
    p = random(1, j, 2, 1, 16, dtype=dtype)
    options = {"causal": causal, "window": window, "offset": offset}
    got, twin = run_into_views(alpha, p, **options)
    assert_accurate(got, twin, formulas.mixing(alpha, p, **options))
    assert torch.equal(got[:, excluded.all(1)], torch.zeros_like(got[:, excluded.all(1)]))


# Mantissas of 10 bits, rounded to nearest: a product is off by 2^-10 of itself at most, and a sum of 65 weights that
# add up to 1 by 2^-10 of the largest value. Three products leave what both remainders lose: 2^-20, and the sums.
@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 2**-10), ("tf32x3", 2**-19)])
@pytest.mark.parametrize("i", [7, 65])
def test_mixing_in_tf32_is_as_accurate_as_its_mantissas(precision, tolerance, i):
    alpha, p = attention(1, 2, i, 65, dtype=F32), random(1, 65, 3, 2, 24)
    got, _ = run_into_views(alpha, p, precision=precision)
    exact = formulas.mixing(alpha, p)
    worst = float((got - exact).abs().max() / p.abs().max())
    assert worst <= tolerance
    assert precision == "tf32x3" or worst > 2**-16  # else it would not be tf32 that was tested


def test_large_numbers_do_not_overflow_float16():
    p = random(1, 65, 3, 1, 12, low=0).mul(3e4).to(F16)
    alpha = attention(1, 1, 7, 65, dtype=F16)  # the sum of `p` is far outside float16, its average is not
    assert_accurate(*run_into_views(alpha, p), formulas.mixing(alpha, p))


def test_offsets_beyond_32_bits():
    # Only the pages that are written exist, so this takes little memory. Whole numbers: every sum is exact.
    buffer = torch.empty(2**31 + 4096, dtype=F16)
    far = buffer.as_strided((1, 2, 3, 1, 16), (2**31, 2**31, 16, 16, 1))
    p = random(1, 2, 3, 1, 16, dtype=F16).round()
    alpha = random(1, 1, 2, 2, dtype=F16).round()
    exact = formulas.mixing(alpha, p).half()
    options = {"causal": False, "window": None, "offset": 0, "precision": "ieee"}
    far.copy_(p)
    near = torch.empty_like(p)
    cuda_emulation.kernels().mixing(near, alpha, far, **options)
    assert torch.equal(near, exact)
    cuda_emulation.kernels().mixing(far, alpha, p, **options)
    assert torch.equal(far, exact)


def test_without_keys_the_result_is_zero():
    got, _ = run_into_views(random(1, 2, 3, 0, dtype=BF16), random(1, 0, 2, 2, 8, dtype=BF16))
    assert torch.equal(got, torch.zeros(1, 3, 2, 2, 8, dtype=BF16))


def test_float64_is_refused():
    alpha, p = random(1, 1, 2, 2).double(), random(1, 2, 1, 1, 8).double()
    with pytest.raises(BackendError, match="mixing: .* take float32, bfloat16 and float16, and p is float64"):
        run_into_views(alpha, p)
