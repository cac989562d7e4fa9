"""Applies one matrix per position to all its sources: ``out[k] = r[k] t + sum_m shares[k,m] u[m]``.

The bias updates, of rank ``m <= 8``, are added to the accumulators before they are rounded and stored.
"""

import torch
import triton
import triton.language as tl

from .launch import matrix_launch, run_matrix
from .products import multiply_add


@triton.jit
def position_apply_kernel(
    out_ptr,
    r_ptr,
    t_ptr,
    shares_ptr,
    u_ptr,
    n_i,
    n_k,
    n_d,
    n_e,
    out_strides,
    r_strides,
    t_strides,
    shares_strides,
    u_strides,
    N_M: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    # The tiles of one position follow each other: its matrix and its vectors stay in the cache.
    tiles_e = tl.cdiv(n_e, BLOCK_N)
    n_tiles = tl.cdiv(n_k, BLOCK_M) * tiles_e
    row = (tl.program_id(0) // n_tiles).to(tl.int64)
    i_b = row // n_i
    i_i = row % n_i
    tile = tl.program_id(0) % n_tiles
    offs_k = tile // tiles_e * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_e = tile % tiles_e * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_k = offs_k < n_k
    mask_e = offs_e < n_e
    sources = offs_k.to(tl.int64)

    r_tile = r_ptr + i_b * r_strides[0] + i_i * r_strides[1] + sources[:, None] * r_strides[2]
    t_tile = t_ptr + i_b * t_strides[0] + i_i * t_strides[1] + offs_e[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, n_d, BLOCK_L):
        offs_d = start + tl.arange(0, BLOCK_L)
        mask_d = offs_d < n_d
        r = tl.load(r_tile + offs_d[None, :], mask=mask_k[:, None] & mask_d[None, :], other=0.0)
        t = tl.load(
            t_tile + offs_d.to(tl.int64)[:, None] * t_strides[2], mask=mask_d[:, None] & mask_e[None, :], other=0.0
        )
        acc = multiply_add(r, t, acc, PRECISION)

    # The compiler visits the body of a loop of no steps too: only a condition keeps it away from what is not there.
    if N_M > 0:
        shares_at = shares_ptr + i_b * shares_strides[0] + i_i * shares_strides[1] + sources * shares_strides[2]
        u_at = u_ptr + i_b * u_strides[0] + i_i * u_strides[1] + offs_e
        for _ in range(N_M):  # not unrolled: the accumulators leave few registers for more updates at once
            share = tl.load(shares_at, mask=mask_k, other=0.0).to(tl.float32)
            u = tl.load(u_at, mask=mask_e, other=0.0).to(tl.float32)
            acc += share[:, None] * u[None, :]
            shares_at += shares_strides[3]
            u_at += u_strides[2]
    out_tile = out_ptr + i_b * out_strides[0] + i_i * out_strides[1] + sources[:, None] * out_strides[2]
    tl.store(out_tile + offs_e[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask_k[:, None] & mask_e[None, :])


def position_apply(
    out: torch.Tensor,
    r: torch.Tensor,
    t: torch.Tensor,
    shares: torch.Tensor | None,
    u: torch.Tensor | None,
    *,
    precision: str,
) -> None:
    """Launch :func:`position_apply_kernel`; arguments as checked by the op."""
    b, i, k, d = r.shape
    e = t.shape[3]
    choice = matrix_launch(precision, k, r, t)
    tiles = triton.cdiv(k, choice.block_m) * triton.cdiv(e, choice.block_n)
    run_matrix(
        position_apply_kernel,
        choice,
        (b * i * tiles,),
        (out, r, t, shares, u),
        (i, k, d, e),
        (
            out.stride()[:3],
            r.stride()[:3],
            t.stride()[:3],
            (0, 0, 0, 0) if shares is None else shares.stride(),
            (0, 0, 0) if u is None else u.stride()[:3],
        ),
        precision=precision,
        N_M=0 if shares is None else shares.shape[3],
    )
