"""Compiles every Triton kernel with every launch choice for every architecture, on a machine without any of them.

    python tools/compile_gate.py

And every launch that the engines make (``engine_launches.py``), for the architecture that it is recorded for.

It fails, with one line per failure, on a register spill, on more shared memory than the architecture has, on a matrix
kernel without the architecture's matrix instruction, and on pointer offsets that are computed in 32 bits. What it
measured goes to ``bench/results/compile.json``, a section per Triton version, and to ``compile.md`` beside it.

Results are cached by the kernel's source, so a second run takes seconds. Registers, shared memory and instructions
come from the ``cuobjdump`` and ``nvdisasm`` inside the triton package, and from the assembly for gfx942.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "0"  # the interpreter's kernels cannot be compiled
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # say what has been the default, and be spared the warning

import argparse
import hashlib
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import torch  # noqa: E402
import triton  # noqa: E402
from compile_cases import TARGETS, Case, all_cases  # noqa: E402
from compile_report import render, summary, to_json  # noqa: E402
from engine_launches import EngineLaunch, kind, read_back, recorded  # noqa: E402
from triton._C.libtriton import ir  # noqa: E402
from triton.compiler import make_backend  # noqa: E402
from ttir_offsets import narrow_offsets  # noqa: E402

from decompx_fast.kernels import launch  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "compile.json"
CACHE = ROOT / ".cache" / "compile_gate"
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
MATRIX_INSTRUCTION = {
    "sm_80": "HMMA",
    "sm_90": "HGMMA",
    "sm_100": "UTCHMMA",
    "sm_120": "HMMA",
    "gfx942": "v_mfma",
}


MEASURE_VERSION = 1  # to be raised when `measure` measures something else


@dataclass
class Measure:
    """What a compilation came to. Instructions are those that stand in the code, not those that run."""

    registers: int
    shared_bytes: int
    spill_bytes: int
    spill_instructions: int
    matrix: dict[str, int] = field(default_factory=dict)
    narrow_offsets: list[str] = field(default_factory=list)


def measure(case: Case | EngineLaunch) -> Measure:
    """Compile one case, or take what compiling it came to before."""
    cached = CACHE / f"{_key(case)}.json"
    if cached.exists():
        return Measure(**json.loads(cached.read_text()))
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    options |= launch.register_limit(case.num_warps, case.arch)
    compiled = triton.compile(case.source(), target=TARGETS[case.arch], options=options)
    inspect = _inspect_amd if case.arch.startswith("gfx") else _inspect_nvidia
    result = inspect(compiled)
    result.narrow_offsets = narrow_offsets(compiled.asm["ttir"])
    cached.parent.mkdir(parents=True, exist_ok=True)
    unfinished = cached.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(asdict(result)))
    unfinished.replace(cached)
    return result


def _key(case: Case | EngineLaunch) -> str:
    """Changes whenever anything that the result depends on does."""
    parts = vars(case) | {"kernel": case.kernel.cache_key, "triton": triton.__version__, "measure": MEASURE_VERSION}
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()


def _inspect_nvidia(compiled: Any) -> Measure:
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        usage, code = (
            subprocess.run([TOOLS / tool, option, cubin], capture_output=True, text=True, check=True).stdout
            for tool, option in (("cuobjdump", "--dump-resource-usage"), ("nvdisasm", "-c"))
        )
    used = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return Measure(
        registers=used["REG"],
        shared_bytes=compiled.metadata.shared,
        spill_bytes=used["STACK"] + used["LOCAL"],
        spill_instructions=len(re.findall(r"\b(?:LDL|STL)\b", code)),
        matrix=_count(r"\b(HMMA|HGMMA|UTCHMMA)\b", code),
    )


def _inspect_amd(compiled: Any) -> Measure:
    code = compiled.asm["amdgcn"]
    used = {name: int(value) for name, value in re.findall(r"^\s+\.(\w+):\s+(\d+)$", code, re.MULTILINE)}
    return Measure(
        registers=used["vgpr_count"],
        shared_bytes=compiled.metadata.shared,
        spill_bytes=used["private_segment_fixed_size"],
        spill_instructions=used["vgpr_spill_count"] + used["sgpr_spill_count"],
        matrix=_count(r"\b(v_mfma)_", code),
    )


def _count(pattern: str, code: str) -> dict[str, int]:
    names = re.findall(pattern, code)
    return {name: names.count(name) for name in sorted(set(names))}


def complaints(case: Case | EngineLaunch, result: Measure) -> list[str]:
    """What is wrong with a compilation."""
    found = []
    limit = launch.SHARED_BYTES[case.arch]
    instruction = MATRIX_INSTRUCTION[case.arch]
    if result.spill_bytes or result.spill_instructions:
        found.append(f"spills: {result.spill_bytes} bytes, {result.spill_instructions} instructions")
    if result.shared_bytes > limit:
        found.append(f"takes {result.shared_bytes} bytes of shared memory, and {limit} is all there is")
    if case.needs_matrix and instruction not in result.matrix:
        found.append(f"has no {instruction}, the matrix instruction")
    found.extend(f"computes an offset in 32 bits: {text}" for text in result.narrow_offsets)
    return found


def attempt(case: Case | EngineLaunch) -> Measure | str:
    """The result, or why there is none: one case that fails to compile must not hide the others."""
    try:
        return measure(case)
    except Exception as error:  # whatever the compiler raises
        return f"does not compile: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}"


def attempt_numbered(n: int) -> Measure | str:
    return attempt(all_cases()[n])  # kernels do not pickle: each process makes its own list


def front_end(case: EngineLaunch) -> None:
    """Translate a kernel as far as Triton's own language goes: where names and types are resolved, in a tenth of the
    time that all of it takes.

    Raises:
        Exception: whatever the compiler raises.
    """
    backend = make_backend(TARGETS[case.arch])
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options({"num_warps": case.num_warps, "num_stages": case.num_stages})
    implementations = backend.get_codegen_implementation(options)
    case.source().make_ir(TARGETS[case.arch], options, implementations, backend.get_module_map(), context)


def judge_launch(task: tuple[dict[str, Any], bool]) -> list[str]:
    """What is wrong with a launch of an engine: compiled in full, or by the front end alone."""
    entry, in_full = task
    case = read_back(entry)
    if in_full:
        result = attempt(case)
        wrong = [result] if isinstance(result, str) else complaints(case, result)
    else:
        try:
            front_end(case)
            wrong = []
        except Exception as error:  # whatever the compiler raises
            wrong = [f"does not compile: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}"]
    return [f"{case.arch} {case.dtype} {case.name}: {reason}" for reason in wrong]


def launch_tasks() -> list[tuple[dict[str, Any], bool]]:
    """Every launch of the engines, and whether it is the first of its kind, which is compiled in full."""
    tasks, kinds = [], set()
    for entry in recorded():
        tasks.append((entry, kind(entry) not in kinds))
        kinds.add(kind(entry))
    return tasks


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="compilations at once (default: 2)")
    parser.add_argument("--only", default="", help="cases whose 'arch dtype name' contains this; writes no results")
    options = parser.parse_args(argv)
    cases = all_cases()
    chosen = [n for n, case in enumerate(cases) if options.only in f"{case.arch} {case.dtype} {case.name}"]
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending = pool.map(attempt_numbered, chosen)
        launches = [] if options.only else launch_tasks()  # are found while the others are compiled
        failures = [failure for found in pool.map(judge_launch, launches) for failure in found]
        results = list(pending)
    rows = []
    for n, result in zip(chosen, results, strict=True):
        case = cases[n]
        wrong = [result] if isinstance(result, str) else complaints(case, result)
        failures += [f"{case.arch} {case.dtype} {case.name}: {reason}" for reason in wrong]
        if not isinstance(result, str):
            rows.append({"arch": case.arch, "dtype": case.dtype, "case": case.name, **asdict(result)})
    print(f"triton {triton.__version__}: {summary(rows)}; and {len(launches)} launches of the engines")
    if not options.only:
        write(rows)
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else 0


def write(rows: list[dict[str, Any]]) -> None:
    """Replace this Triton version's section of the results, and the table made from all of them."""
    sections = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    sections[triton.__version__] = {"torch": torch.__version__.partition("+")[0], "rows": rows}
    for path, text in ((RESULTS, to_json(sections)), (RESULTS.with_suffix(".md"), render(sections))):
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(text)
        unfinished.replace(path)


if __name__ == "__main__":
    sys.exit(main())
