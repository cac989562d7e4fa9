"""The backend ``cuda`` where it cannot be used or built, and what the compile gate makes of compilations."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
import torch
from ops_cases import random

from decompx_fast import ops
from decompx_fast.errors import BackendError
from decompx_fast.ops.backends import cuda

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import nvcc_gate  # noqa: E402
from compile_report import cuda_to_json, render_cuda  # noqa: E402


def test_backend_is_known_and_says_why_it_cannot_be_used_on_a_cpu():
    assert "cuda" in ops.backend_names()
    reason = "its kernels need a CUDA device, and this is cpu"
    assert ops.usable("cuda", "cpu") == (False, reason)
    with pytest.raises(BackendError, match=f"bias_split_: backend='cuda' cannot be used on cpu: {reason}"):
        ops.bias_split_(random(1, 1, 2, 8).cpu(), random(8).cpu(), backend="cuda")


@pytest.mark.parametrize(
    ("version", "available", "capability", "reason"),
    [
        (None, False, None, "this PyTorch is built without CUDA"),
        ("13.0", False, None, "PyTorch sees no CUDA device"),
        ("13.0", True, (7, 5), "compute capability 7.5 is older than 8.0, the oldest supported"),
        ("13.0", True, (9, 0), "there is no nvcc on PATH or in CUDA_HOME to compile its kernels with"),
    ],
)
def test_probe_says_what_is_missing(monkeypatch, tmp_path, version, available, capability, reason):
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ops.usable("cuda", "cuda:0") == (False, reason)


def test_installed_without_sources_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda, "SOURCES", tmp_path)
    with pytest.raises(BackendError, match="cannot be built: its sources are not installed"):
        cuda.build((9, 0), folder=tmp_path)


def fake_nvcc(tmp_path, monkeypatch, script):
    compiler = tmp_path / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))


def test_what_nvcc_says_is_shown_and_nothing_is_left(monkeypatch, tmp_path):
    fake_nvcc(tmp_path, monkeypatch, "echo 'mixing.cu(1): error: no'; exit 2")
    with pytest.raises(BackendError, match=r"nvcc failed with\nmixing.cu\(1\): error: no\n"):
        cuda.build((9, 0), folder=tmp_path / "libraries")
    assert list((tmp_path / "libraries").iterdir()) == []


def test_library_is_compiled_once_for_each_capability(monkeypatch, tmp_path):
    script = 'echo "$@" >> ' + str(tmp_path / "calls")
    script += '\nwhile [ "$1" != -o ]; do shift; done; echo library > "$2"'
    fake_nvcc(tmp_path, monkeypatch, script)
    first, again = (cuda.build((9, 0), folder=tmp_path / "libraries") for _ in range(2))
    other = cuda.build((8, 0), folder=tmp_path / "libraries")
    assert first == again != other and first.read_text() == "library\n"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 2 and "arch=compute_90,code=sm_90" in calls[0] and "layernorm.cu" in calls[0]


SAID = """
ptxas info    : Compiling entry function '_Z10row_kernelI9LayerNormfLi32ELi4ELi2ELb1EEv7RowTask' for 'sm_80'
ptxas info    : Function properties for _Z10row_kernelI9LayerNormfLi32ELi4ELi2ELb1EEv7RowTask
    {stack} bytes stack frame, {stack} bytes spill stores, 0 bytes spill loads
ptxas info    : Used 99 registers, used 1 barriers
"""
CODE = """
.text._Z10row_kernelI9LayerNormfLi32ELi4ELi2ELb1EEv7RowTask:
        /*0000*/  LDG.E.128.STRONG.GPU R4, [R2.64] ;
        /*0010*/  {store}
"""


@pytest.mark.parametrize(
    ("stack", "store", "wrong"),
    [
        (0, "STG.E.EF.128 [R2.64], R4 ;", []),
        (8, "STG.E.128 [R2.64], R4 ;", ["spills: 8 bytes, 0 instructions, a stack of 8 bytes"]),
        (0, "STG.E [R2.64], R4 ;", ["has no 16-byte loads or stores"]),
    ],
)
def test_gate_catches_bad_kernels(stack, store, wrong):
    (row,) = nvcc_gate.parse(SAID.format(stack=stack), CODE.format(store=store))
    assert row["case"] == "layernorm, 32 threads per source, 4 vectors of 2" and row["dtype"] == "fp32"
    assert row["registers"] == 99
    assert nvcc_gate.complaints(row) == wrong


def test_gate_wants_tensor_cores_but_for_ieee():
    row = {"spill_bytes": 0, "spill_instructions": 0, "stack_bytes": 0, "matrix": 0, "loads_16": 1, "stores_16": 1}
    assert nvcc_gate.complaints(row | {"case": "mixing, 128 rows"}) == ["has no tensor-core instruction"]
    assert nvcc_gate.complaints(row | {"case": "mixing, 128 rows, ieee"}) == []


def test_gate_without_nvcc_says_that_nothing_was_compiled(monkeypatch, capsys):
    monkeypatch.setattr(nvcc_gate, "find_nvcc", lambda: None)
    monkeypatch.setattr(nvcc_gate, "write", lambda *result: pytest.fail("nothing was measured"))
    assert nvcc_gate.main([]) == 0
    assert capsys.readouterr().out.startswith("csrc/cuda NOT COMPILED: there is no nvcc")


def test_committed_results_are_good_complete_and_what_the_table_shows():
    text = (ROOT / "bench" / "results" / "compile_cuda.json").read_text()
    result = json.loads(text)
    assert [why for row in result["rows"] for why in nvcc_gate.complaints(row)] == []
    for arch in nvcc_gate.ARCHS:
        cases = {(row["case"], row["dtype"]) for row in result["rows"] if row["arch"] == arch}
        # Three tiles (two of bias_split are the same) and the unaligned one, in three dtypes; mixing has two, in five
        # modes.
        assert len(cases) == 3 * (4 + 4 + 3) + 2 * 5
    assert text == cuda_to_json(result)
    assert (ROOT / "bench" / "results" / "compile_cuda.md").read_text() == render_cuda(result)
