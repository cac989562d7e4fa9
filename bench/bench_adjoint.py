"""The adjoint engine on models of random weights: time and peak memory, beside a plain forward pass and the floor.

    python bench/bench_adjoint.py --positions 512 2048 8192     # a table, each length in a process of its own
    python bench/bench_adjoint.py --positions 128 512 --reference      # beside the reference engine; takes minutes
    python bench/bench_adjoint.py --model modernbert --layers 4 --positions 2048 8192 --cpu-time
    pytest bench/bench_adjoint.py --benchmark-only              # for pytest-benchmark; long inputs are marked slow

The floor is the least arithmetic that the answer takes in linear memory (``least_flops``), over the rate of a large
matrix product measured in the same process. Times are medians, ratios medians over rounds in which everything is run;
memory is the peak of the whole process, on a GPU of its allocator. ``--cpu-time`` counts the seconds that this process
computes, for a CPU that others use too: with one thread they are what the wall clock says where nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from adjoint_models import CLASSES, SUBJECTS, D, Subject
from timing import synchronize

from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.terms import Terms
from decompx_fast.linearize.linearization import linearize

LAYERS = 12


#: What tells the time; see ``--cpu-time``.
clock: Callable[[], float] = time.perf_counter


def median_seconds(run: Callable[[], object], repeats: int, device: str) -> float:
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = clock()
        run()
        synchronize(device)
        times.append(clock() - start)
    return statistics.median(times)


def matmul_flops_per_s(device: str) -> float:
    """The ceiling: a square product large enough that nothing but arithmetic counts."""
    n = 8192 if device == "cuda" else 2048
    a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
    a @ b
    return 2 * n**3 / median_seconds(lambda: a @ b, 5, device)


def plain_forward(_subject: Subject, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.inference_mode():
        return model(**inputs).logits


def explain(subject: Subject, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """From inputs to scores of every class; the model's own forward pass is part of it, and is recorded."""
    return adjoint.attribute(linearize(model, inputs, record=True), subject.config).scores


def process_bytes(key: str) -> int:
    """``VmRSS`` or its peak ``VmHWM``, of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def peak_bytes(run: Callable[[], object], device: str) -> tuple[int, int]:
    """The peak in all, and above what was there before."""
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present
    before = process_bytes("VmRSS")
    run()
    peak = process_bytes("VmHWM")
    return peak, peak - before


def explain_one_class(subject: Subject, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The same for one class alone."""
    linearization = linearize(model, inputs, record=True)
    direction = torch.eye(CLASSES, device=linearization.logits.device)[:1]
    terms = Terms.of_classes(len(linearization.logits), CLASSES, direction)
    return adjoint.attribute(linearization, subject.config, terms=terms).scores


