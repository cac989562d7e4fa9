"""The compile gate on kernels that are bad on purpose, and its results as committed.

The gate runs in processes of its own, since here kernels may be interpreted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "tools"
sys.path.insert(0, str(TOOLS))

import predict  # noqa: E402
import predict_whole  # noqa: E402
from compile_report import render  # noqa: E402
from ttir_offsets import narrow_offsets  # noqa: E402

KERNELS = """
import triton
import triton.language as tl


@triton.jit
def wide(x_ptr, n_k, strides, BLOCK: tl.constexpr):
    offs_k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = x_ptr + offs_k.to(tl.int64) * strides[0]
    tl.store(at, tl.load(at, mask=offs_k < n_k) + 1, mask=offs_k < n_k)


@triton.jit
def narrow(x_ptr, n_k, strides, BLOCK: tl.constexpr):
    offs_k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = x_ptr + offs_k * strides[0]
    tl.store(at, tl.load(at, mask=offs_k < n_k) + 1, mask=offs_k < n_k)


@triton.jit
def narrow_before_widening(x_ptr, n_k, strides, BLOCK: tl.constexpr):
    offs_k = tl.arange(0, BLOCK)
    at = x_ptr + (tl.program_id(0) * strides[0]).to(tl.int64) + offs_k
    tl.store(at, tl.load(at, mask=offs_k < n_k) + 1, mask=offs_k < n_k)


@triton.jit
def narrow_in_a_loop(x_ptr, n_k, strides, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    for _ in range(n_k):
        tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) + 1)
        offsets += BLOCK * strides[0]


@triton.jit
def spilling(x_ptr, n_k, strides, BLOCK: tl.constexpr):
    offs_k = tl.arange(0, 128 * BLOCK)
    x = tl.load(x_ptr + offs_k)
    tl.debug_barrier()
    tl.store(x_ptr + offs_k, x / tl.sum(x, axis=0))


@triton.jit
def product(x_ptr, n_k, strides, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, n_k, BLOCK):
        a = tl.load(x_ptr + start + offsets)
        b = tl.load(x_ptr + BLOCK * BLOCK + start + offsets)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(x_ptr + offsets, acc.to(x_ptr.dtype.element_ty))
"""

SCRIPT = """
import json, sys
from pathlib import Path
import compile_gate as gate
import kernels_to_judge as kernels

gate.CACHE = Path(sys.argv[1])


def judge(name, arch="sm_90", dtype="fp32", warps=1, stages=1, block=64, needs_matrix=False):
    kernel = getattr(kernels, name)
    constants = {"BLOCK": block}
    case = gate.Case(
        kernel, name, arch, dtype, {"x_ptr": dtype}, {"strides": 2}, constants, warps, stages, needs_matrix=needs_matrix
    )
    return gate.complaints(case, gate.measure(case))


