"""Products of matrices by every library there is, and which of them is taken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import processors
import pytest
import torch

from decompx_fast import doctor
from decompx_fast.errors import OptionError
from decompx_fast.ops.backends import native, product_choices, products
from decompx_fast.ops.backends.processor import Processor, from_cpuinfo, from_torch

ROOT = Path(__file__).resolve().parent.parent
F32, BF16, F16 = product_choices.DTYPES

SIZES = [(1, 1, 1), (7, 65, 3), (300, 40, 129), (64, 512, 700), (131, 70, 20000)]
MISSING = {"native": native.unusable()} if native.unusable() else {}
MISSING |= {} if product_choices.has_onednn() else {"onednn": "this build of PyTorch has no oneDNN"}
WAYS = [
    pytest.param(name, marks=[pytest.mark.skip(MISSING[name])] if name in MISSING else []) for name in products.WAYS
]
needs_native = pytest.mark.skipif("native" in MISSING, reason=MISSING.get("native", ""))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_way_is_the_product(way, dtype, size):
    m, k, n = size
    generator = torch.Generator().manual_seed(0)
    if way in ("onednn", "native") and dtype not in product_choices.WAYS[way]:
        pytest.skip("it does not multiply this dtype")
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


#: What each processor of tests/processors.py takes with a PyTorch that has MKL, for short and for large products.
EXPECTED = {
    "plain": {F32: ("torch", "torch"), BF16: ("widened", "widened"), F16: ("widened", "widened")},
    "zen3": {F32: ("torch", "torch"), BF16: ("widened", "widened"), F16: ("widened", "widened")},
    "zen5": {F32: ("native", "native"), BF16: ("torch", "torch"), F16: ("widened", "widened")},
    "skylake": {F32: ("torch", "torch"), BF16: ("widened", "widened"), F16: ("widened", "widened")},
    "granite": {F32: ("torch", "torch"), BF16: ("torch", "torch"), F16: ("torch", "torch")},
    "graviton": {F32: ("torch", "torch"), BF16: ("torch", "torch"), F16: ("widened", "widened")},
}


@pytest.fixture
def with_both_libraries(monkeypatch):
    """As in PyTorch's own builds for x86-64; nothing is kept of a choice made so."""
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(product_choices, "has_onednn", lambda: True)
    product_choices._choose.cache_clear()
    yield
    product_choices._choose.cache_clear()


@needs_native
@pytest.mark.parametrize("name", processors.PROCESSORS)
def test_the_choice_follows_from_the_processor(with_both_libraries, monkeypatch, name):
    processors.become(monkeypatch, name)
    for way in products.WAYS:  # nothing is run to find out
        monkeypatch.setitem(products.WAYS, way, lambda *_: pytest.fail("a product was made"))
    for dtype, ways in EXPECTED[name].items():
        assert tuple(products.way(dtype, kind) for kind in product_choices.KINDS) == ways
        assert all(product_choices.choose(dtype, kind).reason for kind in product_choices.KINDS)


@pytest.mark.parametrize("without", ["", "mkl", "onednn"])
def test_a_row_about_a_library_needs_the_library(with_both_libraries, monkeypatch, without):
    processors.become(monkeypatch, "zen5")
    monkeypatch.setattr(native, "level", lambda: None)
    if without == "mkl":
        monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    if without == "onednn":
        monkeypatch.setattr(product_choices, "has_onednn", lambda: False)
    assert products.way(F32, "large") == ("torch" if without else "onednn") and products.way(F32, "short") == "torch"


def test_a_processor_with_tiles_has_reasons_of_its_own(with_both_libraries, monkeypatch):
    processors.become(monkeypatch, "granite")
    assert "AMX 176 GFLOP/s" in product_choices.choose(F32, "large").reason
    assert "tiles for bfloat16" in product_choices.choose(BF16, "short").reason
    processors.become(monkeypatch, "zen5")
    assert "tiles" not in product_choices.choose(BF16, "short").reason


@needs_native
@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("torch", {F32: "torch", BF16: "torch", F16: "torch"}),
        ("onednn", {F32: "onednn", BF16: "torch", F16: "widened"}),
        ("widened", {F32: "native", BF16: "widened", F16: "widened"}),
        ("bfloat16=native", {F32: "native", BF16: "native", F16: "widened"}),
        ("float32=torch", {F32: "torch", BF16: "torch", F16: "widened"}),
        (" float32=torch , bfloat16=widened", {F32: "torch", BF16: "widened", F16: "widened"}),
        ("torch,float16=widened", {F32: "torch", BF16: "torch", F16: "widened"}),
        ("", {F32: "native", BF16: "torch", F16: "widened"}),
    ],
)
def test_the_environment_names_another_way(with_both_libraries, monkeypatch, named, expected):
    processors.become(monkeypatch, "zen5")
    monkeypatch.setenv(product_choices.VARIABLE, named)
    assert {dtype: products.way(dtype, "large") for dtype in expected} == expected


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            "mkl",
            "at 'mkl': name one of torch, onednn, widened, native, or pairs such as float32=torch,bfloat16=widened",
        ),
        ("float8=torch", "at 'float8=torch'"),
        ("=torch", "at '=torch'"),
        ("float32=", "at 'float32='"),
        ("bfloat16=onednn", "bfloat16 has no way 'onednn'; it has torch, widened, native"),
        ("float32=widened", "float32 has no way 'widened'; it has torch, onednn, native"),
    ],
)
def test_what_is_no_way_is_refused(with_both_libraries, monkeypatch, named, message):
    monkeypatch.setenv(product_choices.VARIABLE, named)
    with pytest.raises(OptionError, match="DECOMPX_FAST_PRODUCTS=") as raised:
        products.multiply(torch.ones(2, 2), torch.ones(2, 2), out=torch.empty(2, 2))
    assert message in str(raised.value)
    shown = {row[2] for row in doctor.products()}
    assert shown == {"refused"}


