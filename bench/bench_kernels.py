"""Each op on the decomposed state, beside its floor and beside what the vendor's library does for the same work.

    pytest bench/bench_kernels.py --benchmark-only [--device cuda]

The bandwidth ops are compared with a copy of the same state, the matrix ops with one batched product of the same sizes
on contiguous inputs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import DTYPES, rotating

from decompx_fast import ops
from decompx_fast.ops import FrozenNorm
from decompx_fast.ops.backends import products

D, F, HEADS = 768, 3072, 12
#: Positions, sources: a state of 48 MiB on a CPU, of 384 MiB in bfloat16 on a GPU.
SIZES = {"cpu": (128, 128), "cuda": (512, 512)}
#: Rows whose operators are built together.
OPERATOR_ROWS = {"cpu": 8, "cuda": 64}


def dtypes(device: str) -> list[str]:
    return ["float32", "bfloat16"] if device == "cuda" else ["float32"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "dtype" in metafunc.fixturenames:
        metafunc.parametrize("dtype", dtypes(metafunc.config.getoption("--device")))


def randn(*shape: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device=device).to(dtype)


class State:
    """Endless states ``[1, i, k, width]``, which no cache holds."""

    def __init__(self, device: str, dtype: torch.dtype, width: int = D) -> None:
        self.n, self.k = SIZES[device]
        self.shape = (1, self.n, self.k, width)
        self.inputs = rotating(lambda: (randn(*self.shape, device=device, dtype=dtype),), device)
        self.nbytes = self.n * self.k * width * dtype.itemsize
        self.about = {"shape": f"N={self.n} K={self.k} width={width}"}

    def next(self) -> torch.Tensor:
        return next(self.inputs)[0]


def test_copy(record, device, dtype):
    dtype = DTYPES[dtype]
    state = State(device, dtype)
    target = torch.empty_like(state.next())
    record(lambda: target.copy_(state.next()), flops=0, bytes_=2 * state.nbytes, dtype=dtype, op="copy", **state.about)


def test_layernorm(record, device, dtype):
    dtype = DTYPES[dtype]
    state = State(device, dtype)
    scale = torch.rand(1, state.n, device=device) + 0.5
    weight, bias = (randn(D, device=device, dtype=dtype) for _ in range(2))
    record(
        lambda: ops.layernorm_(state.next(), scale, weight, bias),
        flops=8 * state.n * state.k * D,
        bytes_=2 * state.nbytes,
        dtype=dtype,
        op="layernorm_",
        **state.about,
    )


def test_bias_split(record, device, dtype):
    dtype = DTYPES[dtype]
    state = State(device, dtype)
    bias = 1e-3 * randn(D, device=device, dtype=dtype)
    record(
        lambda: ops.bias_split_(state.next(), bias),
        flops=4 * state.n * state.k * D,
        bytes_=2 * state.nbytes,
        dtype=dtype,
        op="bias_split_",
        **state.about,
    )


def test_activation(record, device, dtype):
    dtype = DTYPES[dtype]
    state = State(device, dtype, width=F)
    slope = torch.rand(1, state.n, F, device=device).to(dtype)
    bias = 1e-3 * randn(F, device=device, dtype=dtype)
    record(
        lambda: ops.activation_(state.next(), slope, bias),
        flops=5 * state.n * state.k * F,
        bytes_=2 * state.nbytes,
        dtype=dtype,
        op="activation_",
        **state.about,
    )


def test_functional_dots(record, device, dtype):
    dtype = DTYPES[dtype]
    state = State(device, dtype)
    g = randn(1, state.n, 5, D, device=device, dtype=dtype)
    record(
        lambda: ops.functional_dots(state.next(), g),
        flops=10 * state.n * state.k * D,
        bytes_=state.nbytes,
        dtype=dtype,
        op="functional_dots",
        **state.about,
    )


def test_mixing(record, device, dtype):
    dtype = DTYPES[dtype]
    state = State(device, dtype)
    alpha = torch.rand(1, HEADS, state.n, state.n, device=device).softmax(-1).to(dtype)
    out = torch.empty(1, state.n, state.k, HEADS, D // HEADS, device=device, dtype=dtype)
    record(
        lambda: ops.mixing(alpha, state.next().unflatten(-1, (HEADS, -1)), out=out),
        flops=2 * state.n**2 * state.k * D,
        bytes_=2 * state.nbytes + alpha.nbytes,
        dtype=dtype,
        op="mixing",
        **state.about,
    )


def test_mixing_by_the_vendor(record, device, dtype):
    """The same sums as one batched product, from a layout that the vendor's library would like best."""
    dtype = DTYPES[dtype]
    n, k = SIZES[device]
    alpha = torch.rand(HEADS, n, n, device=device).softmax(-1).to(dtype)
    values = rotating(lambda: (randn(HEADS, n, k * D // HEADS, device=device, dtype=dtype),), device)
    record(
        lambda: torch.bmm(alpha, next(values)[0]),
        flops=2 * n**2 * k * D,
        bytes_=2 * n * k * D * dtype.itemsize + alpha.nbytes,
        dtype=dtype,
        op="mixing (vendor bmm)",
        shape=f"N={n} K={k} width={D}",
    )


def test_network(record, device, dtype):
    """A feed-forward network on every source, its hidden layer linearised; as one op where that is faster."""
    dtype = DTYPES[dtype]
    state, constants = State(device, dtype), network_constants(device, dtype)
    out = torch.empty(state.shape, device=device, dtype=dtype)
    if not ops.network_is_fused(device, dtype):
        pytest.skip("three ops are taken here")
    record(lambda: ops.network(state.next(), *constants, out=out), op="network", **network_costs(state, dtype))


def test_network_by_three_ops(record, device, dtype):
    """The same as a product, the activation, and another product."""
    dtype = DTYPES[dtype]
    state, (w_in, w_out, slope, bias, _) = State(device, dtype), network_constants(device, dtype)
    out = torch.empty(state.shape, device=device, dtype=dtype)
    hidden = torch.empty(*state.shape[:3], F, device=device, dtype=dtype)

    def run() -> None:
        products.multiply(state.next().flatten(0, 2), w_in, out=hidden.flatten(0, 2))
        ops.activation_(hidden, slope, bias)
        products.multiply(hidden.flatten(0, 2), w_out, out=out.flatten(0, 2))

    record(run, op="network (three ops)", **network_costs(state, dtype))


def network_constants(device: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    n, k = SIZES[device]
    # As linear layers store them.
    w_in = (randn(F, D, device=device, dtype=dtype) / D**0.5).T
    w_out = (randn(D, F, device=device, dtype=dtype) / F**0.5).T
    slope, shares = torch.rand(1, n, F, device=device), torch.rand(1, n, k, device=device)
    return w_in, w_out, slope.to(dtype), 1e-3 * randn(F, device=device, dtype=dtype), shares


def network_costs(state: State, dtype: torch.dtype) -> dict[str, Any]:
    rows = state.n * state.k
    nbytes = 2 * state.nbytes + 2 * D * F * dtype.itemsize
    # Seconds, and less to be moved than a cache loses, so few rounds do.
    return {
        "flops": 4 * rows * D * F,
        "bytes_": nbytes,
        "dtype": dtype,
        "rounds": 3,
        "shape": f"{state.about['shape']} f={F}",
    }


def test_position_operator(record, device, dtype):
    dtype = DTYPES[dtype]
    rows = OPERATOR_ROWS[device]
    theta = torch.rand(1, rows, F, device=device)
    w_in, w_out = randn(D, F, device=device, dtype=dtype) / D**0.5, randn(F, D, device=device, dtype=dtype) / F**0.5
    norm = FrozenNorm(torch.rand(1, rows, device=device) + 0.5, torch.ones(D, device=device))
    record(
        lambda: ops.position_operator(theta, w_in, w_out, norm_in=norm, norm_out=norm),
        flops=2 * rows * D * D * F,
        bytes_=rows * D * D * dtype.itemsize + w_in.nbytes + w_out.nbytes + theta.nbytes,
        dtype=dtype,
        op="position_operator",
        shape=f"rows={rows} d={D} f={F}",
    )


def test_position_operator_by_the_vendor(record, device, dtype):
    """One product of the same size; what scales the weights for each position is left out."""
    dtype = DTYPES[dtype]
    rows = OPERATOR_ROWS[device]
    a = randn(rows * D, F, device=device, dtype=dtype)
    b = randn(F, D, device=device, dtype=dtype)
    record(
        lambda: a @ b,
        flops=2 * rows * D * D * F,
        bytes_=a.nbytes + b.nbytes + rows * D * D * dtype.itemsize,
        dtype=dtype,
        op="position_operator (vendor matmul)",
        shape=f"rows={rows} d={D} f={F}",
    )


@pytest.mark.parametrize("by", ["op", "vendor"])
def test_position_apply(record, device, dtype, by):
    dtype = DTYPES[dtype]
    rows, k = OPERATOR_ROWS[device], SIZES[device][1]
    make = lambda: (  # noqa: E731
        randn(1, rows, k, D, device=device, dtype=dtype),
        randn(1, rows, D, D, device=device, dtype=dtype) / D**0.5,
    )
    inputs = rotating(make, device)
    shares = torch.rand(1, rows, k, 5, device=device)
    u = randn(1, rows, 5, D, device=device, dtype=torch.float32)
    out = torch.empty(1, rows, k, D, device=device, dtype=dtype)

    def run() -> torch.Tensor:
        r, t = next(inputs)
        return ops.position_apply(r, t, shares, u, out=out) if by == "op" else torch.bmm(r[0], t[0])

    record(
        run,
        flops=2 * rows * k * D * D,
        bytes_=(2 * rows * k * D + rows * D * D) * dtype.itemsize,
        dtype=dtype,
        op="position_apply" if by == "op" else "position_apply (vendor bmm)",
        shape=f"rows={rows} K={k} d={D}",
    )
