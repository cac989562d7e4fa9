"""The frozen activation with the split of its biases, in place: ``a <- slope (a + omega bias) + omega' intercept``.

Phases, splits and bytes: see ``rows``. The shares of an intercept come from the vectors after the slope, which need
the shares of the bias first: two more phases, DOTS_LAST and FLAGS_LAST, and one more read of the hidden.
"""

import torch
import triton
import triton.language as tl

from .launch import needed_phases, row_launch, row_strides, run_phases, workspace
from .rows import (
    at_row,
    dots_total,
    load_block,
    load_vector,
    no_shares,
    nonzero_of,
    row_of,
    row_part,
    row_shares,
    share_of,
    store_block,
    work_rows,
)

PHASES = ("DOTS", "FLAGS", "DOTS_LAST", "FLAGS_LAST", "APPLY")
STREAMS = 4  # the vectors of a chunk take the registers of further tensors


@triton.jit
def load_hidden(
    rows,
    shares,
    sizes,
    offs_k,
    offs_f,
    BIAS: tl.constexpr,
    ACTIVATED: tl.constexpr,
    RULE: tl.constexpr,
    EVICT: tl.constexpr,
):
    """A block of ``a``, or of ``slope * (a + omega bias)`` if ``ACTIVATED``."""
    a_row, bias_row, slope_row = rows
    stride_ak, n_k, n_f = sizes
    a = load_block(a_row, offs_k, offs_f, stride_ak, n_k, n_f, EVICT)
    if ACTIVATED:
        if BIAS:
            share = share_of(shares, offs_k, n_k, RULE)
            a += share[:, None] * load_vector(bias_row, offs_f, n_f)[None, :]
        a *= load_vector(slope_row, offs_f, n_f)[None, :]
    return a


