"""Kernels of matrix products, in the interpreter (or on a GPU), against twins and formulas.

The interpreter multiplies float32 in full whatever the precision; what the compiler makes of it is for the compile
gate and for GPUs.
"""

from __future__ import annotations

import kernel_cases
import ops_formulas as formulas
import pytest
import torch
from kernel_cases import attention, with_exclusions
from ops_cases import DEVICE, NAN, assert_accurate, embedded, into_views, random

from decompx_fast import ops
from decompx_fast.kernels import launch

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
BACKENDS = ("triton", "torch")


@pytest.mark.parametrize(("b", "heads", "kv_heads", "i", "j", "k", "v", "dtype"), kernel_cases.MIXINGS)
def test_mixing_is_accurate(b, heads, kv_heads, i, j, k, v, dtype):
    alpha, _ = embedded(attention(b, heads, i, j, dtype=dtype))
    p, _ = embedded(random(b, j, k, kv_heads, v, dtype=dtype))
    got, twin = into_views(ops.mixing, "triton", (b, i, k, heads, v), dtype, alpha, p)
    assert_accurate(got, twin, formulas.mixing(alpha, p))


@pytest.mark.parametrize("n", [500, 509, 17])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_padded_attention_weights_get_the_tiles_of_aligned_ones(n, dtype):
    alpha = ops.with_padded_rows(torch.empty(1, 2, n, n, device=DEVICE), dtype)
    p = torch.empty(1, n, 1, 2, 64, device=DEVICE, dtype=dtype)
    width = launch.readable_width(alpha)
    assert alpha.shape == (1, 2, n, n) and alpha.dtype is dtype and width == -(-n // 16) * 16
    exact = torch.empty(1, 2, 512, 512, device=DEVICE, dtype=dtype)
    for precision in ("ieee", "tf32", "tf32x3"):
        chosen = launch.matrix_launch(precision, 512, alpha, p, widths=(width, 64))
        assert chosen == launch.matrix_launch(precision, 512, exact, p)
        unpadded = torch.empty(1, 2, n, n, device=DEVICE, dtype=dtype)
        assert launch.readable_width(unpadded) == n
        assert chosen != launch.matrix_launch(precision, 512, unpadded, p)


def test_only_padding_that_is_there_is_read():
    buffer = torch.empty(3, 16, device=DEVICE)
    assert launch.readable_width(buffer[:, :13]) == 16
    assert launch.readable_width(buffer[:, 3:]) == 13  # the last row ends where the memory ends
    assert launch.readable_width(buffer.flatten()[: 3 * 13].view(3, 13)) == 13  # rows follow each other
    assert launch.readable_width(buffer.T[:13]) == 3
    assert launch.readable_width(buffer) == 16


@pytest.mark.parametrize(
    ("i", "j", "causal", "window"),
    [(7, 9, False, None), (65, 63, False, None), (40, 40, True, None), (70, 70, True, 5)],
)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_mixing_does_not_use_what_the_padding_holds(i, j, causal, window, dtype):
    weights = attention(1, 2, i, j, dtype=dtype)
    alpha = ops.with_padded_rows(weights, dtype)
    alpha.as_strided((1, 2, i, -(-j // 16) * 16), alpha.stride())[..., j:] = NAN
    assert launch.readable_width(alpha) > j
    p = random(1, j, 3, 2, 16, dtype=dtype)
    got, twin = into_views(ops.mixing, "triton", (1, i, 3, 2, 16), dtype, alpha, p, causal=causal, window=window)
    assert_accurate(got, twin, formulas.mixing(weights, p, causal=causal, window=window))


@pytest.mark.parametrize(("i", "j", "causal", "window", "offset"), kernel_cases.EXCLUSIONS)
def test_mixing_takes_what_is_excluded_as_zero(i, j, causal, window, offset):
    alpha = attention(1, 2, i, j, dtype=F32)
    excluded = with_exclusions(alpha, causal, window, offset)
    p = random(1, j, 2, 2, 12)
    options = {"causal": causal, "window": window, "offset": offset}
    got, twin = into_views(ops.mixing, "triton", (1, i, 2, 2, 12), F32, alpha, p, **options)
    assert_accurate(got, twin, formulas.mixing(alpha, p, **options))
    assert torch.equal(got[:, excluded.all(1)], torch.zeros_like(got[:, excluded.all(1)]))


def norm_of(b, i, d, kind):
    if kind is None:
        return None
    weight = None if kind == "plain" else random(d, low=0.5, seed=8)
    return ops.FrozenNorm(random(b, i, low=0.5, seed=9), weight, kind != "rms")


@pytest.mark.parametrize(
    ("b", "i", "d", "f", "dtype", "norm_in", "norm_out"),
    [
        (1, 1, 1, 1, F32, None, None),
        (2, 3, 48, 65, F32, "layer", "layer"),
        (1, 2, 100, 63, F32, "rms", "plain"),
        (1, 2, 130, 64, BF16, "layer", "layer"),
        (1, 1, 65, 130, F16, None, "rms"),
        (1, 1, 64, 7, F16, "plain", None),
    ],
)
def test_position_operator_is_accurate(b, i, d, f, dtype, norm_in, norm_out):
    theta, _ = embedded(random(b, i, f, low=0))
    w_in = (random(f, d) / d**0.5).to(dtype).T  # as a linear layer holds it
    w_out = (random(d, f, seed=2) / f**0.5).to(dtype).T
    norms = {"norm_in": norm_of(b, i, d, norm_in), "norm_out": norm_of(b, i, d, norm_out)}
    got, twin = into_views(ops.position_operator, "triton", (b, i, d, d), dtype, theta, w_in, w_out, **norms)
    assert_accurate(got, twin, formulas.position_operator(theta, w_in, w_out, **norms))


@pytest.mark.parametrize(
    ("b", "i", "k", "d", "e", "m", "dtype"),
    [
        (1, 1, 1, 1, 1, 1, F32),
        (2, 3, 7, 48, 48, 5, F32),
        (1, 2, 65, 100, 65, 0, F32),
        (1, 2, 63, 100, 130, 8, BF16),
        (1, 1, 129, 64, 48, 5, F16),
    ],
)
def test_position_apply_is_accurate(b, i, k, d, e, m, dtype):
    r, _ = embedded(random(b, i, k, d, dtype=dtype))
    t, _ = embedded(random(b, i, d, e, dtype=dtype, seed=2))
    shares, u = (random(b, i, k, m, low=0), embedded(random(b, i, m, e, dtype=dtype, seed=3))[0]) if m else (None, None)
    got, twin = into_views(ops.position_apply, "triton", (b, i, k, e), dtype, r, t, shares, u)
    assert_accurate(got, twin, formulas.position_apply(r, t, shares, u))


def test_large_numbers_do_not_overflow_float16():
    big = 3e4
    p = random(1, 65, 3, 1, 12, low=0).mul(big).to(F16)
    alpha = attention(1, 1, 7, 65, dtype=F16)  # the sum of `p` is far outside float16, its average is not
    mixed = [ops.mixing(alpha, p, backend=backend) for backend in BACKENDS]
    assert_accurate(*mixed, formulas.mixing(alpha, p))
    r = random(1, 2, 7, 48, dtype=F16).clamp(-2, 2) * big
    t = random(1, 2, 48, 48, dtype=F16) / 64
    shares, u = random(1, 2, 7, 3, low=0), random(1, 2, 3, 48) * big
    applied = [ops.position_apply(r, t, shares, u / 8, backend=backend) for backend in BACKENDS]
    assert_accurate(*applied, formulas.position_apply(r, t, shares, u / 8))


def test_offsets_beyond_32_bits():
    # Only the pages that are written exist, so this takes little memory. Whole numbers: every sum is exact.
    buffer = torch.empty(2**31 + 4096, dtype=F16, device=DEVICE)
    far = buffer.as_strided((1, 2, 3, 1, 16), (2**31, 2**31, 16, 16, 1))
    p = random(1, 2, 3, 1, 16, dtype=F16).round()
    alpha = random(1, 1, 2, 2, dtype=F16).round()
    exact = formulas.mixing(alpha, p).half().to(DEVICE)
    far.copy_(p)
    assert torch.equal(ops.mixing(alpha, far, backend="triton"), exact)
    assert torch.equal(ops.mixing(alpha, p, out=far, backend="triton"), exact)
    r, t = p[:, :, :, 0], random(1, 2, 16, 16, dtype=F16).round()
    out = far[:, :, :, 0]
    ops.position_apply(r, t, out=out, backend="triton")
    assert torch.equal(out, formulas.position_apply(r, t).half().to(DEVICE))
    out = buffer.as_strided((1, 2, 16, 16), (2**31, 2**31, 16, 1))
    ops.position_operator(random(1, 2, 3).round(), t[0, 0, :, :3], t[0, 1, :3], out=out, backend="triton")
    exact = formulas.position_operator(random(1, 2, 3).round(), t[0, 0, :, :3], t[0, 1, :3])
    assert torch.equal(out, exact.half().to(DEVICE))


def test_every_tile_fits_in_shared_memory():
    for arch, limit in launch.SHARED_BYTES.items():
        for mode in ("half", "tf32", "tf32x3", "ieee"):
            for kind in ("many", "few", "unaligned"):
                tile = launch.matrix_tile(mode, kind, arch)
                operands = (tile.block_m + tile.block_n) * tile.block_l * (2 if mode == "half" else 4)
                assert operands * (tile.stages - 1) <= limit
    assert launch.matrix_mode(BF16, "tf32") == "half" and launch.matrix_mode(F32, "tf32") == "tf32"
