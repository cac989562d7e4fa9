"""Shares a bias among the sources and adds it, and the residual, in place.

Phases, splits and bytes: see ``rows``. A residual adds one read of its own size, and a second one if the shares come
after it.
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
    nonzero_of,
    row_of,
    row_part,
    row_shares,
    share_of,
    store_block,
    work_rows,
)

PHASES = ("DOTS", "FLAGS", "APPLY")


@triton.jit
def load_sum(
    x_row,
    residual_row,
    offs_k,
    offs_d,
    stride_xk,
    stride_rk,
    n_k,
    n_d,
    RESIDUAL: tl.constexpr,
    EVICT: tl.constexpr,
):
    """A block of ``x``, with the residual added if asked for."""
    x = load_block(x_row, offs_k, offs_d, stride_xk, n_k, n_d, EVICT)
    if RESIDUAL:
        x += load_block(residual_row, offs_k, offs_d, stride_rk, n_k, n_d, EVICT)
    return x


@triton.jit
def bias_split_kernel(
    x_ptr,
    residual_ptr,
    bias_ptr,
    work_ptr,
    n_i,
    n_k,
    n_d,
    k_per_program,
    x_strides,
    residual_strides,
    bias_strides,
    RULE: tl.constexpr,
    SHARE_AFTER: tl.constexpr,
    DOTS: tl.constexpr,
    FLAGS: tl.constexpr,
    APPLY: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    row, i_b, i_i = row_of(n_i)
    k_first, n_blocks = row_part(n_k, k_per_program, BLOCK_K)
    x_row = at_row(x_ptr, x_strides, i_b, i_i, x_ptr)
    residual_row = at_row(residual_ptr, residual_strides, i_b, i_i, x_ptr)
    bias_row = at_row(bias_ptr, bias_strides, i_b, i_i, x_ptr)
    dots_row, flags_row = work_rows(work_ptr, 0, row, n_k)
    xk, rk = x_strides[2], residual_strides[2]
    n_chunks = tl.cdiv(n_d, BLOCK_D)

    if DOTS:
        dots = tl.zeros([BLOCK_K], tl.float32)
        # One flat loop over blocks of sources and chunks of their vectors: loads are pipelined across both.
        for step in tl.range(0, n_blocks * n_chunks, num_stages=STAGES):
            chunk = step % n_chunks
            offs_k = k_first + step // n_chunks * BLOCK_K + tl.arange(0, BLOCK_K)
            offs_d = chunk * BLOCK_D + tl.arange(0, BLOCK_D)
            u = load_sum(x_row, residual_row, offs_k, offs_d, xk, rk, n_k, n_d, SHARE_AFTER, "evict_last")
            part = tl.sum(u * load_vector(bias_row, offs_d, n_d)[None, :], axis=1)
            dots = tl.where(chunk == 0, part, dots + part)
            if chunk == n_chunks - 1:
                tl.store(dots_row + offs_k, dots, mask=offs_k < n_k)
        tl.debug_barrier()
    if FLAGS:
        if dots_total(dots_row, n_k, RULE) == 0:
            for block in range(n_blocks):
                offs_k = k_first + block * BLOCK_K + tl.arange(0, BLOCK_K)
                flags = tl.zeros([BLOCK_K], tl.float32)
                for chunk in range(n_chunks):
                    offs_d = chunk * BLOCK_D + tl.arange(0, BLOCK_D)
                    u = load_sum(x_row, residual_row, offs_k, offs_d, xk, rk, n_k, n_d, SHARE_AFTER, "evict_last")
                    flags = tl.maximum(flags, nonzero_of(u))
                tl.store(flags_row + offs_k, flags, mask=offs_k < n_k)
            tl.debug_barrier()
    if APPLY:
        shares = row_shares(dots_row, flags_row, n_k, RULE)
        for step in tl.range(0, n_blocks * n_chunks, num_stages=STAGES):
            # Backwards: what was read last is still in the cache.
            offs_k = k_first + (n_blocks - 1 - step // n_chunks) * BLOCK_K + tl.arange(0, BLOCK_K)
            offs_d = (n_chunks - 1 - step % n_chunks) * BLOCK_D + tl.arange(0, BLOCK_D)
            x = load_sum(x_row, residual_row, offs_k, offs_d, xk, rk, n_k, n_d, residual_ptr is not None, "evict_first")
            if RULE != "none":
                share = share_of(shares, offs_k, n_k, RULE)
                x += share[:, None] * load_vector(bias_row, offs_d, n_d)[None, :]
            store_block(x_row, offs_k, offs_d, xk, n_k, n_d, x)


def bias_split(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    rule: str,
    residual: torch.Tensor | None = None,
    share_after_residual: bool = False,
) -> None:
    """Launch :func:`bias_split_kernel` on ``x`` ``[b, i, k, d]``; arguments as checked by the op."""
    b, i, k, d = x.shape
    if bias is None or rule == "none":
        bias, rule = None, "none"
    bias = None if bias is None else bias.expand(b, i, d)
    choice = row_launch(x, streams=1 if residual is None else 2)
    run_phases(
        bias_split_kernel,
        choice,
        PHASES,
        needed_phases(PHASES, rule),
        (x, residual, bias, workspace(x, 1)),
        (i, k, d, choice.k_per_program),
        (x.stride()[:3], row_strides(residual, 3), row_strides(bias)),
        RULE=rule,
        SHARE_AFTER=share_after_residual,
    )
