"""A few functionals of every source's vector, ``out[k,m] = x[k] . g[m]``, with one read of the state.

Bound by that read: per number of two bytes, 2 x 8 operations at most, where an H100 has 20 float32 operations per byte
of its bandwidth. So plain arithmetic in float32 serves, and the functionals keep their precision.
"""

import torch
import triton
import triton.language as tl

from .launch import row_launch, run_rows
from .rows import at_row, load_block, load_vector, row_of, row_part

STREAMS = 2  # the sums take as much room as a second tensor


@triton.jit
def functional_dots_kernel(
    out_ptr,
    x_ptr,
    g_ptr,
    n_i,
    n_k,
    n_d,
    k_per_program,
    out_strides,
    x_strides,
    g_strides,
    N_M: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    _, i_b, i_i = row_of(n_i)
    k_first, n_blocks = row_part(n_k, k_per_program, BLOCK_K)
    x_row = at_row(x_ptr, x_strides, i_b, i_i, x_ptr)
    g_row = at_row(g_ptr, g_strides, i_b, i_i, x_ptr)
    out_row = at_row(out_ptr, out_strides, i_b, i_i, x_ptr)
    offs_m = tl.arange(0, BLOCK_M)
    n_chunks = tl.cdiv(n_d, BLOCK_D)
    dots = tl.zeros([BLOCK_K, BLOCK_M], tl.float32)
    for step in tl.range(0, n_blocks * n_chunks, num_stages=STAGES):
        chunk = step % n_chunks
        offs_k = k_first + step // n_chunks * BLOCK_K + tl.arange(0, BLOCK_K)
        offs_d = chunk * BLOCK_D + tl.arange(0, BLOCK_D)
        x = load_block(x_row, offs_k, offs_d, x_strides[2], n_k, n_d, "evict_first")
        dots = tl.where(chunk == 0, 0.0, dots)
        g_at = g_row
        for m in tl.static_range(N_M):
            part = tl.sum(x * load_vector(g_at, offs_d, n_d)[None, :], axis=1)
            dots += tl.where(offs_m[None, :] == m, part[:, None], 0.0)
            g_at += g_strides[2]
        if chunk == n_chunks - 1:
            out_at = out_row + offs_k.to(tl.int64)[:, None] * out_strides[2] + offs_m[None, :]
            tl.store(out_at, dots, mask=(offs_k < n_k)[:, None] & (offs_m < N_M)[None, :])


def functional_dots(out: torch.Tensor, x: torch.Tensor, g: torch.Tensor) -> None:
    """Launch :func:`functional_dots_kernel`; arguments as checked by the op."""
    _, i, k, d = x.shape
    m = g.shape[2]
    choice = row_launch(x, streams=STREAMS)
    run_rows(
        functional_dots_kernel,
        choice,
        (out, x, g),
        (i, k, d, choice.k_per_program),
        (out.stride()[:3], x.stride()[:3], g.stride()[:3]),
        N_M=m,
        BLOCK_M=triton.next_power_of_2(m),
    )
