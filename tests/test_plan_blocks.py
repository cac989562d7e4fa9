"""Blocks are large enough to be fast, whatever the shape, and no larger than the memory that they were made for."""

from __future__ import annotations

import math

import pytest
import torch

from decompx_fast.engines.forward.fitting import floor_bytes
from decompx_fast.engines.forward.plan import Blocks, ModelShape, plan
from decompx_fast.engines.shape import Mask

MIB = 1 << 20
TINY = ModelShape(layers=4, d=128, f=512, heads=2, kv_heads=2, head_size=64)
MINI_LM = ModelShape(layers=6, d=384, f=1536, heads=12, kv_heads=12, head_size=32)
BASE = ModelShape(layers=12, d=768, f=3072, heads=12, kv_heads=12, head_size=64)
LARGE = ModelShape(layers=24, d=1024, f=4096, heads=16, kv_heads=16, head_size=64)
HUGE = ModelShape(layers=36, d=2560, f=10240, heads=32, kv_heads=32, head_size=80)
GATED = ModelShape(
    layers=12,
    d=768,
    f=2048,
    heads=12,
    kv_heads=4,
    head_size=64,
    gated=True,
    pre_norm=True,
    masks=(Mask(causal=True),),
    foldable=False,
)

#: Positions, sources (None: each is one) and inputs at once, from one word to a book; the first are those where all
#: blocks were of one row and one source once.
REQUESTS = [
    (3000, 30, 1),
    (32, None, 64),
    (16, None, 96),
    (8, None, 256),
    (128, None, 10),
    (2996, 142, 1),
    (2939, 8, 1),
    (1, None, 1),
    (8, None, 1),
    (24, None, 1024),
    (128, None, 1),
    (128, 16, 64),
    (512, None, 1),
    (512, None, 4),
    (512, 4, 64),
    (2048, None, 1),
    (8192, 100, 1),
    (8192, 2, 2),
    (30000, 12, 1),
]

#: A product of so many rows takes as long as a product of twice as many would if rows were all that counted: the
#: weights are read and laid out for each block anew.
ROWS_OF_A_BLOCK = 32

#: What a softmax takes for each weight, in operations of a matrix product: it is bound by memory and exponentials.
SOFTMAX = 200


def seconds_like(shape, n, k, b, path, blocks):
    """The operations of an inner layer, with what smaller blocks add: weights read once more, attention once more."""
    d, f, rows = shape.d, shape.f, b * n * k
    mixings = math.ceil(k / blocks.sources)
    alpha = b * n * n * (2 * d + SOFTMAX * shape.heads) * (1 if blocks.alpha_rows >= n else mixings)
    whole_blocks = math.ceil(n / blocks.alpha_rows) * (1 if blocks.alpha_rows >= n else mixings)
    attention = 4 * d * d * (rows + ROWS_OF_A_BLOCK * mixings) + 2 * n * d * rows
    attention += alpha + whole_blocks * ROWS_OF_A_BLOCK * 2 * n * d
    if path == "direct":
        count = math.ceil(b * n / blocks.direct_rows)
        return attention + 4 * d * f * (rows + ROWS_OF_A_BLOCK * count)
    count = math.ceil(b * n / blocks.operator_rows)
    return attention + b * n * (2 * d * d * f + 2 * k * d * d) + count * 12 * ROWS_OF_A_BLOCK * 2 * d * f


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [TINY, MINI_LM, BASE, LARGE, HUGE, GATED], ids=lambda shape: f"d={shape.d}")
@pytest.mark.parametrize(("n", "n_sources", "batch"), REQUESTS)
def test_default_blocks_cost_little_more_than_the_largest(n, n_sources, batch, shape, dtype):
    this = plan(shape, n, n_sources, batch, dtype=dtype, available=1 << 50)
    k = n if n_sources is None else n_sources
    took = seconds_like(shape, n, k, batch, this.path, this.blocks)
    best = seconds_like(shape, n, k, batch, this.path, Blocks(k, n, batch * n, batch * n))
    assert took <= 1.2 * best, this.blocks


@pytest.mark.parametrize("shape", [TINY, BASE, HUGE, GATED], ids=lambda shape: f"d={shape.d}")
@pytest.mark.parametrize(("n", "n_sources", "batch"), REQUESTS)
def test_blocks_fit_in_their_workspace(n, n_sources, batch, shape):
    for workspace in (None, 1, 64 * MIB, 1 << 30):
        this = plan(shape, n, n_sources, batch, workspace_bytes=workspace, available=1 << 50)
        assert this.costs.beside_bytes(this.blocks, this.path) <= this.workspace_bytes
        if workspace is not None:
            # What is held without any block is held anyway; beside it, a quarter is not worth a collapse.
            assert this.workspace_bytes <= max(workspace, 1.25 * floor_bytes(this.costs, this.path))


@pytest.mark.parametrize(("n", "n_sources", "batch"), REQUESTS)
def test_more_memory_is_never_slower(n, n_sources, batch):
    k, took = n if n_sources is None else n_sources, []
    for workspace in (1, 16 * MIB, 64 * MIB, 256 * MIB, 1 << 30, 1 << 34):
        this = plan(BASE, n, n_sources, batch, workspace_bytes=workspace, available=1 << 50)
        took.append(seconds_like(BASE, n, k, batch, this.path, this.blocks))
    assert all(after <= 1.02 * before for before, after in zip(took, took[1:], strict=False))
