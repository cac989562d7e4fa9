"""The C++ kernels of the CPU against twins and formulas, with every instruction set that this processor has."""

from __future__ import annotations

import kernel_cases
import ops_formulas as formulas
import pytest
import torch
from ops_cases import NAN, assert_accurate, embedded, in_place, into_views, random, random_state, surroundings

from decompx_fast import ops
from decompx_fast.ops.backends import native, product_choices, products
from decompx_fast.ops.backends.processor import Processor

F32, BF16 = torch.float32, torch.bfloat16
BUILT, REASON = ops.usable("native", "cpu")
needs_library = pytest.mark.skipif(not BUILT, reason=REASON)


@pytest.fixture(params=native.LEVELS)
def level(request):
    """Each instruction set; those that the processor has not are counted as skipped."""
    if not BUILT:
        pytest.skip(REASON)
    if not native.has_level(request.param):
        pytest.skip(f"this processor has no {request.param}")
    with native.forced_level(request.param):
        yield request.param


def on_cpu(given):
    """The same, with every tensor on the CPU, where these kernels run."""
    if isinstance(given, tuple):
        return tuple(map(on_cpu, given))
    if isinstance(given, dict):
        return {name: on_cpu(value) for name, value in given.items()}
    return given.cpu() if torch.is_tensor(given) else given


def partial_sums(level):
    """How much more a level rounds than a library that uses all of the processor: registers of 4 numbers have a quarter
    of the partial sums of those of AVX-512, each four times as long, whose roundings add up to twice as much."""
    return 2 if level == "portable" else 1


# Widths below, at and beyond whole registers of 4, 8 and 16 numbers and of four of them.
SHAPES = [(1, 1, 1, 1), (2, 3, 7, 100), (1, 4, 63, 48), (1, 2, 65, 384), (1, 3, 64, 15), (1, 5, 2, 64), (3, 1, 5, 67)]
CASES = [(shape, dtype, kernel_cases.RULES[n % 5]) for n, shape in enumerate(SHAPES) for dtype in (F32, BF16)]
CASES += [((2, 3, 7, 100), F32, rule) for rule in kernel_cases.RULES]


@pytest.mark.parametrize(("shape", "dtype", "rule"), CASES, ids=str)
@pytest.mark.parametrize("residual", ["none", "before", "after"])
def test_bias_split_is_accurate(level, shape, dtype, rule, residual):
    case = kernel_cases.bias_split(shape, dtype, rule, residual, bias_per_position=residual == "before")
    x, tensors, options, exact = on_cpu(case)
    if residual != "none":
        options["residual"] = embedded(options["residual"])[0]
    got, twin = in_place(ops.bias_split_, "native", x, *tensors, **options)
    assert_accurate(got, twin, exact)


@pytest.mark.parametrize(("shape", "dtype", "rule"), CASES, ids=str)
@pytest.mark.parametrize(("centre", "affine"), [(True, True), (False, True), (True, False), (False, False)])
def test_layernorm_is_accurate(level, shape, dtype, rule, centre, affine):
    x, tensors, options, exact = on_cpu(kernel_cases.layernorm(shape, dtype, rule, centre, affine))
    got, twin = in_place(ops.layernorm_, "native", x, *tensors, **options)
    assert_accurate(got, twin, exact)


@pytest.mark.parametrize(("shape", "dtype", "rule"), CASES, ids=str)
@pytest.mark.parametrize("parts", ["bias", "intercept", "both", "neither"])
def test_activation_is_accurate(level, shape, dtype, rule, parts):
    has_bias, has_intercept = parts in ("bias", "both"), parts in ("intercept", "both")
    a, (slope, bias), options, exact = on_cpu(kernel_cases.activation(shape, dtype, rule, has_bias, has_intercept))
    got, twin = in_place(ops.activation_, "native", a, embedded(slope)[0], bias, **options)
    assert_accurate(got, twin, exact)


