"""Products of matrices by every library there is, and which of them is taken."""

from __future__ import annotations

import pytest
import torch

from decompx_fast.ops import products

SIZES = [(1, 1, 1), (7, 65, 3), (300, 40, 129), (64, 512, 700)]
WAYS = [
    pytest.param(name, marks=[] if name != "onednn" or products.has_onednn() else pytest.mark.skip("no oneDNN"))
    for name in products.WAYS
]


@pytest.fixture
def unmeasured():
    """Before and after, nothing has been measured."""
    products._fastest.cache_clear()
    yield
    products._fastest.cache_clear()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_way_is_the_product(way, dtype, size):
    m, k, n = size
    generator = torch.Generator().manual_seed(0)
    if way == "onednn" and dtype is not torch.float32:
        pytest.skip("it competes for float32 only")
    a, b = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((m, k), (k, n)))
    rows = torch.full((m, n + 5), float("nan"), dtype=dtype)  # `out` is a view between others' numbers
    with products.forced_way(way):
        products.multiply(a, b.T.contiguous().T, out=rows[:, 2:-3])
    exact = a.double() @ b.double()
    # Sums of k products round k times at the most, in float32, and the result once in its dtype.
    tolerance = k * torch.finfo(torch.float32).eps * (a.double().abs() @ b.double().abs()).max()
    tolerance += torch.finfo(dtype).eps * exact.abs().max()
    assert (rows[:, 2:-3].double() - exact).abs().max() <= tolerance
    assert rows[:, :2].isnan().all() and rows[:, -3:].isnan().all()


@pytest.mark.parametrize(("other", "taken"), [(0.5, "other"), (0.95, "torch"), (2.0, "torch")])
def test_another_way_is_taken_only_where_it_is_clearly_faster(monkeypatch, unmeasured, other, taken):
    monkeypatch.setattr(products, "has_onednn", lambda: True)
    monkeypatch.setattr(products, "_best_seconds", lambda way, *_: 1.0 if way is products.WAYS["torch"] else other)
    expected = {torch.float32: "onednn", torch.bfloat16: "widened", torch.float16: "widened"}
    for dtype, name in expected.items():
        assert products.way(dtype, "large") == (name if taken == "other" else "torch")


def test_without_another_library_nothing_is_measured(monkeypatch, unmeasured):
    monkeypatch.setattr(products, "has_onednn", lambda: False)
    monkeypatch.setattr(products, "_best_seconds", lambda *_: pytest.fail("measured"))
    assert products.way(torch.float32, "large") == "torch"


def test_float64_is_never_rounded():
    a, b = torch.randn(9, 9, dtype=torch.float64), torch.randn(9, 9, dtype=torch.float64)
    out = torch.empty_like(a)
    with products.forced_way("widened"):
        products.multiply(a, b, out=out)
    assert torch.equal(out, a @ b)