judged = {name: judge(name) for name in ("wide", "narrow", "narrow_before_widening", "narrow_in_a_loop", "spilling")}
judged["product"] = judge("product", dtype="bf16", warps=4, needs_matrix=True)
judged["product_without_matrix_units"] = judge("product", warps=4, needs_matrix=True)
judged["product_in_too_much_memory"] = judge("product", dtype="bf16", warps=4, stages=6, block=128, arch="sm_120")
print(json.dumps(judged))
"""


@pytest.mark.slow
def test_gate_catches_bad_kernels(tmp_path):
    (tmp_path / "kernels_to_judge.py").write_text(KERNELS)
    script = tmp_path / "judge.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(TOOLS)!r})\n{SCRIPT}")
    run = subprocess.run([sys.executable, script, tmp_path / "cache"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    judged = json.loads(run.stdout)
    assert judged["wide"] == []
    for name in ("narrow", "narrow_before_widening", "narrow_in_a_loop"):
        (complaint,) = judged[name]
        assert complaint.startswith("computes an offset in 32 bits: %") and "arith.muli" in complaint
    (complaint,) = judged["spilling"]
    assert complaint.startswith("spills: ")
    assert judged["product"] == []
    assert judged["product_without_matrix_units"] == ["has no HGMMA, the matrix instruction"]
    (complaint,) = judged["product_in_too_much_memory"]
    assert complaint.endswith("bytes of shared memory, and 101376 is all there is")


def test_offset_checker_follows_values_through_regions():
    ttir = """
      tt.func public @kernel(%x_ptr: !tt.ptr<f32> loc("x_ptr"(#loc)), %n: i32 loc("n"(#loc)), %s.0: i32 loc(#loc)) {
        %c64 = arith.constant 64 : i32
        %pid = tt.get_program_id x : i32
        %block = arith.muli %pid, %c64 : i32
        %fine = tt.addptr %x_ptr, %block : !tt.ptr<f32>, i32
        %tiles = arith.muli %n, %s.0 : i32
        %part = arith.remsi %pid, %tiles : i32
        %fine_too = tt.addptr %x_ptr, %part : !tt.ptr<f32>, i32
        %chosen:2 = scf.if %condition -> (i32, i32) {
          %bad = arith.muli %pid, %s.0 : i32
          scf.yield %c64, %bad : i32, i32
        } else {
          scf.yield %c64, %c64 : i32, i32
        }
        %good = tt.addptr %x_ptr, %chosen#0 : !tt.ptr<f32>, i32
        %worse = tt.addptr %x_ptr, %chosen#1 : !tt.ptr<f32>, i32
      }
    """
    assert narrow_offsets(ttir) == ["%bad = arith.muli %pid, %s.0 : i32"]
    assert narrow_offsets(ttir.replace("%chosen#1 :", "%chosen#0 :")) == []


def committed():
    return json.loads((ROOT / "bench" / "results" / "compile.json").read_text())


def test_committed_results_have_no_spills_and_are_what_the_table_shows():
    sections = committed()
    assert {version.rsplit(".", 1)[0] for version in sections} >= {"3.6", "3.9"}
    for section in sections.values():
        for row in section["rows"]:
            assert row["spill_bytes"] == row["spill_instructions"] == 0 and row["narrow_offsets"] == []
    assert (ROOT / "bench" / "results" / "compile.md").read_text() == render(sections)


def test_prediction_is_of_the_committed_results():
    assert (ROOT / "bench" / "results" / "h100-predicted.md").read_text() == predict.render(
        predict.predictions(committed()), predict_whole.render_wholes(predicted_wholes())
    )
    for found in predict.predictions(committed()):
        assert 0 < found.share <= 1 and found.in_flight_kb >= 1


def predicted_wholes():
    return predict_whole.wholes(predict.of_arch(committed()))


def test_predicted_explanations_take_no_less_than_their_operations_and_launches():
    for found in predicted_wholes():
        assert 0 < found.share < 1 and found.seconds >= found.launches * predict_whole.LAUNCH_S
        assert found.seconds >= max(seconds for _, seconds, _ in found.parts) and found.bound


@pytest.mark.parametrize(
    ("registers", "shared_kb", "warps", "programs"),
    # 64 K registers, 228 KB with one for each program, 64 warps.
    [(128, 128, 16, 1), (128, 64, 4, 3), (32, 0, 8, 8), (255, 8, 4, 2), (40, 112, 4, 2), (255, 227, 16, 1)],
)
def test_predicted_occupancy_is_that_of_the_scarcest_resource(registers, shared_kb, warps, programs):
    assert predict.resident(registers, shared_kb << 10, warps) == programs


@pytest.mark.slow
def test_committed_results_cover_every_case():
    list_cases = "import compile_gate as g, json; print(json.dumps([[c.arch, c.dtype, c.name] for c in g.all_cases()]))"
    run = subprocess.run([sys.executable, "-c", list_cases], cwd=TOOLS, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for section in committed().values():
        assert [[row["arch"], row["dtype"], row["case"]] for row in section["rows"]] == json.loads(run.stdout)


FRONT_END = """
import json, sys
import compile_gate as gate
from engine_launches import kind, read_back, recorded

first = {}
for entry in recorded():
    first.setdefault(kind(entry), entry)
failures = [failure for entry in first.values() for failure in gate.judge_launch((entry, False))]
print(json.dumps({"kernels": sorted({entry["kernel"].rpartition(".")[2] for entry in first.values()}),
                  "kinds": len(first), "failures": failures}))
"""


@pytest.mark.slow
def test_the_compiler_takes_every_kind_of_launch_that_the_engines_make():
    """The interpreter runs what the compiler refuses, such as a name that exists only under a condition."""
    run = subprocess.run([sys.executable, "-c", FRONT_END], cwd=TOOLS, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["failures"] == []
    names = "activation bias_split functional_dots layernorm mixing position_apply position_operator".split()
    assert found["kernels"] == [f"{name}_kernel" for name in names]
    assert found["kinds"] >= 60  # fewer would mean that it listens to less