@triton.jit
def write_dots(
    dots_row,
    vector_row,
    rows,
    shares,
    sizes,
    part,
    BIAS: tl.constexpr,
    ACTIVATED: tl.constexpr,
    RULE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_F: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The dots of this program's vectors with the bias or the intercept."""
    k_first, n_blocks = part
    _, n_k, n_f = sizes
    n_chunks = tl.cdiv(n_f, BLOCK_F)
    dots = tl.zeros([BLOCK_K], tl.float32)
    # One flat loop over blocks of sources and chunks of their vectors: loads are pipelined across both.
    for step in tl.range(0, n_blocks * n_chunks, num_stages=STAGES):
        chunk = step % n_chunks
        offs_k = k_first + step // n_chunks * BLOCK_K + tl.arange(0, BLOCK_K)
        offs_f = chunk * BLOCK_F + tl.arange(0, BLOCK_F)
        u = load_hidden(rows, shares, sizes, offs_k, offs_f, BIAS, ACTIVATED, RULE, "evict_last")
        more = tl.sum(u * load_vector(vector_row, offs_f, n_f)[None, :], axis=1)
        dots = tl.where(chunk == 0, more, dots + more)
        if chunk == n_chunks - 1:
            tl.store(dots_row + offs_k, dots, mask=offs_k < n_k)


@triton.jit
def write_flags(
    flags_row,
    rows,
    shares,
    sizes,
    part,
    BIAS: tl.constexpr,
    ACTIVATED: tl.constexpr,
    RULE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """Which of this program's vectors are not zero."""
    k_first, n_blocks = part
    _, n_k, n_f = sizes
    for block in range(n_blocks):
        offs_k = k_first + block * BLOCK_K + tl.arange(0, BLOCK_K)
        flags = tl.zeros([BLOCK_K], tl.float32)
        for start in range(0, n_f, BLOCK_F):
            offs_f = start + tl.arange(0, BLOCK_F)
            u = load_hidden(rows, shares, sizes, offs_k, offs_f, BIAS, ACTIVATED, RULE, "evict_last")
            flags = tl.maximum(flags, nonzero_of(u))
        tl.store(flags_row + offs_k, flags, mask=offs_k < n_k)


@triton.jit
def activation_kernel(
    a_ptr,
    slope_ptr,
    bias_ptr,
    intercept_ptr,
    work_ptr,
    n_i,
    n_k,
    n_f,
    k_per_program,
    a_strides,
    slope_strides,
    bias_strides,
    intercept_strides,
    RULE: tl.constexpr,
    DOTS: tl.constexpr,
    FLAGS: tl.constexpr,
    DOTS_LAST: tl.constexpr,
    FLAGS_LAST: tl.constexpr,
    APPLY: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    BIAS: tl.constexpr = bias_ptr is not None
    INTERCEPT: tl.constexpr = intercept_ptr is not None
    row, i_b, i_i = row_of(n_i)
    k_first, n_blocks = row_part(n_k, k_per_program, BLOCK_K)
    part = k_first, n_blocks
    sizes = a_strides[2], n_k, n_f
    a_row = at_row(a_ptr, a_strides, i_b, i_i, a_ptr)
    bias_row = at_row(bias_ptr, bias_strides, i_b, i_i, a_ptr)
    last_row = at_row(intercept_ptr, intercept_strides, i_b, i_i, a_ptr)
    rows = a_row, bias_row, at_row(slope_ptr, slope_strides, i_b, i_i, a_ptr)
    dots, flags = work_rows(work_ptr, 0, row, n_k)
    last_dots, last_flags = work_rows(work_ptr, 1, row, n_k)

    shares = no_shares(dots)
    if DOTS:
        write_dots(dots, bias_row, rows, shares, sizes, part, BIAS, False, RULE, BLOCK_K, BLOCK_D, STAGES)
        tl.debug_barrier()
    if FLAGS:
        if dots_total(dots, n_k, RULE) == 0:
            write_flags(flags, rows, shares, sizes, part, BIAS, False, RULE, BLOCK_K, BLOCK_D)
            tl.debug_barrier()
    if BIAS and (DOTS_LAST or FLAGS_LAST or APPLY):
        shares = row_shares(dots, flags, n_k, RULE)
    if DOTS_LAST:
        write_dots(last_dots, last_row, rows, shares, sizes, part, BIAS, True, RULE, BLOCK_K, BLOCK_D, STAGES)
        tl.debug_barrier()
    if FLAGS_LAST:
        if dots_total(last_dots, n_k, RULE) == 0:
            write_flags(last_flags, rows, shares, sizes, part, BIAS, True, RULE, BLOCK_K, BLOCK_D)
            tl.debug_barrier()
    if APPLY:
        if INTERCEPT:
            last_shares = row_shares(last_dots, last_flags, n_k, RULE)
        n_chunks = tl.cdiv(n_f, BLOCK_D)
        for step in tl.range(0, n_blocks * n_chunks, num_stages=STAGES):
            # Backwards: what was read last is still in the cache.
            offs_k = k_first + (n_blocks - 1 - step // n_chunks) * BLOCK_K + tl.arange(0, BLOCK_K)
            offs_f = (n_chunks - 1 - step % n_chunks) * BLOCK_D + tl.arange(0, BLOCK_D)
            v = load_hidden(rows, shares, sizes, offs_k, offs_f, BIAS, True, RULE, "evict_first")
            if INTERCEPT:
                share = share_of(last_shares, offs_k, n_k, RULE)
                v += share[:, None] * load_vector(last_row, offs_f, n_f)[None, :]
            store_block(a_row, offs_k, offs_f, a_strides[2], n_k, n_f, v)


def activation(
    a: torch.Tensor,
    slope: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    intercept: torch.Tensor | None,
    rule: str,
) -> None:
    """Launch :func:`activation_kernel` on ``a`` ``[b, i, k, f]``; arguments as checked by the op."""
    b, i, k, f = a.shape
    if rule == "none":
        bias = intercept = None
    bias = None if bias is None else bias.expand(b, i, f)
    choice = row_launch(a, streams=STREAMS)
    absent = (() if bias is not None else PHASES[0:2]) + (() if intercept is not None else PHASES[2:4])
    run_phases(
        activation_kernel,
        choice,
        PHASES,
        needed_phases(PHASES, rule, absent=absent),
        (a, slope, bias, intercept, workspace(a, 2)),
        (i, k, f, choice.k_per_program),
        (a.stride()[:3], *(row_strides(vector) for vector in (slope, bias, intercept))),
        RULE=rule,
    )