def explain_by_reference(subject: Subject, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The same question, one vector for each pair of positions."""
    with torch.inference_mode():
        return reference.attribute(linearize(model, inputs), subject.config).scores


def measure(
    subject: Subject, positions: int, layers: int, repeats: int, device: str, with_reference: bool
) -> dict[str, float]:
    """One length, in this process; the reference engine is run once, since it takes minutes.

    With ``repeats=1``, for the longest inputs, nothing is run twice, and the first run is the one that counts.
    """
    model, inputs = subject.build(positions, layers, device)
    first_s: list[float] = []

    def do(run: Callable[..., object]) -> Callable[[], object]:
        return partial(run, subject, model, inputs)

    peak, above = peak_bytes(lambda: first_s.append(median_seconds(do(explain), 1, device)), device)
    if repeats > 1:
        do(plain_forward)()
    # In turns, so that a machine whose speed changes is as fast for one as for the other.
    rounds: list[dict[str, float]] = []
    for _ in range(repeats):
        runs = {"forward": plain_forward, "adjoint": explain, "one_class": explain_one_class}
        seconds = {"adjoint": first_s[0]} if repeats == 1 else {}
        for name, run in runs.items():
            if name not in seconds:
                seconds[name] = median_seconds(do(run), 1, device)
        rounds.append(seconds)
    adjoint_s, one_class_s, forward_s = (
        statistics.median(seconds[name] for seconds in rounds) for name in ("adjoint", "one_class", "forward")
    )
    beside = {}
    if with_reference:
        reference_s = median_seconds(do(explain_by_reference), 1, device)
        beside = {"reference_s": reference_s, "reference_over_adjoint": reference_s / adjoint_s}
    ceiling = matmul_flops_per_s(device)
    floor_s = subject.least_flops(positions, layers, CLASSES) / ceiling
    return {
        "positions": positions,
        "layers": layers,
        "adjoint_s": adjoint_s,
        "forward_s": forward_s,
        "adjoint_over_forward": statistics.median(seconds["adjoint"] / seconds["forward"] for seconds in rounds),
        "one_class_s": one_class_s,
        "one_class_over_forward": statistics.median(seconds["one_class"] / seconds["forward"] for seconds in rounds),
        "peak_bytes": peak,
        "peak_above_model_bytes": above,
        "matmul_flops_per_s": ceiling,
        "floor_s": floor_s,
        "floor_over_adjoint": floor_s / adjoint_s,
        "forward_floor_over_forward": subject.forward_flops(positions, layers) / ceiling / forward_s,
        **beside,
    }


def fitted_exponent(rows: list[dict[str, float]], key: str) -> float:
    """``p`` of ``key ~ positions^p``, by least squares of the logarithms."""
    x = [math.log(row["positions"]) for row in rows]
    y = [math.log(row[key]) for row in rows]
    return statistics.linear_regression(x, y).slope


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"


def report(rows: list[dict[str, float]], args: argparse.Namespace) -> None:
    print(f"{device_name(args.device)}, {torch.get_num_threads()} threads, torch {torch.__version__}, float32")
    unit = ", CPU seconds" if args.cpu_time else ""
    title = f"{SUBJECTS[args.model].title}, {args.layers} layers, d = {D}, {CLASSES} classes"
    print(f"{title}; medians of {args.repeats}{unit}")
    print(
        f"{'N':>6} {'adjoint s':>10} {'forward s':>10} {'ratio':>6} {'one class':>9} "
        f"{'peak MiB':>9} {'above MiB':>10} {'floor':>6}"
    )
    for row in rows:
        mib = row["peak_bytes"] / 2**20, row["peak_above_model_bytes"] / 2**20
        print(
            f"{row['positions']:>6} {row['adjoint_s']:>10.3f} {row['forward_s']:>10.3f} "
            f"{row['adjoint_over_forward']:>6.2f} {row['one_class_over_forward']:>9.2f} "
            f"{mib[0]:>9.0f} {mib[1]:>10.0f} {row['floor_over_adjoint']:>6.1%}"
        )
    for row in rows:
        if "reference_s" in row:
            print(
                f"N = {row['positions']}: reference engine {row['reference_s']:.1f} s, "
                f"{row['reference_over_adjoint']:.0f} times the adjoint engine"
            )
    if len(rows) > 1:
        for key in ("adjoint_s", "forward_s", "peak_above_model_bytes"):
            print(f"{key} grows as N^{fitted_exponent(rows, key):.2f}")


def main() -> None:
    global clock
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=list(SUBJECTS), default="bert")
    parser.add_argument("--positions", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--reference", action="store_true", help="also time the reference engine, once per length")
    parser.add_argument("--cpu-time", action="store_true", help="count the seconds of computing, not of the clock")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--one", action="store_true", help="measure in this process and print JSON")
    args = parser.parse_args()
    if args.one:
        if args.cpu_time:
            clock = time.process_time
        options = args.layers, args.repeats, args.device, args.reference
        print(json.dumps([measure(SUBJECTS[args.model], n, *options) for n in args.positions]))
        return
    rows = []
    for n in args.positions:
        options = ["--layers", str(args.layers), "--repeats", str(args.repeats), "--device", args.device]
        options += ["--model", args.model]
        options += [flag for flag in ("--reference", "--cpu-time") if vars(args)[flag[2:].replace("-", "_")]]
        command = [sys.executable, __file__, "--one", "--positions", str(n), *options]
        rows += json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    report(rows, args)
    if args.json is not None:
        run = {"device": device_name(args.device), "torch": torch.__version__, "dtype": "float32", "rows": rows}
        args.json.write_text(json.dumps(run, indent=1) + "\n")


POSITIONS = [128, 512, pytest.param(2048, marks=pytest.mark.slow), pytest.param(8192, marks=pytest.mark.slow)]


@pytest.mark.parametrize("what", [plain_forward, explain], ids=["forward", "adjoint"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_adjoint_speed(benchmark, positions, what):
    device, subject = "cuda" if torch.cuda.is_available() else "cpu", SUBJECTS["bert"]
    model, inputs = subject.build(positions, LAYERS, device)
    if what is plain_forward:
        flops = subject.forward_flops(positions, LAYERS)
    else:
        flops = subject.least_flops(positions, LAYERS, CLASSES)
    floor_s = flops / matmul_flops_per_s(device)

    def run():
        what(subject, model, inputs)
        synchronize(device)

    benchmark.extra_info.update(device=device_name(device), positions=positions, floor_s=floor_s)
    benchmark.pedantic(run, rounds=3, warmup_rounds=1)


if __name__ == "__main__":
    main()
