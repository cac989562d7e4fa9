"""What the ops refuse, with messages that say which argument, what it got and what is allowed; and empty tensors."""

from __future__ import annotations

import pytest
import torch

from decompx_fast import ops
from decompx_fast.errors import BackendError, InputError
from decompx_fast.ops import checks


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(*shape, dtype=dtype)


X = zeros(2, 3, 5, 8)
SCALE = zeros(2, 3) + 1
ALPHA, P = zeros(2, 4, 3, 6), zeros(2, 6, 5, 2, 8)
THETA, W_IN, W_OUT = zeros(2, 3, 7), zeros(8, 7), zeros(7, 8)
T = zeros(2, 3, 8, 6)
SHARED = zeros(240)
BACKWARDS = zeros(2, 3, 8, 5).transpose(2, 3)

CASES = [
    (lambda: ops.bias_split_(zeros(3, 5, 8), None), "bias_split_: `x` has shape [3, 5, 8]; it must be [b, i, k, d]"),
    (lambda: ops.bias_split_([1.0], None), "bias_split_: `x` is list; it must be a tensor [b, i, k, d]"),
    (
        lambda: ops.bias_split_(X.int(), None),
        "`x` has dtype torch.int32; allowed are float32, float64, bfloat16, float16",
    ),
    (lambda: ops.bias_split_(BACKWARDS, None), "`x` has strides [120, 40, 1, 5]; its last axis must have stride 1"),
    (lambda: ops.bias_split_(X[:, :1].expand(2, 3, 5, 8), None), "`x` is written to, but is an expanded view"),
    (lambda: ops.bias_split_(X, zeros(7)), "`bias` has shape [7]; allowed: [8] or [2, 3, 8]"),
    (lambda: ops.bias_split_(X, zeros(8).double()), "`bias` is torch.float64; allowed: torch.float32"),
    (lambda: ops.bias_split_(X, zeros(8), rule="cosine"), "`rule` is 'cosine'; allowed: 'absdot', 'dot', 'equal'"),
    (lambda: ops.bias_split_(X, None, residual=X[:, :2]), "`residual` has shape [2, 2, 5, 8]; allowed: [2, 3, 5, 8]"),
    (lambda: ops.bias_split_(X, None, residual=X.half()), "`residual` is torch.float16; allowed: torch.float32"),
    (lambda: ops.bias_split_(X, None, residual=X), "`x` overlaps `residual` in memory"),
    (lambda: ops.bias_split_(X, None, share_after_residual=True), "share_after_residual=True needs a `residual`"),
    (
        lambda: ops.bias_split_(X, zeros(8).to("meta")),
        "all tensors must be on one device, but `x` on cpu, `bias` on meta",
    ),
    (lambda: ops.layernorm_(X, zeros(2)), "layernorm_: `scale` has shape [2]; allowed: [2, 3]"),
    (lambda: ops.layernorm_(X, SCALE.half()), "`scale` is torch.float16; allowed: torch.float32 or torch.float64"),
    (lambda: ops.layernorm_(X, SCALE, zeros(2, 3, 8)), "`weight` has shape [2, 3, 8]; allowed: [8]"),
    (lambda: ops.add_norm_(X, X, None, SCALE), "add_norm_: `x` overlaps `branch` in memory"),
    (lambda: ops.add_norm_(X, X[:, :2], None, SCALE), "add_norm_: `branch` has shape [2, 2, 5, 8]"),
    (lambda: ops.add_norm_(X, X.clone(), zeros(2, 3, 8), SCALE), "`branch_bias` has shape [2, 3, 8]; allowed: [8]"),
    (
        lambda: ops.activation_(X, zeros(8)),
        "activation_: `slope` has shape [8]; allowed: [2, 3, 8] (b, i and f of `a`)",
    ),
    (lambda: ops.activation_(X, X[:, :, 0], intercept=zeros(8)), "`intercept` has shape [8]; allowed: [2, 3, 8]"),
    (lambda: ops.activation_(zeros(2, 3), zeros(2, 3)), "`a` has shape [2, 3]; it must be [b, i, k, f]"),
    (lambda: ops.network(X, W_IN[:7], W_OUT, THETA), "network: `w_in` has shape [7, 7]; allowed: [8, 7]"),
    (lambda: ops.network(X, W_IN, W_OUT.T, THETA), "network: `w_out` has shape [8, 7]; allowed: [7, 8]"),
    (lambda: ops.network(X, W_IN, W_OUT.half(), THETA), "`w_out` is torch.float16; allowed: torch.float32"),
    (lambda: ops.network(X, W_IN, W_OUT, THETA[:, :2]), "`slope` has shape [2, 2, 7]; allowed: [2, 3, 7]"),
    (lambda: ops.network(X, W_IN, W_OUT, THETA, zeros(7)), "`shares` is None; `bias` and `shares` are given together"),
    (
        lambda: ops.network(X, W_IN, W_OUT, THETA, zeros(7), zeros(2, 3)),
        "`shares` has shape [2, 3]; allowed: [2, 3, 5]",
    ),
    (
        lambda: ops.network(X, W_IN, W_OUT, THETA, zeros(7), zeros(2, 3, 5).half()),
        "`shares` is torch.float16; allowed: torch.float32 (float32, or float64 for a `u` of float64)",
    ),
    (lambda: ops.network(X, W_IN, W_OUT, THETA, out=X), "network: `out` overlaps `u` in memory"),
    (lambda: ops.network(X, W_IN, W_OUT, SHARED[:42].view(2, 3, 7), out=SHARED.view_as(X)), "`out` overlaps `slope`"),
    (
        lambda: ops.network(X, W_IN, W_OUT, THETA, out=X[:, :2]),
        "`out` has shape [2, 2, 5, 8]; allowed: [2, 3, 5, 8] (that of `u`)",
    ),
    (lambda: ops.network(X, W_IN, None, THETA), "network: `w_out` is NoneType; it must be a tensor [7, 8]"),
    (lambda: ops.network(X, W_IN, W_OUT, None), "network: `slope` is NoneType; it must be a tensor [2, 3, 7]"),
    (lambda: ops.add_norm_(X, X.clone(), None, 1.0), "add_norm_: `scale` is float; it must be a tensor [2, 3]"),
    (lambda: ops.activation_(X, None), "activation_: `slope` is NoneType; it must be a tensor [2, 3, 8]"),
    (lambda: ops.network(BACKWARDS, W_IN, W_OUT, THETA), "`u` has strides [120, 40, 1, 5]; its last axis must"),
    (lambda: ops.mixing(ALPHA, P[:, :5]), "mixing: `p` has shape [2, 5, 5, 2, 8]; allowed: [2, 6, 5, 2, 8]"),
    (lambda: ops.mixing(ALPHA, P.half()), "`p` is torch.float16; allowed: torch.float32 (that of `alpha`)"),
    (lambda: ops.mixing(ALPHA[:, :3], P), "`alpha` has 3 heads and `p` has 2; 3 must be a multiple of 2"),
    (lambda: ops.mixing(ALPHA, P, precision="fast"), "`precision` is 'fast'; allowed: 'ieee', 'tf32', 'tf32x3'"),
    (
        lambda: ops.mixing(ALPHA, P, window=0),
        "`window` is 0; it must be a whole number from 1 to 9223372036854775807, or None",
    ),
    (
        lambda: ops.mixing(ALPHA, P, out=zeros(2, 3, 5, 2, 8)),
        "`out` has shape [2, 3, 5, 2, 8]; allowed: [2, 3, 5, 4, 8]",
    ),
    (lambda: ops.mixing(ALPHA[:, :2], P, out=P[:, :3]), "`out` overlaps `p` in memory: it must be a buffer of its own"),
    (
        lambda: ops.functional_dots(X, zeros(2, 3, 9, 8)),
        "functional_dots: `g` holds 9 functionals; at most 8 are allowed",
    ),
    (lambda: ops.functional_dots(X, zeros(2, 2, 4, 8)), "`g` has shape [2, 2, 4, 8]; allowed: [2, 3, 4, 8]"),
    (lambda: ops.position_operator(THETA, W_OUT, W_OUT), "position_operator: `w_in` has shape [7, 8]; allowed: [7, 7]"),
    (lambda: ops.position_operator(THETA, W_IN, W_IN), "`w_out` has shape [8, 7]; allowed: [7, 8]"),
    (lambda: ops.position_operator(THETA.half(), W_IN, W_OUT), "`theta` is torch.float16; allowed: torch.float32"),
    (
        lambda: ops.position_operator(THETA, W_IN, W_OUT, norm_in=ops.FrozenNorm(zeros(3))),
        "`norm_in.scale` has shape [3]; allowed: [2, 3] (b and i of `theta`)",
    ),
    (
        lambda: ops.position_operator(THETA, W_IN, W_OUT, norm_out=ops.FrozenNorm(SCALE, zeros(7))),
        "`norm_out.weight` has shape [7]; allowed: [8] (d of `w_in`)",
    ),
    (lambda: ops.position_apply(X, T[:, :, :7]), "position_apply: `t` has shape [2, 3, 7, 6]; allowed: [2, 3, 8, 6]"),
    (lambda: ops.position_apply(X, T, zeros(2, 3, 5, 2)), "`shares` is given and `u` is None: give both, or neither"),
    (lambda: ops.position_apply(X, T, u=zeros(2, 3, 2, 6)), "`u` is given and `shares` is None: give both, or neither"),
    (
        lambda: ops.position_apply(X, T, zeros(2, 3, 5, 9), zeros(2, 3, 9, 6)),
        "`shares` hold 9 updates; at most 8 are allowed",
    ),
    (
        lambda: ops.position_apply(X, T, zeros(2, 3, 5, 2), zeros(2, 3, 3, 6)),
        "`u` has shape [2, 3, 3, 6]; allowed: [2, 3, 2, 6]",
    ),
    (lambda: ops.position_apply(X, zeros(2, 3, 8, 8), out=X), "`out` overlaps `r` in memory"),
    (lambda: ops.bias_shares(zeros(3), rule="norm"), "bias_shares: `rule` is 'norm'; allowed: 'absdot', 'dot'"),
    (lambda: ops.vector_shares(X, None, rule="none"), "vector_shares: `rule` is 'none'"),
]


