"""Everything that needs a GPU, most important first, within 8 minutes: tests, kernels, whole explanations.

Last, the kernels of ``csrc/cuda``: they are built, tested, tested again under compute-sanitizer where there is one, and
put beside the Triton kernels. A machine without nvcc takes a library that was built for it elsewhere, by
``cuda.build((9, 0), folder=Path(".cache/decompx_fast/cuda"))`` of ``decompx_fast.ops``.

    OUT=results python bench/device_check.py

Needs what is installed already; downloads nothing. Each step has a limit of its own, writes its own file, and a step
that fails or runs out of time does not keep the next one from running. The folder ``OUT`` holds ``summary.json`` from
the first step on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOTAL_S = 470

PYTEST = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
BUILD = "import torch; from decompx_fast.ops import cuda; print(cuda.build(torch.cuda.get_device_capability()))"
SANITIZER = shutil.which("compute-sanitizer")
#: Name, command, limit in seconds.
STEPS: list[tuple[str, list[str], int]] = [
    ("doctor", [sys.executable, "-m", "decompx_fast.cli", "doctor"], 60),
    ("kernel-tests", [*PYTEST, "tests/test_kernels_rows.py", "tests/test_kernels_matrix.py"], 150),
    ("gpu-tests", [*PYTEST, "-m", "gpu", "tests", "--ignore=tests/test_cuda_gpu.py"], 90),
    ("kernel-bench", [*PYTEST, "bench/bench_kernels.py", "--benchmark-only", "--device=cuda"], 120),
    ("explain-bench", [*PYTEST, "bench/bench_explain.py", "--benchmark-only", "--device=cuda"], 180),
    ("cuda-build", [sys.executable, "-c", BUILD], 120),
    ("cuda-tests", [*PYTEST, "tests/test_cuda_gpu.py"], 60),
    ("cuda-bench", [*PYTEST, "bench/bench_cuda.py", "--benchmark-only", "--device=cuda"], 90),
]
if SANITIZER:
    # Slow: one dtype is enough for what it looks for.
    few = "dtype1 and not 3072"
    under = [SANITIZER, "--error-exitcode=9", "--target-processes=all"]
    STEPS.append(("cuda-sanitizer", [*under, *PYTEST, "tests/test_cuda_gpu.py", "-k", few], 90))


def run_step(name: str, command: list[str], limit_s: float, out: Path) -> dict[str, object]:
    """One step; its output goes to a file, of which the end is kept in the summary."""
    if name.endswith("-bench"):
        command = [*command, f"--benchmark-json={out / name}.json"]
    start = time.monotonic()
    log = out / f"{name}.log"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    environment["XDG_CACHE_HOME"] = str(ROOT / ".cache")
    with open(log, "w", encoding="utf-8") as stream:
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT, timeout=limit_s
            )
            code: int | str = done.returncode
        except subprocess.TimeoutExpired:
            code = f"stopped after {limit_s:.0f} s"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return {"name": name, "exit": code, "seconds": round(time.monotonic() - start, 1), "end": lines[-15:]}


def report(name: str, out: Path) -> None:
    """Tables and plots of one benchmark run, in a folder of its own."""
    run = out / f"{name}.json"
    if run.exists() and run.stat().st_size:
        command = [sys.executable, "bench/report.py", str(run), "--out", str(out / name), "--device", "cuda"]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60, check=False)


def main() -> int:
    out = Path(os.environ.get("OUT") or ROOT / "build" / "device-check").resolve()
    out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    summary: list[dict[str, object]] = []
    for name, command, limit_s in STEPS:
        left_s = TOTAL_S - (time.monotonic() - start)
        if left_s < 10:
            summary.append({"name": name, "exit": "not started: no time left"})
        else:
            summary.append(run_step(name, command, min(limit_s, left_s), out))
            if name.endswith("-bench"):
                report(name, out)
        print(json.dumps(summary[-1], indent=1), flush=True)
        (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return 0 if all(step["exit"] == 0 for step in summary) else 1


if __name__ == "__main__":
    sys.exit(main())
