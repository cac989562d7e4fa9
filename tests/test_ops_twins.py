"""The ops in plain PyTorch against float64 formulas, and what must hold for every input."""

from __future__ import annotations

import ops_formulas as formulas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops_cases import aligned_with, embedded, random, random_state

from decompx_fast import ops

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
DTYPES = (F64, F32, BF16, F16)
SHAPE = (2, 3, 7, 12)
# Rounding errors of sums of up to a few dozen numbers of order 1, in units in the last place of the largest result.
UNITS = 16


def assert_close(got, exact):
    assert formulas.error(got, exact) <= UNITS * formulas.rounding(exact, got.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", ops.RULES)
@pytest.mark.parametrize("residual", ["none", "before", "after"])
def test_bias_split_matches_formula(dtype, rule, residual):
    for bias in (random(12), random(2, 3, 12, dtype=dtype)):
        x = aligned_with(random_state(*SHAPE, dtype=dtype), bias)
        rest = None if residual == "none" else aligned_with(random_state(*SHAPE, dtype=dtype, seed=2), bias)
        options = {"rule": rule, "residual": rest, "share_after_residual": residual == "after"}
        got = ops.bias_split_(embedded(x)[0], bias.to(dtype), backend="torch", **options)
        assert_close(got, formulas.bias_split(x, bias.to(dtype), **options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", ops.RULES)
@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_layernorm_matches_formula(dtype, rule, centre, affine):
    weight = random(12, dtype=dtype, low=0.5) if affine else None
    bias, scale = random(12, dtype=dtype), random(2, 3, low=0.5).to(F64)
    gain = torch.ones(12) if weight is None else weight.float()
    direction = bias.float() * gain
    x = aligned_with(random_state(*SHAPE, dtype=dtype), direction - direction.mean() if centre else direction)
    got = ops.layernorm_(embedded(x)[0], scale, weight, bias, centre=centre, rule=rule, backend="torch")
    assert_close(got, formulas.layernorm(x, scale, weight, bias, centre, rule))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", [rule for rule in ops.RULES if rule != "dot"])
@pytest.mark.parametrize("after", [False, True])
def test_add_norm_matches_formula(dtype, rule, after):
    weight, branch_bias, bias = (random(12, dtype=dtype, low=0.5, seed=seed) for seed in range(3))
    x, branch = (random_state(*SHAPE, dtype=dtype, seed=seed) for seed in (3, 4))
    scale, options = random(2, 3, low=0.5), {"share_after_residual": after, "rule": rule}
    exact = formulas.add_norm(x, branch, branch_bias, scale, weight, bias, **options)
    view = embedded(x)[0]
    got = ops.add_norm_(view, branch, branch_bias, scale, weight, bias, backend="torch", **options)
    assert got is view
    # The state between the two is stored, and its rounding is magnified by the norm's weight and by 1 / scale.
    assert formulas.error(got, exact) <= 4 * UNITS * formulas.rounding(exact, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", ops.RULES)
@pytest.mark.parametrize("parts", ["bias", "intercept", "both"])
def test_activation_matches_formula(dtype, rule, parts):
    bias = None if parts == "intercept" else random(12, dtype=dtype)
    intercept = None if parts == "bias" else random(2, 3, 12, dtype=dtype, seed=2)
    # Slopes that turn neither the bias nor the intercept round keep signed dots of one sign.
    slope = random(2, 3, 12, dtype=dtype, low=0.5)
    a = random_state(*SHAPE, dtype=dtype)
    if rule == "dot":
        a = torch.ones_like(a) * random(2, 3, 7, 1, low=0.5).to(dtype)
        bias, intercept = (None if v is None else v.abs() for v in (bias, intercept))
    got = ops.activation_(embedded(a)[0], slope, bias, intercept=intercept, rule=rule, backend="torch")
    assert_close(got, formulas.activation(a, slope, bias, intercept, rule))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("causal", "window", "offset"), [(False, None, None), (True, None, None), (True, 3, 1), (False, 2, None)]
)
def test_mixing_matches_formula(dtype, causal, window, offset):
    for i in (4, 150):  # fewer and more rows than the twin does at once
        alpha, p = random(2, 4, i, 9, dtype=dtype, low=0), random(2, 9, 3, 2, 5, dtype=dtype)
        options = {"causal": causal, "window": window, "offset": offset}
        out = embedded(torch.full((2, i, 3, 4, 5), float("nan"), dtype=dtype))[0]
        assert_close(ops.mixing(alpha, p, out=out, backend="torch", **options), formulas.mixing(alpha, p, **options))


NORMS = [None, (True, True), (False, True), (True, False)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm_in", NORMS, ids=str)
@pytest.mark.parametrize("norm_out", NORMS, ids=str)
def test_position_operator_matches_full_matrices(dtype, norm_in, norm_out):
    theta, w_in, w_out = random(2, 3, 9, low=0), random(6, 9, dtype=dtype) / 3, random(9, 6, dtype=dtype) / 3
    norms = {}
    for seed, (name, kind) in enumerate({"norm_in": norm_in, "norm_out": norm_out}.items()):
        weight = random(6, low=0.5, seed=seed) if kind and kind[1] else None
        norms[name] = kind and ops.FrozenNorm(random(2, 3, low=0.5, seed=seed), weight, kind[0])
    got = ops.position_operator(theta, w_in, w_out, backend="torch", **norms)
    # Folding a norm into half-precision weights rounds each of them once more.
    exact = formulas.position_operator(theta, w_in, w_out, **norms)
    assert formulas.error(got, exact) <= 2 * UNITS * formulas.rounding(exact, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_position_apply_and_functional_dots_match_formulas(dtype):
    r, t = random_state(*SHAPE, dtype=dtype), random(2, 3, 12, 10, dtype=dtype)
    shares, u = random(2, 3, 7, 4, dtype=dtype, low=0), random(2, 3, 4, 10, dtype=dtype)
    assert_close(ops.position_apply(r, t, shares, u, backend="torch"), formulas.position_apply(r, t, shares, u))
    assert_close(ops.position_apply(r, t, backend="torch"), formulas.position_apply(r, t))
    assert_close(
        ops.functional_dots(r, u.new_ones(2, 3, 4, 12), backend="torch"),
        formulas.functional_dots(r, u.new_ones(2, 3, 4, 12)),
    )


def test_position_operator_is_the_sublayer_as_a_matrix():
    # DESIGN 2.3: R -> LN1 -> + FFN -> LN2 without biases, done stage by stage on the vectors.
    d, f = 12, 20
    r, theta = random(1, 3, 7, d, dtype=F64), random(1, 3, f, dtype=F64, low=0)
    w_in, w_out = random(d, f, dtype=F64), random(f, d, dtype=F64)
    norms = [ops.FrozenNorm(random(1, 3, low=0.5, seed=s), random(d, low=0.5, seed=s)) for s in (1, 2)]
    y = ops.layernorm_(r.clone(), norms[0].scale, norms[0].weight)
    stages = y + (y @ w_in * theta[:, :, None]) @ w_out
    ops.layernorm_(stages, norms[1].scale, norms[1].weight)
    t = ops.position_operator(theta, w_in, w_out, norm_in=norms[0], norm_out=norms[1])
    torch.testing.assert_close(ops.position_apply(r, t), stages)


def test_large_numbers_do_not_overflow_float16():
    x = random(1, 2, 7, 64, dtype=F16).clamp(-2, 2) * 3e4
    scale, bias = torch.full((1, 2), 3e4), random(64, dtype=F16)
    assert_close(ops.layernorm_(x.clone(), scale, None, bias), formulas.layernorm(x, scale, None, bias))
    p, alpha = x.abs()[..., None, :].expand(1, 2, 7, 1, 64), torch.full((1, 1, 2, 2), 0.5, dtype=F16)
    assert_close(ops.mixing(alpha, p), formulas.mixing(alpha, p))
    t = torch.eye(64, dtype=F16).mul(0.5).expand(1, 2, 64, 64)
    assert_close(ops.position_apply(x, t), formulas.position_apply(x, t))


# Numbers that are awkward on purpose: zeros are frequent, so whole vectors and all dots often vanish.
numbers = st.sampled_from([0.0, 0.0, 0.0, 1.0, -1.0, 0.5, -2.0, 1e-30, 1e15])


@st.composite
def states(draw):
    b, i, k, d = (draw(st.integers(1, n)) for n in (2, 2, 4, 3))
    values = draw(st.lists(numbers, min_size=b * i * k * d, max_size=b * i * k * d))
    bias = draw(st.lists(numbers, min_size=d, max_size=d))
    return torch.tensor(values, dtype=F64).view(b, i, k, d), torch.tensor(bias, dtype=F64)


@given(states(), st.sampled_from([rule for rule in ops.RULES if rule != "none"]))
def test_shares_sum_to_one(state, rule):
    x, bias = state
    shares = ops.vector_shares(x, bias, rule=rule)
    total = shares.sum(-1)
    # Signed shares can be large and of both signs: their sum is as exact as its largest term allows.
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-12 * max(1, float(shares.abs().max())))
    if rule != "dot":
        assert (shares >= 0).all()


@given(states(), st.sampled_from(["absdot", "equal", "cls", "norm", "abssim"]))
def test_sources_add_up_to_the_true_state(state, rule):
    x, bias = state
    scale = torch.full(x.shape[:2], 2.0, dtype=F64)
    true = x.sum(2)
    tolerance = {"rtol": 1e-9, "atol": 1e-12 * float(x.abs().sum() + bias.abs().sum() + 1)}
    split = ops.bias_split_(x.clone(), bias, rule=rule, residual=x / 2)
    torch.testing.assert_close(split.sum(2), true + true / 2 + bias, **tolerance)
    normed = ops.layernorm_(x.clone(), scale, None, bias, rule=rule)
    torch.testing.assert_close(normed.sum(2), (true - true.mean(-1, keepdim=True)) / 2 + bias, **tolerance)
    slope = torch.full((*x.shape[:2], x.shape[3]), 0.25, dtype=F64)
    active = ops.activation_(x.clone(), slope, bias, intercept=slope, rule=rule)
    torch.testing.assert_close(active.sum(2), (true + bias) / 4 + 0.25, **tolerance)


@given(states(), st.sampled_from(["absdot", "dot"]))
def test_shares_from_dots_are_the_shares_from_vectors(state, rule):
    x, bias = state
    nonzero = (x != 0).any(-1)
    shares = ops.bias_shares(x @ bias, rule=rule, nonzero=nonzero)
    torch.testing.assert_close(shares, formulas.shares(x, bias, rule), rtol=1e-6, atol=1e-9 * float(shares.abs().max()))
