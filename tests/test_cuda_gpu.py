"""The CUDA kernels on a GPU, through the ops, against twins and formulas. Counted, not run, elsewhere."""

from __future__ import annotations

import ops_formulas as formulas
import pytest
import torch
from kernel_cases import RULES, attention
from ops_cases import DEVICE, aligned_with, assert_accurate, embedded, into_views, random, random_state, surroundings

from decompx_fast import ops

pytestmark = pytest.mark.gpu

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
#: Rows that are divided in launches; that one block takes; that a cluster takes (from 9.0 on), and of odd sizes.
SHAPES = [(1, 2, 65, 384), (1, 300, 65, 48), (1, 40, 512, 768), (2, 3, 7, 100), (1, 1, 1, 1), (1, 2, 5, 3072)]


@pytest.fixture(scope="module", autouse=True)
def usable():
    can, reason = ops.usable("cuda", DEVICE)
    if not can:
        pytest.skip(f"backend 'cuda' cannot be used here: {reason}")


def run_in_place(op, x, *args, **options):
    results = []
    for backend in ("cuda", "torch"):
        view, buffer = embedded(x) if x.shape[-1] % 16 else (x.clone(), None)
        op(view, *args, backend=backend, **options)
        assert buffer is None or surroundings(buffer, view).isnan().all()
        results.append(view.clone())
    return results


def exact(formula, x, *args, **options):
    """The formulas go over positions one by one: the first rows will do."""
    return formula(x[:, :2], *(a[:, :2] if torch.is_tensor(a) and a.ndim > 1 else a for a in args), **options)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_accurate(shape, dtype, rule):
    b, i, k, d = shape
    x, bias, scale = random_state(*shape, dtype=dtype), random(d), random(b, i, low=0.5)
    slope = random(b, i, d, dtype=dtype, low=0.5)
    if rule == "dot":
        x = aligned_with(x, bias)
    got, twin = run_in_place(ops.bias_split_, x, bias, rule=rule)
    assert_accurate(got[:, :2], twin[:, :2], exact(formulas.bias_split, x, bias, rule=rule))
    got, twin = run_in_place(ops.activation_, x, slope, bias, rule=rule)
    assert_accurate(got[:, :2], twin[:, :2], exact(formulas.activation, x, slope, bias, rule=rule))
    got, twin = run_in_place(ops.layernorm_, x, scale, None, bias, rule=rule, centre=False)
    assert_accurate(got[:, :2], twin[:, :2], exact(formulas.layernorm, x, scale, None, bias, rule=rule, centre=False))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_residual_centre_and_intercept_are_accurate(shape, dtype):
    b, i, _, d = shape
    x, rest = (random_state(*shape, dtype=dtype, seed=seed) for seed in (0, 2))
    bias, weight, scale = random(d), random(d, low=0.5), random(b, i, low=0.5)
    slope, intercept = (random(b, i, d, dtype=dtype, seed=seed) for seed in (3, 4))
    for after in (False, True):
        options = {"residual": rest, "share_after_residual": after}
        got, twin = run_in_place(ops.bias_split_, x, bias, **options)
        options["residual"] = rest[:, :2]
        assert_accurate(got[:, :2], twin[:, :2], exact(formulas.bias_split, x, bias, **options))
    got, twin = run_in_place(ops.layernorm_, x, scale, weight, bias)
    assert_accurate(got[:, :2], twin[:, :2], exact(formulas.layernorm, x, scale, weight, bias))
    got, twin = run_in_place(ops.activation_, x, slope, bias, intercept=intercept)
    assert_accurate(got[:, :2], twin[:, :2], exact(formulas.activation, x, slope, bias, intercept=intercept[:, :2]))


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize(
    ("b", "heads", "kv_heads", "i", "j", "k", "v", "causal", "window"),
    [
        (1, 1, 1, 1, 1, 1, 1, False, None),
        (2, 4, 2, 7, 9, 3, 12, False, None),
        (1, 2, 2, 65, 63, 5, 48, False, None),
        (1, 2, 1, 129, 129, 3, 64, True, None),
        (1, 2, 2, 256, 256, 2, 64, True, 70),
    ],
)
def test_mixing_is_accurate(b, heads, kv_heads, i, j, k, v, causal, window, dtype):
    alpha = attention(b, heads, i, j, dtype=dtype)
    p, _ = embedded(random(b, j, k, kv_heads, v, dtype=dtype))
    options = {"causal": causal, "window": window}
    got, twin = into_views(ops.mixing, "cuda", (b, i, k, heads, v), dtype, alpha, p, **options)
    assert_accurate(got, twin, formulas.mixing(alpha, p, **options))


def test_work_goes_to_the_current_stream():
    x, bias = random_state(1, 300, 65, 48, dtype=F32), random(48)
    expected = ops.bias_split_(x.clone(), bias, backend="torch")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = ops.bias_split_(x.clone(), bias, backend="cuda")
    stream.synchronize()
    torch.testing.assert_close(got, expected)
