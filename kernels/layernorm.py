"""LayerNorm or RMSNorm with frozen statistics, and the split of its bias, in place.

A tile holds whole vectors, so the mean over ``d`` costs no read of its own and nothing is subtracted that was
computed apart. Phases, splits and bytes: see ``rows``.
"""

import torch
import triton
import triton.language as tl

from .launch import needed_phases, row_launch, run_phases, workspace
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
def load_gain(weight_ptr, scale, offs_d, n_d):
    """``weight / scale``, zero outside."""
    if weight_ptr is not None:
        return load_vector(weight_ptr, offs_d, n_d) / scale
    else:
        return tl.where(offs_d < n_d, 1.0, 0.0) / scale


@triton.jit
def load_normed(x_row, gain, offs_k, offs_d, stride_xk, n_k, n_d, CENTRE: tl.constexpr, EVICT: tl.constexpr):
    """A block of ``(x - mean) * gain``, zero outside."""
    x = load_block(x_row, offs_k, offs_d, stride_xk, n_k, n_d, EVICT)
    if CENTRE:
        x -= (tl.sum(x, axis=1) / n_d)[:, None]
    return x * gain[None, :]


@triton.jit
def layernorm_kernel(
    x_ptr,
    scale_ptr,
    weight_ptr,
    bias_ptr,
    work_ptr,
    n_i,
    n_k,
    n_d,
    k_per_program,
    x_strides,
    scale_strides,
    CENTRE: tl.constexpr,
    RULE: tl.constexpr,
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
    dots_row, flags_row = work_rows(work_ptr, 0, row, n_k)
    offs_d = tl.arange(0, BLOCK_D)
    scale = tl.load(at_row(scale_ptr, scale_strides, i_b, i_i, x_ptr)).to(tl.float32)

    # Each phase loads the vectors anew: Triton 3.6 fails to compile what stays in registers over several loops.
    if DOTS:
        gain = load_gain(weight_ptr, scale, offs_d, n_d)
        bias = load_vector(bias_ptr, offs_d, n_d)
        for block in tl.range(0, n_blocks, num_stages=STAGES):
            offs_k = k_first + block * BLOCK_K + tl.arange(0, BLOCK_K)
            y = load_normed(x_row, gain, offs_k, offs_d, x_strides[2], n_k, n_d, CENTRE, "evict_last")
            tl.store(dots_row + offs_k, tl.sum(y * bias[None, :], axis=1), mask=offs_k < n_k)
        tl.debug_barrier()
    if FLAGS:
        if dots_total(dots_row, n_k, RULE) == 0:
            gain = load_gain(weight_ptr, scale, offs_d, n_d)
            for block in range(n_blocks):
                offs_k = k_first + block * BLOCK_K + tl.arange(0, BLOCK_K)
                y = load_normed(x_row, gain, offs_k, offs_d, x_strides[2], n_k, n_d, CENTRE, "evict_last")
                tl.store(flags_row + offs_k, nonzero_of(y), mask=offs_k < n_k)
            tl.debug_barrier()
    if APPLY:
        shares = row_shares(dots_row, flags_row, n_k, RULE)
        gain = load_gain(weight_ptr, scale, offs_d, n_d)
        if bias_ptr is not None:
            bias = load_vector(bias_ptr, offs_d, n_d)
        for step in tl.range(0, n_blocks, num_stages=STAGES):
            # Backwards: what was read last is still in the cache.
            offs_k = k_first + (n_blocks - 1 - step) * BLOCK_K + tl.arange(0, BLOCK_K)
            y = load_normed(x_row, gain, offs_k, offs_d, x_strides[2], n_k, n_d, CENTRE, "evict_first")
            if bias_ptr is not None:
                y += share_of(shares, offs_k, n_k, RULE)[:, None] * bias[None, :]
            store_block(x_row, offs_k, offs_d, x_strides[2], n_k, n_d, y)


def layernorm(
    x: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    centre: bool,
    rule: str,
) -> None:
    """Launch :func:`layernorm_kernel` on ``x`` ``[b, i, k, d]``; arguments as checked by the op."""
    _, i, k, d = x.shape
    if bias is None or rule == "none":
        bias, rule = None, "none"
    choice = row_launch(x, whole=True)
    run_phases(
        layernorm_kernel,
        choice,
        PHASES,
        needed_phases(PHASES, rule),
        (x, scale, weight, bias, workspace(x, 1)),
        (i, k, d, choice.k_per_program),
        (x.stride()[:3], scale.stride()),
        CENTRE=centre,
        RULE=rule,
    )