def test_onednn_is_refused_where_it_is_not(with_both_libraries, monkeypatch):
    monkeypatch.setattr(product_choices, "has_onednn", lambda: False)
    monkeypatch.setenv(product_choices.VARIABLE, "onednn")
    with pytest.raises(OptionError, match="this build of PyTorch has no oneDNN"):
        products.way(F32, "large")


def test_native_is_refused_where_it_is_not(monkeypatch):
    monkeypatch.setattr(native, "unusable", lambda: "it was not compiled")
    monkeypatch.setattr(native, "level", lambda: None)
    monkeypatch.setenv(product_choices.VARIABLE, "native")
    with pytest.raises(OptionError, match="DECOMPX_FAST_PRODUCTS='native': it was not compiled; name another way"):
        products.way(F32, "large")


@needs_native
def test_doctor_shows_the_choice_and_its_reason(with_both_libraries, monkeypatch):
    processors.become(monkeypatch, "zen5")
    rows = {row[:2]: row[2:] for row in doctor.products()}
    assert rows["float32", "large"][0] == "native" and "215 by oneDNN" in rows["float32", "large"][1]
    monkeypatch.setenv(product_choices.VARIABLE, "float32=torch")
    rows = {row[:2]: row[2:] for row in doctor.products()}
    assert rows["float32", "large"] == ("torch", "DECOMPX_FAST_PRODUCTS=float32=torch")


def test_the_processor_is_read_from_what_linux_says():
    text = "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512_bf16\n\nprocessor\t: 1\n"
    assert from_cpuinfo(text) == Processor("amd", frozenset({"fpu", "avx2", "avx512f", "avx512bf16"}))
    arm = from_cpuinfo("processor\t: 0\nFeatures\t: fp asimd bf16\nCPU implementer\t: 0x41\n")
    assert arm == Processor("other", frozenset({"fp", "asimd", "bf16"}))
    assert from_cpuinfo("") == Processor("other", frozenset())


def test_the_processor_is_asked_of_pytorch_elsewhere(monkeypatch):
    said = {"cpu_name": "AMD EPYC 9B45", "avx512_bf16": True, "amx_tile": False, "l1d_cache_size": 1}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: said, raising=False)
    assert from_torch() == Processor("amd", frozenset({"avx512bf16"}))
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert from_torch() == Processor("other", frozenset())


GROWTH = """
import torch
from decompx_fast.ops.backends import products

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

a, w, out = torch.randn(700, 128), torch.randn(128, 256), torch.empty(700, 256)
with products.forced_way("onednn"):
    for m in (64, 128, 192, 700):
        products.multiply(a[:m], w, out=out[:m])
    before = resident_mib()
    for m in range(60, 700):
        products.multiply(a[:m], w, out=out[:m])
print(resident_mib() - before)
"""

MIXING_GROWTH = """
import torch
from decompx_fast import ops
from decompx_fast.ops.backends import products


def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20


def mix(n):
    ops.mixing(torch.ones(1, 1, n, n), torch.ones(1, n, 20, 1, 8), backend="torch")


with products.forced_way("onednn"):
    for n in (300, 460):
        mix(n)
    before = resident_mib()
    for n in range(260, 460, 3):
        mix(n)
print(resident_mib() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not (product_choices.has_onednn() and Path("/proc/self/statm").exists()), reason="needs oneDNN, Linux"
)
@pytest.mark.parametrize("script", [GROWTH, MIXING_GROWTH], ids=["weights", "mixing"])
def test_products_of_many_lengths_do_not_grow_the_process(script):
    """With a shape for each number of rows it grew by 400 MiB, and by 84 where all three sizes follow the length; what
    is left are ten shapes of half a MiB."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 40


@pytest.mark.skipif(not product_choices.has_onednn(), reason="this build of PyTorch has no oneDNN")
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 1, 1), (49, 63, 65), (130, 64, 512), (64, 200, 4096), (300, 130, 4800), (70, 129, 5000)]
)
def test_products_of_varied_sizes_are_the_products(m, k, n):
    generator = torch.Generator().manual_seed(m)
    a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
    out = torch.full((m, n + 3), torch.nan)[:, :n]
    with products.forced_way("onednn"):
        products.multiply(a, b, out=out, varied=True)
    exact = a.double() @ b.double()
    assert (out - exact).abs().max() < 1e-6 * k  # sums of k numbers of size one in float32


@needs_native
def test_native_products_take_any_strides():
    a, b = torch.randn(30, 2, 50)[:, 0].T, torch.randn(3, 40, 90)[1, ::2, ::3].T  # [50, 30], [30, 20]
    assert a.stride(1) != 1 and 1 not in b.stride()
    out = torch.full((50, 20), torch.nan)
    with products.forced_way("native"):
        products.multiply(a, b, out=out)
    assert (out - a.double() @ b.double()).abs().max() < 1e-6 * 30  # sums of 30 numbers of size one in float32


def test_float64_is_never_rounded():
    a, b = torch.randn(9, 9, dtype=torch.float64), torch.randn(9, 9, dtype=torch.float64)
    out = torch.empty_like(a)
    with products.forced_way("widened"):
        products.multiply(a, b, out=out)
    assert torch.equal(out, a @ b)
