"""The library of C++ kernels: its instruction sets, what it checks, and what is said where it is missing or old."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ops_cases import random

from decompx_fast import ops
from decompx_fast.errors import BackendError
from decompx_fast.ops import registry
from decompx_fast.ops.backends import native

BUILT, REASON = ops.usable("native", "cpu")
needs_library = pytest.mark.skipif(not BUILT, reason=REASON)
ROOT = Path(__file__).resolve().parent.parent


def test_levels_differ_by_rounding_only():
    if not native.has_level("avx2"):
        pytest.skip(REASON if not BUILT else "this processor has only the portable level")
    results = []
    for name in ("portable", "avx2"):
        with native.forced_level(name):
            assert native.level() == name
            results.append(ops.layernorm_(random(1, 3, 5, 77).cpu(), torch.ones(1, 3), None, random(77).cpu()))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)  # float32 sums of 77 numbers of order 1


@needs_library
def test_auto_takes_native_on_the_cpu_where_it_can():
    cpu = torch.device("cpu")
    for op in ("bias_split_", "layernorm_", "add_norm_", "activation_", "functional_dots", "mixing"):
        assert registry.select(op, "auto", cpu) is registry.select(op, "native", cpu)
    double, bias = random(1, 2, 3, 8).double().cpu(), random(8).cpu()
    assert torch.equal(ops.bias_split_(double.clone(), bias), ops.bias_split_(double.clone(), bias, backend="torch"))
    with pytest.raises(BackendError, match="its kernels take float32 and bfloat16, and the state is float64"):
        ops.bias_split_(double, bias, backend="native")
    with pytest.raises(BackendError, match="its kernels share by absdot, dot, equal, cls, none, and rule is 'norm'"):
        ops.bias_split_(double.float(), bias, rule="norm", backend="native")
    with pytest.raises(BackendError, match="its kernels are for the CPU, and this is meta"):
        registry.select("bias_split_", "native", torch.device("meta"))


@pytest.mark.slow
@needs_library
def test_unknown_level_is_refused():
    with pytest.raises(BackendError, match="level='sse9' cannot be used here: use one of portable"):
        with native.forced_level("sse9"):
            pass
    code = "from decompx_fast import ops; print(ops.usable('native', 'cpu'))"
    environment = os.environ | {native.LEVEL_VARIABLE: "sse9"}
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "DECOMPX_FAST_CPU_LEVEL='sse9' cannot be used here: use one of portable" in run.stdout


@needs_library
def test_bindings_check_what_could_leave_a_tensor():
    bare = torch.ops.decompx_fast_native
    x = torch.zeros(1, 2, 3, 8)
    for call, message in (
        (lambda: bare.bias_split_(x[0], None, None, 0, False), "x has 3 axes"),
        (lambda: bare.bias_split_(x.transpose(2, 3), None, None, 0, False), "contiguous along its last axis"),
        (lambda: bare.bias_split_(x, torch.zeros(1, 2, 7), None, 0, False), "bias has size 7"),
        (lambda: bare.bias_split_(x, None, x[:, :1], 0, False), "residual has size 1"),
        (lambda: bare.bias_split_(x, None, None, 9, False), "rule is 9"),
        (lambda: bare.bias_split_(x.double(), None, None, 0, False), "must be float32 or bfloat16"),
        (lambda: bare.add_norm_(x, x[:, :1], None, x[..., 0, :1], None, None, False, True, 0), "branch has size 1"),
        (lambda: bare.mixing(x[None], x, x[None].double(), False, None, 0), "p must be float32 or bfloat16"),
        (lambda: bare.mixing(x[None], torch.zeros(1, 3, 2, 2), x[None], False, None, 0), "alpha has size"),
        (lambda: bare.product(x[0, 0], x[0, 0, :, :2], x[0, 0], torch.zeros(9)), "a has size 2"),
        (lambda: bare.product(x[0, 0], x[0, 0], torch.zeros(8, 8), torch.zeros(9)), "packed has size 9"),
        (lambda: bare.product(x[0, 0, :2], x[0, 0], torch.zeros(8, 8), torch.zeros(512)), "out has size 2"),
        (lambda: bare.product(x[0, 0], x[0, 0], torch.zeros(8, 8).double(), torch.zeros(512)), "b must be float32"),
        (lambda: bare.functional_dots(torch.zeros(1, 2, 3, 1), x, torch.zeros(1, 2, 2, 8)), "out has size 1"),
    ):
        with pytest.raises(RuntimeError, match=message):
            call()


def test_a_missing_library_is_told(monkeypatch, tmp_path):
    monkeypatch.delenv(native.LOWERED_VARIABLE, raising=False)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "backends" / "native.py"))
    native._load.cache_clear()
    try:
        assert not ops.usable("native", "cpu")[0]
        assert "it was not compiled" in ops.usable("native", "cpu")[1]
        x = random(1, 2, 3, 8).cpu()
        ops.bias_split_(x, random(8).cpu())  # plain PyTorch does it
        with pytest.raises(BackendError, match="backend='native' cannot be used on cpu: it was not compiled"):
            ops.bias_split_(x, random(8).cpu(), backend="native")
        (tmp_path / "_native.abi3.so").write_bytes(b"no library")
        native._load.cache_clear()
        assert "_native.abi3.so cannot be loaded" in ops.usable("native", "cpu")[1]
    finally:
        monkeypatch.undo()
        native._load.cache_clear()
        assert ops.usable("native", "cpu") == (BUILT, REASON)


@needs_library
def test_a_library_of_an_older_version_is_told(monkeypatch):
    monkeypatch.setattr(native, "OPERATORS", (*native.OPERATORS, "what_is_new"))
    native._load.cache_clear()
    try:
        can, reason = ops.usable("native", "cpu")
        assert not can and "is older than this package (it has no what_is_new)" in reason
        x = random(1, 2, 3, 8).cpu()
        ops.bias_split_(x, random(8).cpu())  # plain PyTorch does it
    finally:
        monkeypatch.undo()
        native._load.cache_clear()
        assert ops.usable("native", "cpu") == (BUILT, REASON)


@pytest.mark.parametrize(
    ("flags", "lowered"), [("avx2 avx512f avx512bw avx512dq avx512vl", False), ("avx2 fma", True), ("avx512f", True)]
)
def test_the_check_runs_the_real_instructions_where_they_are(tmp_path, flags, lowered):
    compiler, said = tmp_path / "compiler", tmp_path / "said"
    compiler.write_text(f'#!/bin/sh\necho "$@" > {said}\ncp /bin/true {tmp_path}/rows_test_thread\n')
    compiler.chmod(0o755)
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    environment = os.environ | {"CXX": str(compiler), "CPUINFO": str(tmp_path / "cpuinfo")}
    command = [ROOT / "csrc/cpu/tests/run.sh", "thread", tmp_path]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ("-DDECOMPX_LOWERED" in said.read_text()) is lowered
    assert run.stdout.startswith("avx512: lowered to AVX2" if lowered else "avx512: the processor's own instructions")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_kernels_are_clean_under_the_address_sanitizer(tmp_path):
    subprocess.run([ROOT / "csrc/cpu/tests/run.sh", "address", tmp_path], check=True)
