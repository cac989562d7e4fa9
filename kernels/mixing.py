"""Attention weights applied to the decomposed values: ``out[i,k,h,v] = sum_j alpha[h,i,j] p[j,k,g(h),v]``.

For one head this is a product of ``alpha`` ``[i, j]`` with ``p`` ``[j, (k v)]``, where the columns ``(k v)`` are runs
of one head's size in the natural layout ``[b, j, k, (g v)]``. A tile of columns is computed from the flat index, so no
head is copied out, no size is rounded up, and a tile may span sources: with heads of 64, 128 columns are two sources.
Programs of the same columns follow each other, so a panel of ``p`` comes from memory once and ``alpha`` from the cache.
"""

import torch
import triton
import triton.language as tl

from .launch import matrix_launch, readable_width, run_matrix
from .products import multiply_add


@triton.jit
def attended_keys(
    i_first,
    n_j,
    offset,
    window,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """The first key and the one past the last that a position of the tile attends, in steps of ``BLOCK_L``."""
    j_first = 0
    j_stop = n_j
    if CAUSAL:
        j_stop = tl.minimum(j_stop, i_first + BLOCK_M + offset)
    if WINDOWED:
        j_first = tl.maximum(0, i_first + offset - window + 1) // BLOCK_L * BLOCK_L
        j_stop = tl.minimum(j_stop, i_first + BLOCK_M - 1 + offset + window)
    return j_first, j_stop


@triton.jit
def mixing_kernel(
    out_ptr,
    alpha_ptr,
    p_ptr,
    n_h,
    n_i,
    n_j,
    n_k,
    n_readable,
    offset,
    window,
    out_strides,
    alpha_strides,
    p_strides,
    N_V: tl.constexpr,
    GROUP: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    # The tiles of one head follow each other, those of the same columns first.
    n_tiles_i = tl.cdiv(n_i, BLOCK_M)
    n_tiles = n_tiles_i * tl.cdiv(n_k * N_V, BLOCK_N)
    head = tl.program_id(0) // n_tiles
    tile = tl.program_id(0) % n_tiles
    i_b = (head // n_h).to(tl.int64)
    i_h = (head % n_h).to(tl.int64)
    i_first = tile % n_tiles_i * BLOCK_M
    offs_i = i_first + tl.arange(0, BLOCK_M)
    offs_c = tile // n_tiles_i * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = (offs_c // N_V).to(tl.int64)
    offs_v = offs_c % N_V
    mask_i = offs_i < n_i
    mask_c = offs_k < n_k
    rows = offs_i.to(tl.int64)[:, None]

    j_first, j_stop = attended_keys(i_first, n_j, offset, window, CAUSAL, WINDOWED, BLOCK_M, BLOCK_L)
    alpha_tile = alpha_ptr + i_b * alpha_strides[0] + i_h * alpha_strides[1] + rows * alpha_strides[2]
    p_tile = p_ptr + i_b * p_strides[0] + i_h // GROUP * p_strides[3] + (offs_k * p_strides[2] + offs_v)[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(j_first, j_stop, BLOCK_L):
        offs_j = start + tl.arange(0, BLOCK_L)
        mask_j = offs_j < n_j
        keys = offs_j.to(tl.int64)
        # Where rows are padded, what the padding holds is read too: runs of 16 are loaded or left out as a whole.
        mask_alpha = mask_i[:, None] & (offs_j < n_readable)[None, :]
        alpha = tl.load(alpha_tile + keys[None, :] * alpha_strides[3], mask=mask_alpha, other=0.0)
        if PADDED:
            alpha = tl.where(mask_j[None, :], alpha, 0.0)
        if CAUSAL or WINDOWED:
            distance = (offs_i + offset)[:, None] - offs_j[None, :]
            if CAUSAL:
                alpha = tl.where(distance >= 0, alpha, 0.0)
            if WINDOWED:
                alpha = tl.where(tl.abs(distance) < window, alpha, 0.0)
        p = tl.load(p_tile + keys[:, None] * p_strides[1], mask=mask_j[:, None] & mask_c[None, :], other=0.0)
        acc = multiply_add(alpha, p, acc, PRECISION)

    out_tile = out_ptr + i_b * out_strides[0] + i_h * out_strides[3] + rows * out_strides[1]
    out_tile += (offs_k * out_strides[2] + offs_v)[None, :]
    tl.store(out_tile, acc.to(out_ptr.dtype.element_ty), mask=mask_i[:, None] & mask_c[None, :])


def mixing(
    out: torch.Tensor,
    alpha: torch.Tensor,
    p: torch.Tensor,
    *,
    causal: bool,
    window: int | None,
    offset: int,
    precision: str,
) -> None:
    """Launch :func:`mixing_kernel`; arguments as checked by the op."""
    b, h, i, j = alpha.shape
    k, g, v = p.shape[2:]
    readable = readable_width(alpha)
    choice = matrix_launch(precision, i, alpha, p, widths=(readable, v))
    tiles = triton.cdiv(i, choice.block_m) * triton.cdiv(k * v, choice.block_n)
    run_matrix(
        mixing_kernel,
        choice,
        (b * h * tiles,),
        (out, alpha, p),
        (h, i, j, k, readable, offset, window or 0),
        (out.stride()[:4], alpha.stride(), p.stride()[:4]),
        precision=precision,
        N_V=v,
        GROUP=h // g,
        CAUSAL=causal,
        WINDOWED=window is not None,
        PADDED=readable > j,
    )