@pytest.mark.parametrize(("call", "message"), CASES, ids=[message for _, message in CASES])
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError) as raised:
        call()
    assert message in str(raised.value)


def test_nothing_is_written_when_an_input_is_refused():
    x = torch.ones(1, 1, 2, 3)
    for bad in ({"bias": torch.ones(4)}, {"bias": torch.ones(3), "residual": x}):
        with pytest.raises(InputError):
            ops.bias_split_(x, **bad)
    with pytest.raises(BackendError):
        ops.bias_split_(x, torch.ones(3), rule="norm", backend="triton")
    assert torch.equal(x, torch.ones(1, 1, 2, 3))


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_empty_tensors_give_empty_results(backend):
    for shape in [(0, 3, 5, 8), (2, 0, 5, 8), (2, 3, 0, 8), (2, 3, 5, 0)]:
        b, i, k, d = shape
        x, vectors = zeros(*shape), zeros(b, i, d)
        assert ops.bias_split_(x, zeros(d), backend=backend) is x
        assert ops.layernorm_(x, zeros(b, i), zeros(d), zeros(d), backend=backend) is x
        assert ops.activation_(x, vectors, zeros(d), intercept=vectors, backend=backend) is x
        assert ops.mixing(zeros(b, 2, 3, i), x[..., None, :], backend=backend).shape == (b, 3, k, 2, d)
        assert ops.position_apply(x, zeros(b, i, d, 6), backend=backend).shape == (b, i, k, 6)
        assert ops.functional_dots(x, zeros(b, i, 2, d), backend=backend).shape == (b, i, k, 2)
    assert ops.functional_dots(zeros(2, 3, 5, 8), zeros(2, 3, 0, 8), backend=backend).shape == (2, 3, 5, 0)
    assert ops.position_operator(zeros(0, 3, 7), W_IN, W_OUT, backend=backend).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_empty_sums_are_zero(backend):
    assert ops.mixing(zeros(1, 1, 3, 0), zeros(1, 0, 5, 1, 8), backend=backend).eq(0).all()
    assert ops.position_apply(zeros(1, 1, 5, 0), zeros(1, 1, 0, 6), backend=backend).eq(0).all()
    assert ops.functional_dots(zeros(1, 1, 5, 0), zeros(1, 1, 2, 0), backend=backend).eq(0).all()
    if backend == "torch":
        assert ops.network(zeros(1, 1, 5, 8) + 1, zeros(8, 0), zeros(0, 8), zeros(1, 1, 0), backend=backend).eq(0).all()
    no_hidden = ops.position_operator(zeros(1, 1, 0), zeros(8, 0), zeros(0, 8), backend=backend)
    assert torch.equal(no_hidden[0, 0], torch.eye(8))