@pytest.mark.parametrize(("shape", "dtype", "rule"), CASES, ids=str)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("centre", "affine"), [(True, True), (False, False)])
def test_add_norm_is_its_two_parts(level, shape, dtype, rule, after, centre, affine):
    """Bit for bit what two ops give that are tested by themselves; the twin is compared with the formula elsewhere."""
    b, i, _, d = shape
    weight = random(d, dtype=dtype, low=0.5).cpu() if affine else None
    branch_bias, bias, scale = on_cpu((random(d, seed=2), random(d, seed=3), random(b, i, low=0.5, seed=4)))
    x, branch = (random_state(*shape, dtype=dtype, seed=seed).cpu() for seed in (5, 6))
    options = {"rule": rule, "backend": "native"}
    expected = ops.bias_split_(branch.clone(), branch_bias, residual=x, share_after_residual=after, **options)
    ops.layernorm_(expected, scale, weight, bias, centre=centre, **options)
    (view, buffer), (other, other_buffer) = embedded(x), embedded(branch)
    options |= {"share_after_residual": after, "centre": centre}
    assert ops.add_norm_(view, other, branch_bias, scale, weight, bias, **options) is view
    torch.testing.assert_close(view, expected, rtol=0, atol=0, equal_nan=False)
    assert surroundings(buffer, view).isnan().all() and surroundings(other_buffer, other).isnan().all()


# Positions around one tile of 6 and one block of 96, sources around a block of 16, values around registers.
MIXINGS = [
    (2, 4, 7, 9, 3, 2, 5),
    (1, 2, 1, 1, 1, 1, 1),
    (1, 3, 6, 13, 17, 3, 32),
    (2, 2, 100, 98, 2, 1, 33),
    (1, 1, 5, 200, 18, 1, 64),
]


@pytest.mark.parametrize("shape", MIXINGS, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("causal", "window", "offset"), [(False, None, None), (True, None, None), (True, 3, 1), (False, 2, None)]
)
def test_mixing_is_accurate(level, shape, dtype, causal, window, offset):
    b, h, i, j, k, g, v = shape
    alpha = embedded(random(b, h, j, i, dtype=dtype, low=0).cpu().transpose(2, 3))[0]
    p = embedded(random(b, j, k, g, v, dtype=dtype).cpu())[0]
    options = {"causal": causal, "window": window, "offset": offset}
    got, twin = into_views(ops.mixing, "native", (b, i, k, h, v), dtype, alpha, p, **options)
    assert_accurate(got, twin, formulas.mixing(alpha, p, **options))


def test_mixing_reads_no_weight_that_a_mask_excludes(level):
    alpha, p = random(1, 2, 8, 8, low=0).cpu(), random(1, 8, 3, 2, 4).cpu()
    expected = ops.mixing(alpha, p, causal=True, window=3, backend="torch")
    distance = torch.arange(8)[:, None] - torch.arange(8)
    alpha[..., (distance < 0) | (distance >= 3)] = NAN
    torch.testing.assert_close(ops.mixing(alpha, p, causal=True, window=3, backend="native"), expected)


# Rows around tiles of 6 and blocks of some tens, widths around panels of 8, 16 and 64 and depths of 128, 384 and 768.
NETWORKS = [
    (1, 1, 2, 1, 3),
    (2, 3, 7, 15, 33),
    (1, 4, 13, 64, 48),
    (1, 2, 65, 100, 200),
    (1, 1, 6, 200, 400),
    (2, 1, 50, 400, 195),
    (1, 3, 5, 9, 800),
    (1, 1, 40, 800, 3),
]


