"""Compiles the kernels of ``csrc/cuda`` for every architecture with nvcc, on a machine without any of them.

    python tools/nvcc_gate.py

It fails, with one line per failure, on a register spill or a stack, on a mixing kernel without tensor-core instructions
(but for ``ieee``, which has none) and on a kernel over aligned rows without 16-byte loads and stores. What it measured
goes to ``bench/results/compile_cuda.json``, and to ``compile_cuda.md`` beside it.

Results are cached by the sources. Registers and spills come from ``-Xptxas -v``, instructions from an ``nvdisasm``: the
one inside the triton package, or one on PATH. Without nvcc nothing is compiled: it says so, and passes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE)]

from compile_report import cuda_to_json, render_cuda  # noqa: E402

SOURCES = ROOT / "csrc" / "cuda"
RESULTS = ROOT / "bench" / "results" / "compile_cuda.json"
CACHE = ROOT / ".cache" / "nvcc_gate"
ARCHS = ("sm_80", "sm_90a", "sm_100", "sm_120")
UNITS = ("activation", "bias_split", "layernorm", "mixing")
OPTIONS = ("-std=c++17", "-O3", "-cubin", "-Xptxas", "-v")  # the first two as in decompx_fast/ops/backends/cuda.py
MEASURE_VERSION = 1  # to be raised when `measure` measures something else

COMPILED = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers",
    re.DOTALL,
)

Row = dict[str, Any]


def find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME")
    return shutil.which("nvcc", path=os.path.join(home, "bin")) if home else shutil.which("nvcc")


def find_nvdisasm() -> str | None:
    spec = find_spec("triton")
    if spec is not None and spec.submodule_search_locations:
        tool = Path(spec.submodule_search_locations[0]) / "backends" / "nvidia" / "bin" / "nvdisasm"
        if tool.exists():
            return str(tool)
    return shutil.which("nvdisasm")


def nvcc_version(nvcc: str) -> str:
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", said)
    return found.group(1) if found else "unknown"


def readable(name: str) -> tuple[str, str]:
    """The dtype and the rest of a kernel's mangled name: ``layernorm, 32 threads a source, 4 x 2 vectors``."""
    dtypes = {"f": "fp32", "8BFloat16": "bf16", "7Float16": "fp16"}
    row = re.fullmatch(r"_Z10row_kernelI\d+(LayerNorm|BiasSplit|Activation)(f|8BFloat16|7Float16)"
                       r"Li(\d+)ELi(\d+)ELi(\d+)ELb([01])EEv7RowTask", name)  # fmt: skip
    if row:
        op, dtype, team, vectors, sources, aligned = row.groups()
        op = {"LayerNorm": "layernorm", "BiasSplit": "bias_split", "Activation": "activation"}[op]
        tile = f"{team} threads per source, {vectors} vectors of {sources}"
        return dtypes[dtype], f"{op}, {tile}" + ("" if aligned == "1" else ", unaligned")
    mixing = re.fullmatch(
        r"_Z13mixing_kernelI(f|8BFloat16|7Float16)5TilesI\w+?Li(\d+)E.*4Mode(\d)EEv10MixingTask", name
    )
    if mixing:
        dtype, rows, mode = mixing.groups()
        how = ("", ", tf32", ", tf32x3", ", ieee")[int(mode)]
        return dtypes[dtype], f"mixing, {rows} rows{how}"
    return "", name


