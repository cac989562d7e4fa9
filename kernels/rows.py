"""What the kernels that share a bias among sources have in common: phases, shares, and blocks of vectors.

A *row* is one position ``(b, i)`` with all its sources. A kernel goes over its row in up to three phases:

- DOTS: the dot of every source's vector with the bias, written to a workspace ``[b, i, k]``;
- FLAGS: only where all dots of the row are zero (or the rule is ``equal``): which sources are not zero;
- APPLY: the update in place, with every share computed from the row's dots or flags.

One launch can do all phases, a program per row (*fused*), or each phase has its launch, with the sources of a
row divided among many programs (*split*). A phase reads what the phase before wrote for the whole row, and of
the state only what its own program writes: so split programs need not wait for one another.

Bytes, for a state of ``S`` bytes: both ways read it twice and write it once. Split, the second read comes from
memory: 3 S. Fused, it comes from the L2 cache as far as the rows in flight fit. One program is resident on a
multiprocessor (its registers and the pipeline's buffers see to that), so an H100 has 132 rows in flight; a row of
512 sources of 768 bfloat16 numbers is 0.79 MB, and since the second read goes backwards, on average half of a
row is still to be read again: 52 MB beside 50 MB of L2. So, by this count, about 2.2 S there, the floor of 2 S
for rows up to 380 KB, and towards 3 S for much longer ones. Fused never moves more than split, so it is taken
whenever there are rows enough to occupy the device. Programs that hold a row on chip together would reach 2 S
for every row, but they have to wait for one another, which the interpreter cannot run and a launch without
clusters does not promise.
"""

import triton
import triton.language as tl

TOTAL_BLOCK = tl.constexpr(1024)


@triton.jit
def load_block(x_row, offs_k, offs_d, stride_k, n_k, n_d, EVICT: tl.constexpr):
    """A block of vectors ``[k, d]`` in float32, zero outside."""
    offsets = offs_k.to(tl.int64)[:, None] * stride_k + offs_d[None, :]
    mask = (offs_k < n_k)[:, None] & (offs_d < n_d)[None, :]
    return tl.load(x_row + offsets, mask=mask, other=0.0, eviction_policy=EVICT).to(tl.float32)


@triton.jit
def store_block(x_row, offs_k, offs_d, stride_k, n_k, n_d, x):
    """Write a block of vectors; nothing reads it again soon."""
    offsets = offs_k.to(tl.int64)[:, None] * stride_k + offs_d[None, :]
    mask = (offs_k < n_k)[:, None] & (offs_d < n_d)[None, :]
    tl.store(x_row + offsets, x.to(x_row.dtype.element_ty), mask=mask, eviction_policy="evict_first")


@triton.jit
def load_vector(vector_row, offs_d, n_d):
    """A chunk of a vector ``[d]`` in float32, zero outside."""
    return tl.load(vector_row + offs_d, mask=offs_d < n_d, other=0.0).to(tl.float32)


@triton.jit
def row_of(n_i):
    """The position ``(b, i)`` of this program, in int64."""
    row = tl.program_id(0).to(tl.int64)
    return row, row // n_i, row % n_i


@triton.jit
def at_row(ptr, strides, i_b, i_i, absent_ptr):
    """Where what ``ptr`` points to begins for a position; ``absent_ptr``, not to be read, where there is nothing."""
    if ptr is None:
        return absent_ptr
    else:
        return ptr + i_b * strides[0] + i_i * strides[1]


@triton.jit
def work_rows(work_ptr, pair: tl.constexpr, row, n_k):
    """Where a row's dots and its flags are in the workspace ``[2 pairs, rows, k]``."""
    n_rows = tl.num_programs(0).to(tl.int64)
    return work_ptr + (2 * pair * n_rows + row) * n_k, work_ptr + ((2 * pair + 1) * n_rows + row) * n_k


@triton.jit
def row_part(n_k, k_per_program, BLOCK_K: tl.constexpr):
    """The first source of this program, and its number of blocks."""
    k_first = (tl.program_id(1).to(tl.int64) * k_per_program).to(tl.int32)
    return k_first, tl.cdiv(tl.minimum(k_per_program, n_k - k_first), BLOCK_K)


@triton.jit
def nonzero_of(u):
    """1.0 for each vector of a block that is not all zero, else 0.0."""
    return tl.max(tl.where(u != 0, 1.0, 0.0), axis=1)


@triton.jit
def weight_of(dots, RULE: tl.constexpr):
    """What a source weighs: its dot, without the sign unless the rule keeps it."""
    return dots if RULE == "dot" else tl.abs(dots)


@triton.jit
def sum_weights(weights_row, n_k, RULE: tl.constexpr):
    """The sum of the weights of a row."""
    sums = tl.zeros([TOTAL_BLOCK], tl.float32)
    for start in range(0, n_k, TOTAL_BLOCK):
        offs_k = start + tl.arange(0, TOTAL_BLOCK)
        sums += weight_of(tl.load(weights_row + offs_k, mask=offs_k < n_k, other=0.0), RULE)
    return tl.sum(sums, axis=0)


@triton.jit
def dots_total(dots_row, n_k, RULE: tl.constexpr):
    """The sum that the dots are divided by; 0 says that the flags decide, as they always do for ``equal``."""
    if RULE == "absdot" or RULE == "dot":
        return sum_weights(dots_row, n_k, RULE)
    else:
        return tl.zeros([], tl.float32)


@triton.jit
def no_shares(dots_row):
    """What :func:`share_of` takes, where no share is asked for."""
    return dots_row, tl.full([], 1.0, tl.float32), tl.zeros([], tl.float32)


@triton.jit
def row_shares(dots_row, flags_row, n_k, RULE: tl.constexpr):
    """What :func:`share_of` needs to know of the whole row: where its weights are, their divisor, an addend.

    The weights are the dots; if their sum is zero, the flags; if none is set, every source gets the same.
    """
    weights_row, divisor, addend = no_shares(dots_row)
    if RULE == "absdot" or RULE == "dot" or RULE == "equal":
        divisor = dots_total(dots_row, n_k, RULE)
        if divisor == 0:
            weights_row = flags_row
            divisor = sum_weights(flags_row, n_k, RULE)
            if divisor == 0:
                divisor += 1.0
                addend += 1.0 / n_k
    return weights_row, divisor, addend


@triton.jit
def share_of(shares, offs_k, n_k, RULE: tl.constexpr):
    """The share of each source of a block."""
    if RULE == "cls":
        return tl.where(offs_k == 0, 1.0, 0.0)
    else:
        weights_row, divisor, addend = shares
        weights = tl.load(weights_row + offs_k, mask=offs_k < n_k, other=0.0)
        return weight_of(weights, RULE) / divisor + addend
