"""The CUDA kernels beside the Triton kernels: the same work, in the same run, on the same state.

    pytest bench/bench_cuda.py --benchmark-only --device cuda

Which is faster decides what ``backend="auto"`` takes (``AUTO_ON`` in ``decompx_fast/ops/backends/cuda.py``).
"""

from __future__ import annotations

import pytest
import torch
from bench_kernels import HEADS, D, F, State, randn
from conftest import DTYPES

from decompx_fast import ops

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none")

BACKENDS = ("triton", "cuda")
CASES = pytest.mark.parametrize(
    ("dtype", "backend"), [(dtype, backend) for dtype in ("float32", "bfloat16") for backend in BACKENDS]
)


@CASES
def test_layernorm(record, device, dtype, backend):
    dtype = DTYPES[dtype]
    state = State(device, dtype)
    scale = torch.rand(1, state.n, device=device) + 0.5
    weight, bias = (randn(D, device=device, dtype=dtype) for _ in range(2))
    record(
        lambda: ops.layernorm_(state.next(), scale, weight, bias, backend=backend),
        flops=8 * state.n * state.k * D,
        bytes_=2 * state.nbytes,
        dtype=dtype,
        op=f"layernorm_ ({backend})",
        **state.about,
    )


@CASES
def test_bias_split(record, device, dtype, backend):
    dtype = DTYPES[dtype]
    state = State(device, dtype)
    bias = 1e-3 * randn(D, device=device, dtype=dtype)
    record(
        lambda: ops.bias_split_(state.next(), bias, backend=backend),
        flops=4 * state.n * state.k * D,
        bytes_=2 * state.nbytes,
        dtype=dtype,
        op=f"bias_split_ ({backend})",
        **state.about,
    )


@CASES
def test_activation(record, device, dtype, backend):
    dtype = DTYPES[dtype]
    state = State(device, dtype, width=F)
    slope = torch.rand(1, state.n, F, device=device).to(dtype)
    bias = 1e-3 * randn(F, device=device, dtype=dtype)
    record(
        lambda: ops.activation_(state.next(), slope, bias, backend=backend),
        flops=5 * state.n * state.k * F,
        bytes_=2 * state.nbytes,
        dtype=dtype,
        op=f"activation_ ({backend})",
        **state.about,
    )


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
@CASES
def test_mixing(record, device, dtype, backend, precision):
    if dtype != "float32" and precision != "ieee":
        pytest.skip("a precision is one of float32")
    dtype = DTYPES[dtype]
    state = State(device, dtype)
    alpha = torch.rand(1, HEADS, state.n, state.n, device=device).softmax(-1).to(dtype)
    out = torch.empty(1, state.n, state.k, HEADS, D // HEADS, device=device, dtype=dtype)
    how = f", {precision}" if dtype is torch.float32 else ""
    record(
        lambda: ops.mixing(
            alpha, state.next().unflatten(-1, (HEADS, -1)), out=out, precision=precision, backend=backend
        ),
        flops=2 * state.n**2 * state.k * D,
        bytes_=2 * state.nbytes + alpha.nbytes,
        dtype=dtype,
        op=f"mixing ({backend}{how})",
        **state.about,
    )