@pytest.mark.parametrize("shape", NETWORKS, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_network_is_accurate(level, shape, dtype, biased, transposed):
    b, i, k, d, f = shape
    w_in, w_out = random(d, f, dtype=dtype).cpu(), random(f, d, dtype=dtype, seed=2).cpu()
    if transposed:  # as a linear layer stores them
        w_in, w_out = w_in.T.contiguous().T, w_out.T.contiguous().T
    else:
        w_in, w_out = embedded(w_in)[0], embedded(w_out)[0]
    slope = embedded(random(b, i, f, dtype=dtype, low=0.5, seed=5).cpu())[0]
    bias, shares = (random(f, seed=6).cpu(), random(b, i, k, low=0, seed=7).cpu()) if biased else (None, None)
    u = embedded(random_state(b, i, k, d, dtype=dtype).cpu())[0]
    before, given = u.clone(), (u, w_in, w_out, slope, bias, shares)
    results = into_views(ops.network, "native", u.shape, dtype, *given)
    assert torch.equal(u, before)
    # Two long sums one after the other.
    assert_accurate(*results, formulas.network(*given), times=4 * partial_sums(level))


def test_network_without_a_hidden_layer_gives_nothing(level):
    u, none = random(1, 3, 70, 8).cpu(), torch.zeros(8, 0)
    out = torch.full_like(u, NAN)
    assert ops.network(u, none, none.T, torch.zeros(1, 3, 0), out=out, backend="native").eq(0).all()
    assert ops.network(u[:, :0], none, none.T, torch.zeros(1, 0, 0), backend="native").shape == (1, 0, 70, 8)
    # The operator itself, which what is traced calls, takes what is empty too.
    for empty in (torch.zeros(1, 0, 5, 8), torch.zeros(1, 3, 0, 8), torch.zeros(1, 3, 5, 0)):
        w = torch.zeros(empty.shape[3], 7)
        torch.ops.decompx_fast.network(
            empty.clone(), empty, w, w.T.contiguous(), torch.zeros(1, empty.shape[1], 7), None, None, "native"
        )


def test_network_keeps_nan_to_its_row(level):
    u, w_in, w_out, slope = (t.cpu() for t in (random(1, 2, 9, 5), random(5, 7), random(7, 5), random(1, 2, 7)))
    expected = ops.network(u, w_in, w_out, slope, backend="native")
    u[0, 1, 3, 2] = NAN
    got = ops.network(u, w_in, w_out, slope, backend="native")
    assert got[0, 1, 3].isnan().all()
    got[0, 1, 3] = expected[0, 1, 3]
    assert torch.equal(got, expected)


@needs_library
@pytest.mark.parametrize("vendor", ["amd", "intel"])
def test_network_is_taken_where_it_is_measured_to_be_faster(monkeypatch, vendor):
    monkeypatch.setattr(product_choices, "processor", lambda: Processor(vendor, frozenset()))
    assert ops.network_is_fused("cpu", F32, "native") and not ops.network_is_fused("cpu", F32, "torch")
    assert not ops.network_is_fused("cpu", torch.float64, "native") and not ops.network_is_fused("meta", F32)
    for name in filter(native.has_level, native.LEVELS):
        with native.forced_level(name):
            assert ops.network_is_fused("cpu", F32) == (name != "portable")
            with products.forced_way("widened"):
                assert ops.network_is_fused("cpu", BF16) == (name != "portable")
            with products.forced_way("torch"):  # by the processor's units for bfloat16
                assert ops.network_is_fused("cpu", BF16) == ((name, vendor) == ("avx512_bf16", "amd"))


# Widths around panels of 8, 16 and 64, depths around blocks of 128, 384 and 768 words of one or two numbers, and as
# many rows as are divided by columns or by rows.
PRODUCTS = [(1, 1, 1), (5, 0, 3), (7, 65, 3), (47, 3, 65), (130, 260, 129), (64, 512, 700), (250, 1537, 200)]


@pytest.mark.parametrize("shape", PRODUCTS, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("transposed", [True, False])
def test_product_is_accurate(level, shape, dtype, transposed):
    m, k, n = shape
    a, b = embedded(random(m, k, dtype=dtype).cpu())[0], random(k, n, dtype=dtype, seed=2).cpu()
    b = b.T.contiguous().T if transposed else embedded(b)[0]
    out, buffer = embedded(torch.full((m, n), NAN, dtype=dtype))
    native.product(a, b, out)
    assert surroundings(buffer, out).isnan().all()
    wide = a.double() @ b.double()
    # As many sums in float32 as there are products, and one rounding.
    allowed = k * torch.finfo(F32).eps * (a.double().abs() @ b.double().abs()) + torch.finfo(dtype).eps * wide.abs()
    assert ((out - wide).abs() <= allowed).all()


@pytest.mark.parametrize("m", [1, 3, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_functional_dots_are_accurate(level, shape, dtype, m):
    b, i, _, d = shape
    x, g = embedded(random_state(*shape, dtype=dtype).cpu())[0], embedded(random(b, i, m, d).cpu())[0]
    out = torch.full((*shape[:3], m), NAN)
    torch.ops.decompx_fast.functional_dots(out, x, g, "native")
    exact = formulas.functional_dots(x, g)
    assert_accurate(out, ops.functional_dots(x, g, backend="torch"), exact, times=2 * partial_sums(level))


@pytest.mark.parametrize("rule", ["absdot", "dot", "equal"])
def test_where_all_dots_vanish_the_sources_that_are_not_zero_share_equally(level, rule):
    x, bias, expected = on_cpu(kernel_cases.without_dots(1, 4, 7, 48))
    for got in (
        ops.bias_split_(x.clone(), bias, rule=rule, backend="native"),
        ops.bias_split_(x / 2, bias, rule=rule, residual=x / 2, share_after_residual=True, backend="native"),
        ops.layernorm_(x.clone(), torch.ones(1, 4), None, bias, centre=False, rule=rule, backend="native"),
        ops.activation_(x.clone(), torch.ones(1, 4, 48), bias, rule=rule, backend="native"),
    ):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)  # one division and its rounding


def test_slopes_of_zero_leave_equal_shares_of_the_intercept(level):
    a, bias, intercept = random(1, 2, 5, 20).cpu(), random(20).cpu(), random(1, 2, 20).cpu()
    got = ops.activation_(a.clone(), torch.zeros(1, 2, 20), bias, intercept=intercept, backend="native")
    torch.testing.assert_close(got, (intercept / 5)[:, :, None].expand_as(a), rtol=1e-6, atol=0)


def test_a_bias_that_is_tiny_is_still_shared(level):
    # The sum of the dots is a denormal number, whose inverse float32 does not hold.
    x, bias = torch.ones(1, 1, 4, 8), torch.full((8,), 1e-43)
    split = ops.bias_split_(x.clone(), bias, backend="native")
    assert split.isfinite().all()
    torch.testing.assert_close(split, x)


def test_nan_stays_visible(level):
    for dtype in (F32, BF16):
        x = random(1, 1, 3, 9, dtype=dtype).cpu()
        x[0, 0, 1, 8] = NAN
        assert ops.bias_split_(x.clone(), random(9).cpu(), backend="native").isnan().all()
        assert ops.layernorm_(x.clone(), torch.ones(1, 1), backend="native")[0, 0, 1].isnan().all()


def test_bfloat16_rounds_to_nearest_even(level):
    # Every bfloat16 plus a quarter, a half and three quarters of a unit in its last place.
    bits = torch.arange(0x3F80, 0x3F80 + 64, dtype=torch.int32)
    for fraction in (0x4000, 0x8000, 0xC000):
        wide = ((bits << 16) + fraction).view(F32)
        x = torch.zeros(1, 1, 1, 64, dtype=BF16)
        got = ops.bias_split_(x, wide, rule="cls", backend="native")
        assert torch.equal(got[0, 0, 0], wide.to(BF16))


def native_product(a, b):
    out = a.new_empty(a.shape[0], b.shape[1])
    native.product(a, b, out)
    return out


@needs_library
def test_threads_change_nothing():
    # Large enough to be divided: every position is computed by one thread, in the same order.
    x, bias, slope, g = (random(*shape).cpu() for shape in ((2, 5, 33, 700), (700,), (2, 5, 700), (2, 5, 3, 700)))
    weights = random(700, 40).cpu()
    results, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(
                (
                    ops.bias_split_(x.clone(), bias, backend="native"),
                    ops.layernorm_(x.clone(), slope[..., 0].abs() + 1, None, bias, backend="native"),
                    ops.activation_(x.clone(), slope, bias, intercept=slope, backend="native"),
                    ops.functional_dots(x, g, backend="native"),
                    ops.add_norm_(x.clone(), x / 2, bias, slope[..., 0].abs() + 1, bias, bias, backend="native"),
                    ops.mixing(slope[:, None, :, :5], x.unflatten(-1, (4, -1))[..., :1, :], backend="native"),
                    ops.network(x, weights, weights.T, slope[..., :40], backend="native"),
                    native_product(x[0, 0], weights),
                    native_product(x.flatten(0, 2), weights),
                )
            )
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))
