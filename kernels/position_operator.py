"""Builds ``T = factor * (skip + A diag(theta) B)``, one ``d x d`` matrix per position, tile by tile.

``A`` and ``B`` are the weights of the feed-forward network with the norms folded in, the same for all positions;
``skip`` is what the norms make of the identity, diagonal plus rank two (the op's file derives it). ``theta`` multiplies
the tile of ``A`` after it is loaded, so nothing of the size ``[b, i, d, f]`` exists.
"""

import torch
import triton
import triton.language as tl

from .launch import matrix_launch, run_matrix
from .products import multiply_add


@triton.jit
def position_operator_kernel(
    out_ptr,
    theta_ptr,
    w_in_ptr,
    w_out_ptr,
    factor_ptr,
    skip_ptr,
    n_i,
    n_d,
    n_f,
    out_strides,
    theta_strides,
    w_in_strides,
    w_out_strides,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    # The tiles of one position follow each other: its theta and the weights stay in the cache.
    tiles_c = tl.cdiv(n_d, BLOCK_N)
    n_tiles = tl.cdiv(n_d, BLOCK_M) * tiles_c
    row = (tl.program_id(0) // n_tiles).to(tl.int64)
    tile = tl.program_id(0) % n_tiles
    offs_r = tile // tiles_c * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_c = tile % tiles_c * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_r = offs_r < n_d
    mask_c = offs_c < n_d
    rows = offs_r.to(tl.int64)[:, None]
    columns = offs_c.to(tl.int64)[None, :]

    theta_row = theta_ptr + row // n_i * theta_strides[0] + row % n_i * theta_strides[1]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, n_f, BLOCK_L):
        offs_f = start + tl.arange(0, BLOCK_L)
        mask_f = offs_f < n_f
        hidden = offs_f.to(tl.int64)
        w_in = tl.load(
            w_in_ptr + rows * w_in_strides[0] + hidden[None, :] * w_in_strides[1],
            mask=mask_r[:, None] & mask_f[None, :],
            other=0.0,
        )
        theta = tl.load(theta_row + offs_f, mask=mask_f, other=0.0).to(tl.float32)
        scaled = (w_in.to(tl.float32) * theta[None, :]).to(w_in.dtype)
        w_out = tl.load(
            w_out_ptr + hidden[:, None] * w_out_strides[0] + columns * w_out_strides[1],
            mask=mask_f[:, None] & mask_c[None, :],
            other=0.0,
        )
        acc = multiply_add(scaled, w_out, acc, PRECISION)

    diagonal = tl.load(skip_ptr + offs_c, mask=mask_c, other=0.0)
    skip_ptr += n_d
    column = tl.load(skip_ptr + offs_c, mask=mask_c, other=0.0)
    skip_ptr += n_d
    left = tl.load(skip_ptr + offs_r, mask=mask_r, other=0.0)
    skip_ptr += n_d
    right = tl.load(skip_ptr + offs_c, mask=mask_c, other=0.0)
    acc += tl.where(rows == columns, diagonal[None, :], 0.0) + column[None, :] + left[:, None] * right[None, :]
    acc *= tl.load(factor_ptr + row)
    out_tile = out_ptr + row // n_i * out_strides[0] + row % n_i * out_strides[1] + rows * out_strides[2] + columns
    tl.store(out_tile, acc.to(out_ptr.dtype.element_ty), mask=mask_r[:, None] & mask_c[None, :])


def position_operator(
    out: torch.Tensor,
    theta: torch.Tensor,
    w_in: torch.Tensor,
    w_out: torch.Tensor,
    factor: torch.Tensor,
    skip: torch.Tensor,
    *,
    precision: str,
) -> None:
    """Launch :func:`position_operator_kernel`; arguments as the twin takes them."""
    b, i, f = theta.shape
    d = w_in.shape[0]
    choice = matrix_launch(precision, d, w_in, w_out)
    tiles = triton.cdiv(d, choice.block_m) * triton.cdiv(d, choice.block_n)
    run_matrix(
        position_operator_kernel,
        choice,
        (b * i * tiles,),
        (out, theta, w_in, w_out, factor.contiguous(), skip.contiguous()),
        (i, d, f),
        (out.stride()[:3], theta.stride()[:2], w_in.stride(), w_out.stride()),
        precision=precision,
    )
