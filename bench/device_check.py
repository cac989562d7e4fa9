"""Everything that needs a GPU, most important first, within 8 minutes: tests, kernels, whole explanations.

    OUT=results python3 bench/device_check.py                # all steps
    python3 bench/device_check.py kernel-tests gpu-tests     # some of them; --list names them

It needs no make and nothing but torch, triton, transformers, pytest, pytest-benchmark, numpy, safetensors, click, rich,
jinja2 and hypothesis, and downloads nothing. Each step has a budget of its own and writes as it goes: a step that
fails, or is stopped when its time is over, keeps what it wrote and does not keep the next one from running.

The folder ``OUT`` holds at any moment what is known until then: ``summary.json``, ``report.md`` (the tables of the
benchmarks) and ``details.tar.gz`` (logs and every benchmark as it was recorded).

The last steps are about the kernels of ``csrc/cuda``: they are built, tested, and put beside the Triton kernels. A
machine without nvcc takes a library that was built for it elsewhere, by
``cuda.build((9, 0), folder=Path(".cache/decompx_fast/cuda"))`` of ``decompx_fast.ops``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

PYTEST = (sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "shards")
BENCH = ("--benchmark-only", "--device=cuda")
BUILD = (
    "import torch; from decompx_fast.ops.backends import cuda; print(cuda.build(torch.cuda.get_device_capability()))"
)


@dataclass(frozen=True)
class Step:
    """One command, and how long it may take.

    Attributes:
        shards: how many processes share its tests: compiling a kernel takes a second of one core, and there are many.
        optional: left out unless it is named.
    """

    name: str
    command: tuple[str, ...]
    budget_s: float
    shards: int = 1
    optional: bool = False


STEPS = (
    Step("doctor", (sys.executable, "-m", "decompx_fast.cli", "doctor"), 20),
    Step("kernel-tests", (*PYTEST, "tests/test_kernels_rows.py", "tests/test_kernels_matrix.py"), 90, shards=8),
    Step("gpu-tests", (*PYTEST, "-k", "gpu or kernels", "tests/test_gpu.py", "tests/test_forward.py"), 40, shards=4),
    # The benchmarks once, untimed and side by side, so that all is compiled when it is timed.
    Step("kernel-compile", (*PYTEST, "bench/bench_kernels.py", "--benchmark-disable", "--device=cuda"), 20, shards=8),
    Step("kernel-bench", (*PYTEST, "bench/bench_kernels.py", *BENCH), 50),
    Step(
        "explain-bench",
        (
            *PYTEST,
            "bench/bench_explain.py::test_against_the_released_pattern",
            "bench/bench_explain.py::test_explain",
            *BENCH,
        ),
        120,
    ),
    Step("cuda-build", (sys.executable, "-c", BUILD), 60),
    Step("cuda-tests", (*PYTEST, "tests/test_cuda_gpu.py"), 40, shards=4),
    Step("cuda-bench", (*PYTEST, "bench/bench_cuda.py", *BENCH), 40),
    # Slow: one dtype is enough for what it looks for.
    Step(
        "cuda-sanitizer",
        (
            *("compute-sanitizer", "--error-exitcode=9", "--target-processes=all"),
            *(*PYTEST, "tests/test_cuda_gpu.py", "-k", "dtype1 and not 3072"),
        ),
        90,
        optional=True,
    ),
)

#: All steps together, the report left aside; the last ones get what is left of it.
TOTAL_S = 465.0
#: How long a process that was asked to stop may take to say what it did, within its step's budget; no step is begun
#: with less time than that.
GRACE_S = 4.0
#: How long the tables may take.
REPORT_S = 15.0
#: How often what a step wrote so far is packed.
PACK_EVERY_S = 10.0


class Run:
    """The steps of one run, and its folder of results.

    Args:
        out: where the results go.
        work: where logs are written until they are packed.
    """

    def __init__(self, out: Path, work: Path) -> None:
        self.out, self.work = out, work
        self.summary: list[dict[str, Any]] = []
        self.ends_at = time.monotonic() + TOTAL_S
        out.mkdir(parents=True, exist_ok=True)

    def step(self, step: Step) -> None:
        """Run one step within its budget, whatever becomes of it."""
        start = time.monotonic()
        budget_s = min(step.budget_s, self.ends_at - start)
        logs = [self.work / f"{step.name}{f'.{n}' if step.shards > 1 else ''}.log" for n in range(step.shards)]
        codes: list[int | str]
        try:
            if self.ends_at - start <= GRACE_S:
                raise TimeoutError(f"the {TOTAL_S:g} s of all steps are over")
            codes = self._wait(budget_s, [self._start(step, n, log) for n, log in enumerate(logs)])
        except OSError as error:  # no time, or no such program
            codes = [f"not started: {error}"]
        texts = [log.read_text(encoding="utf-8", errors="replace") for log in logs if log.exists()]
        text = "\n".join(texts)
        self.summary.append(
            {
                "name": step.name,
                "exit": next((code for code in codes if code != 0), 0),
                "seconds": round(time.monotonic() - start, 1),
                "budget_s": round(max(budget_s, 0.0), 1),
                "counts": counts(texts),
                "failed": re.findall(r"^(?:FAILED|ERROR) (.*)", text, re.MULTILINE)[:40],
                "benchmarks": len(self._rows(step.name)),
                "end": text.splitlines()[-15:],
            }
        )
        self.write()

    def _start(self, step: Step, shard: int, log: Path) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'bench'}",
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(ROOT / ".cache")),
            "DECOMPX_FAST_TEST_SHARD": f"{shard}/{step.shards}",
            "DECOMPX_FAST_BENCH_ROWS": str(self.work / f"{step.name}.jsonl"),
        }
        with open(log, "wb") as stream:
            # A group of its own, so that what it starts is stopped with it.
            return subprocess.Popen(
                step.command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait(self, budget_s: float, processes: Sequence[subprocess.Popen[bytes]]) -> list[int | str]:
        """How each process ended; those that go on for longer are asked to stop, and then stopped."""
        stop_at = time.monotonic() + max(budget_s - GRACE_S, budget_s / 2)
        packed = time.monotonic()
        while any(process.poll() is None for process in processes) and time.monotonic() < stop_at:
            time.sleep(0.05)
            if time.monotonic() - packed > PACK_EVERY_S:
                self.pack()
                packed = time.monotonic()
        late = [process for process in processes if process.poll() is None]
        for number, patience_s in ((signal.SIGINT, GRACE_S), (signal.SIGKILL, GRACE_S)):  # pytest says what it did
            until = time.monotonic() + patience_s
            for process in processes:
                signal_group(process, number)
            while any(process.poll() is None for process in processes) and time.monotonic() < until:
                time.sleep(0.05)
        over = f"stopped: more than its {budget_s:.3g} s"
        return [over if process in late else process.returncode for process in processes]

    def _rows(self, name: str) -> list[dict[str, Any]]:
        """The benchmarks that a step recorded; the last line may be cut off."""
        path, rows = self.work / f"{name}.jsonl", []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
        return rows

    def write(self) -> None:
        """The summary and the archive, as they are now."""
        replace(self.out / "summary.json", (json.dumps(self.summary, indent=1) + "\n").encode())
        self.pack()

    def pack(self) -> None:
        """The archive of all logs and benchmarks."""
        unfinished = self.out / "details.tar.gz.part"
        with tarfile.open(unfinished, "w:gz") as archive:
            for path in sorted(self.work.iterdir()):
                archive.add(path, path.name)
        unfinished.replace(self.out / "details.tar.gz")

    def report(self) -> None:
        """The tables of all benchmarks; what is wrong with them goes into the summary."""
        rows = [row for entry in self.summary for row in self._rows(str(entry["name"]))]
        if not rows:
            return
        run = self.work / "all.jsonl"
        run.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        command = [sys.executable, "bench/report.py", str(run), "--out", str(self.work / "report"), "--device", "cuda"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(
                [*command, "--no-plots"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=REPORT_S
            )
            if done.returncode:
                raise subprocess.SubprocessError(done.stderr[-2000:])
            replace(self.out / "report.md", done.stdout.encode())
        except subprocess.SubprocessError as error:
            self.summary.append({"name": "report", "exit": 1, "end": str(error).splitlines()[-15:]})
        self.write()


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # all of it has ended


def counts(texts: Sequence[str]) -> dict[str, int]:
    """What pytest counted, over all its processes; of one that was killed, by its lines."""
    found: Counter[str] = Counter()
    for text in texts:
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|error|deselected)", "\n".join(tails(text))):
            found[word] += int(number)
        if not tails(text):
            words = re.findall(r"^\S+::\S+.* (PASSED|FAILED|SKIPPED|ERROR)\b", text, re.MULTILINE)
            found.update(word.lower() for word in words)
    return dict(found)


def tails(text: str) -> list[str]:
    """The last line of each run of pytest."""
    return re.findall(r"^=+ (.* in [\d.:]+s.*) =+$", text, re.MULTILINE)


def replace(path: Path, content: bytes) -> None:
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def main(argv: list[str] | None = None, steps: Sequence[Step] = STEPS) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help="those to run (default: all but optional ones)")
    parser.add_argument("--list", action="store_true", help="name the steps and their budgets, and run none")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print("\n".join(f"{s.name}: {s.budget_s:g} s{', optional' if s.optional else ''}" for s in steps))
        return 0
    unknown = set(arguments.steps) - {step.name for step in steps}
    if unknown:
        parser.error(f"no such step: {', '.join(sorted(unknown))}; use {', '.join(step.name for step in steps)}")
    wanted = [step for step in steps if step.name in arguments.steps or not (arguments.steps or step.optional)]
    out = Path(os.environ.get("OUT") or ROOT / "build" / "device-check").resolve()
    with tempfile.TemporaryDirectory() as work:
        run = Run(out, Path(work))
        for step in wanted:
            run.step(step)
            print(json.dumps(run.summary[-1], indent=1), flush=True)
        run.report()
        return 0 if all(entry["exit"] == 0 for entry in run.summary) else 1


if __name__ == "__main__":
    sys.exit(main())
