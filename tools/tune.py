"""Measures the launch choices of the Triton kernels on this GPU, and writes the fastest to a JSON file.

    python tools/tune.py --out launches.json           # some minutes
    decompx_fast.ops.use_launches("launches.json")     # in the program that is to use them

Each candidate is timed on the ops themselves, at the sizes of a BERT-base with 512 positions; those that do not fit the
device's registers or shared memory drop out. Rows are tuned for all row kernels together, matrix tiles for each way of
multiplying and each kind of operand.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
import triton

from decompx_fast import ops
from decompx_fast.kernels import launch
from decompx_fast.ops.backends import launches

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

from timing import median_seconds, rotating

T = TypeVar("T")

D, F, HEADS = 768, 3072, 12
ROW_CANDIDATES = [
    launch.RowChoice(tile, stages, warps)
    for tile in (16 << 10, 32 << 10, 64 << 10)
    for stages in (2, 3, 4, 5)
    for warps in (8, 16)
]
MATRIX_CANDIDATES = [
    launch.MatrixLaunch(m, n, length, warps, stages)
    for m in (64, 128)
    for n in (64, 128, 256)
    for length in (16, 32, 64)
    for warps in (4, 8)
    for stages in (2, 3, 4, 5)
]


def fastest(candidates: Iterable[T], seconds: Callable[[T], float]) -> tuple[T, float]:
    """The candidate that takes the least time, and its time; one that cannot be launched takes for ever.

    Raises:
        RuntimeError: if none can be launched.
    """
    timed = [(seconds(candidate), n, candidate) for n, candidate in enumerate(candidates)]
    best = min(timed, key=lambda entry: entry[:2])
    if math.isinf(best[0]):
        raise RuntimeError("none of the candidates can be launched on this device")
    return best[2], best[0]


def row_calls(device: str, n: int) -> list[Callable[[], object]]:
    """The bandwidth kernels, in bfloat16, on states that no cache holds."""
    half = {"device": device, "dtype": torch.bfloat16}
    states = rotating(lambda: (torch.randn(1, n, n, D, **half),), device)
    hidden = rotating(lambda: (torch.randn(1, n, n // 4, F, **half),), device)
    scale = torch.rand(1, n, device=device) + 0.5
    weight, bias = torch.randn(D, **half), torch.randn(D, **half)
    slope, bias_f = torch.rand(1, n, F, **half), torch.randn(F, **half)
    return [
        lambda: ops.layernorm_(next(states)[0], scale, weight, bias, backend="triton"),
        lambda: ops.bias_split_(next(states)[0], bias, backend="triton"),
        lambda: ops.activation_(next(hidden)[0], slope, bias_f, backend="triton"),
    ]


def matrix_calls(device: str, n: int, mode: str, kind: str) -> list[Callable[[], object]]:
    """The matrix kernels for operands of one kind."""
    dtype = torch.bfloat16 if mode == "half" else torch.float32
    precision = "ieee" if mode == "half" else mode
    rows = launch.FEW_ROWS if kind == "few" else n
    width = D // HEADS - (1 if kind == "unaligned" else 0)
    alpha = torch.rand(1, HEADS, rows, n, device=device).to(dtype)
    p = torch.randn(1, n, n, HEADS, width, device=device).to(dtype)
    return [lambda: ops.mixing(alpha, p, precision=precision, backend="triton")]


def timer(calls: list[Callable[[], object]], device: str, arch: str) -> Callable[[launch.Choices], float]:
    """Seconds of all calls under some choices."""

    def seconds(measured: launch.Choices) -> float:
        launch.adopt(arch, measured)
        try:
            return sum(median_seconds(call, device) for call in calls)
        except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError):
            return math.inf
        finally:
            launch.adopt(arch, None)

    return seconds


def tune(device: str, n: int) -> launch.Choices:
    """The fastest choices, beginning with those that are built in, which stay where nothing is faster."""
    arch = launch.arch_of(torch.device(device))
    best = launch.reasoned(arch)
    seconds = timer(row_calls(device, n), device, arch)
    rows, time_s = fastest([best.rows, *ROW_CANDIDATES], lambda rows: seconds(replace(best, rows=rows)))
    print(f"rows: {rows}, {1e3 * time_s:.3f} ms", flush=True)
    matrix = dict(best.matrix)
    for key, built_in in best.matrix.items():
        seconds = timer(matrix_calls(device, n, *key), device, arch)
        choice, time_s = fastest(
            [built_in, *MATRIX_CANDIDATES],
            lambda tile, key=key, seconds=seconds: seconds(replace(best, matrix={**best.matrix, key: tile})),
        )
        matrix[key] = choice
        print(f"{'/'.join(key)}: {choice}, {1e3 * time_s:.3f} ms", flush=True)
    return launch.Choices(rows, matrix)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--positions", type=int, default=512)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(
            "there is no GPU here that PyTorch can use: launch choices are measured on the GPU they are for"
        )
    device = torch.device("cuda")
    content = {
        "format": launches.FORMAT,
        "device": launches.device_name(device),
        "triton": triton.__version__,
        "choices": launches.to_json(tune("cuda", arguments.positions)),
    }
    beside = arguments.out.with_name(arguments.out.name + ".part")
    beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    beside.replace(arguments.out)


if __name__ == "__main__":
    main()