def parse(said: str, code: str) -> list[Row]:
    """A row per kernel, from what ptxas said and from the disassembly."""
    bodies = dict(re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\.text\.|\Z)", code, re.MULTILINE | re.DOTALL))
    rows = []
    for found in COMPILED.finditer(said):
        body = bodies.get(found["name"], "")
        dtype, case = readable(found["name"])
        rows.append(
            {
                "case": case,
                "dtype": dtype,
                "registers": int(found["registers"]),
                "stack_bytes": int(found["stack"]),
                "spill_bytes": int(found["stores"]) + int(found["loads"]),
                "spill_instructions": len(re.findall(r"\b(?:LDL|STL)\b", body)),
                "matrix": len(re.findall(r"\b(?:HMMA|HGMMA|UTCHMMA)\b", body)),
                "loads_16": len(re.findall(r"\b(?:LDG|LDGSTS)\.E[.\w]*\.128\b", body)),
                "stores_16": len(re.findall(r"\bSTG\.E[.\w]*\.128\b", body)),
            }
        )
    return sorted(rows, key=lambda row: (row["case"], row["dtype"]))


def measure(nvcc: str, nvdisasm: str, unit: str, arch: str) -> list[Row] | str:
    """Compile one file for one architecture, or take what compiling it came to before; or why it does not compile."""
    digest = hashlib.sha256(repr((nvcc_version(nvcc), OPTIONS, MEASURE_VERSION, unit, arch)).encode())
    for path in (SOURCES / f"{unit}.cu", *sorted(SOURCES.glob("*.cuh")), *sorted(SOURCES.glob("*.h"))):
        digest.update(path.read_bytes())
    cached = CACHE / f"{digest.hexdigest()}.json"
    if cached.exists():
        return json.loads(cached.read_text())
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / f"{unit}.cubin"
        command = [nvcc, *OPTIONS, f"-arch={arch}", SOURCES / f"{unit}.cu", "-o", cubin]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            return f"does not compile: {(run.stdout + run.stderr).strip().splitlines()[-5:]}"
        code = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
    rows = [{"arch": arch, **row} for row in parse(run.stdout + run.stderr, code)]
    cached.parent.mkdir(parents=True, exist_ok=True)
    unfinished = cached.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(rows))
    unfinished.replace(cached)
    return rows


def complaints(row: Row) -> list[str]:
    """What is wrong with a compilation."""
    found = []
    if row["spill_bytes"] or row["spill_instructions"] or row["stack_bytes"]:
        found.append(
            f"spills: {row['spill_bytes']} bytes, {row['spill_instructions']} instructions, "
            f"a stack of {row['stack_bytes']} bytes"
        )
    mixes = row["case"].startswith("mixing")
    if mixes and not row["case"].endswith("ieee") and not row["matrix"]:
        found.append("has no tensor-core instruction")
    if not row["case"].endswith("unaligned") and not (row["loads_16"] and row["stores_16"]):
        found.append("has no 16-byte loads or stores")
    return found


def write(version: str, rows: list[Row]) -> None:
    result = {"nvcc": version, "rows": rows}
    for path, text in ((RESULTS, cuda_to_json(result)), (RESULTS.with_suffix(".md"), render_cuda(result))):
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(text)
        unfinished.replace(path)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="compilations at once (default: 2)")
    options = parser.parse_args(argv)
    nvcc, nvdisasm = find_nvcc(), find_nvdisasm()
    if nvcc is None or nvdisasm is None:
        missing = "nvcc (on PATH or in CUDA_HOME)" if nvcc is None else "nvdisasm (in the triton package or on PATH)"
        print(f"csrc/cuda NOT COMPILED: there is no {missing}. The committed results are of another machine.")
        return 0
    cases = [(unit, arch) for unit in UNITS for arch in ARCHS]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda case: measure(nvcc, nvdisasm, *case), cases))
    rows, failures = [], []
    for (unit, arch), result in zip(cases, results, strict=True):
        if isinstance(result, str):
            failures.append(f"{arch} {unit}: {result}")
            continue
        rows += result
        failures += [f"{arch} {row['dtype']} {row['case']}: {why}" for row in result for why in complaints(row)]
    most = max((row["registers"] for row in rows), default=0)
    print(
        f"nvcc {nvcc_version(nvcc)}: {len(rows)} kernels compiled, at most {most} registers, {len(failures)} failures"
    )
    write(nvcc_version(nvcc), rows)
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