def test_network_of_doubles_takes_constants_in_float32():
    generator = torch.Generator().manual_seed(0)
    u, w = (torch.randn(*shape, generator=generator).double() for shape in ((2, 3, 5, 8), (8, 8)))
    slope, bias = torch.randn(2, 3, 8, generator=generator), torch.randn(8, generator=generator)
    shares = torch.randn(2, 3, 5, generator=generator).double()
    expected = ((u @ w + shares[..., None] * bias.double()) * slope.double()[:, :, None]) @ w
    torch.testing.assert_close(ops.network(u, w, w, slope, bias, shares), expected)


BUFFER = torch.zeros(4, 6, 10)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (BUFFER[0], BUFFER[1], False),
        (BUFFER[0], BUFFER[0], True),
        (BUFFER[..., :4], BUFFER[..., 4:], False),
        (BUFFER[..., :5], BUFFER[..., 4:], True),
        (BUFFER[:, :3], BUFFER[:, 3:], False),
        (BUFFER[:, :3].transpose(0, 1), BUFFER[:, 3:, 2:7], False),
        (BUFFER[:, :4], BUFFER[:, 3:], True),
        (BUFFER[::2], BUFFER[1::2], False),
        (BUFFER[..., ::2], BUFFER[..., 1::2], False),
        (BUFFER[:2], BUFFER[1:], True),
        (BUFFER[:0], BUFFER, False),
        (BUFFER, torch.zeros(3), False),
        (BUFFER.view(torch.int32)[0], BUFFER[0], True),
    ],
)
def test_overlap_is_told_from_interleaving(left, right, expected):
    assert checks.overlaps(left, right) is expected
    assert checks.overlaps(right, left) is expected
