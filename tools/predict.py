"""What the Triton kernels should reach on an H100, from their compiled code: to be compared with the first run.

    python tools/predict.py        # writes bench/results/h100-predicted.md

A prediction, not a measurement. Registers and shared memory are those in ``bench/results/compile.json``; tiles and
stages are those of ``kernels/launch.py``; sizes are those of ``bench_kernels.py`` on a GPU. The rest is arithmetic on
the assumptions below, each of which the first run can prove wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from decompx_fast.kernels import activation, functional_dots, launch  # noqa: E402

RESULTS = HERE.parent / "bench" / "results"
ARCH, TRITON = "sm_90", "3.6.0"
ITEM = {"bf16": 2, "fp32": 4}
MODES = {"bf16": "half", "fp32": "ieee", "tf32": "tf32"}  # of products
#: The sizes of ``bench_kernels.py`` on a GPU: positions, sources, hidden sizes, heads, rows of operators.
N, K, D, F, HEADS, ROWS = 512, 512, 768, 3072, 12, 64

# The device, H100 SXM: from its data sheet.
SMS, REGISTERS, SHARED_KB, MOST_WARPS = 132, 65536, 228, 64
MEMORY_B_S, TENSOR_FLOP_S, FLOAT_FLOP_S, L2_MB = 3.35e12, 989e12, 67e12, 50

# Assumed, and where the prediction is most likely wrong:
CLOCK_HZ = 1.75e9
CEILING = {"copy": 0.90, "bf16": 0.70, "fp32": 0.75}  # what a large copy and large products reach of the data sheet
L2_B_S = 7e12  # from the L2 cache to all multiprocessors
L2_USABLE = 0.6  # its part that holds a row's first read until the second: it has two halves, and the writes go there
LATENCY_S = 0.8e-6  # of a read from memory under load
ISSUE = 0.5  # of the lane instructions per second: one program per multiprocessor, with a barrier per tile
TENSOR_EFFICIENCY = {"shared": 0.85, "registers": 0.65, "ieee": 0.6}  # of a step, by where the left operand comes from
FILL_S, DRAIN_S = 1.0e-6, 0.4e-6  # of a program: its first loads, and its stores


@dataclass(frozen=True)
class Row:
    """A kernel over rows: ``reads`` of the state in its launch, least ``moves`` (reads and writes), lane
    instructions for each number over all passes (counted from the source), ``size`` of a vector."""

    case: str
    size: int
    reads: int
    moves: int
    instructions: int
    options: dict[str, Any]
    tries: tuple[str, str, str]


@dataclass(frozen=True)
class Matrix:
    """A kernel of products: ``batch`` products ``[m, l] x [l, n]``, and numbers that must be moved at the least."""

    case: str
    batch: int
    m: int
    n: int
    length: int
    moved: int
    left: str
    tries: tuple[str, str, str]


KERNELS: tuple[Row | Matrix, ...] = (
    Row("layernorm, d = 768", D, 2, 2, 26, {"whole": True}, (
        "the dots by `functional_dots` in the mixing before it: one read instead of two",
        "tiles of 16 KB with 8 warps: two programs per multiprocessor hide each other's barriers",
        "fewer rows in flight (`maxnreg`, or 96 KB more shared memory): the second read stays in L2",
    )),
    Row("bias_split, d = 768", D, 2, 2, 18, {}, (
        "chunks of the whole vector (768 in 1,024) instead of 256: one reduction per block instead of three",
        "8 warps and two programs per multiprocessor",
        "evict_first on stores only, no policy on the first read",
    )),
    Row("activation, d = 3072", F, 2, 2, 22, {"streams": activation.STREAMS}, (
        "two stages more: its tiles are a quarter as large, since vectors of a chunk take registers",
        "the dots from the product before it (`u . (W b)`), as on a CPU: one read instead of two",
        "vectors of a chunk loaded once per program, blocks of sources inside",
    )),
    Row("functional_dots, d = 768, of 8", D, 1, 1, 16, {"streams": functional_dots.STREAMS}, (
        "functionals held in registers over blocks: they are loaded for every block now",
        "the matrix units with 8 functionals padded to 16, in tf32x3",
        "8 warps and two programs per multiprocessor",
    )),
    Matrix("mixing, many rows", HEADS, N, K * D // HEADS, N, 2 * N * K * D + HEADS * N * N, "shared", (
        "tiles of 128 x 256 with 8 warps and 3 stages: a third less from L2 for each product",
        "tensor descriptors (TMA) for the panels of `p`: no address arithmetic, and multicast over the row tiles",
        "persistent programs: the next tile's first loads under this one's stores",
    )),
    Matrix("position_operator, many rows", ROWS, D, D, F, ROWS * D * D + 2 * D * F, "registers", (
        "theta on the tile of the right operand's rows in shared memory, so that both operands come from there",
        "tiles of 128 x 256: the scaled left tile meets twice as many columns",
        "two positions per program: a tile of `w_out` is used twice",
    )),
    Matrix("position_apply, many rows", ROWS, K, D, D, 2 * ROWS * K * D + ROWS * D * D, "shared", (
        "tiles of 128 x 256 with 3 stages: three column tiles instead of six read `r`",
        "persistent programs: 12 steps are too few for the first loads and the stores",
        "the update with shares by the matrix units (5 padded to 16) instead of the loop at the end",
    )),
)  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """What is predicted of one kernel in one dtype."""

    case: str
    dtype: str
    registers: int
    shared_kb: float
    programs: int
    warps: int
    in_flight_kb: float
    tile: str
    memory_mb: float
    l2_mb: float
    floor_ms: float
    predicted_ms: float
    limit: str

    @property
    def share(self) -> float:
        return self.floor_ms / self.predicted_ms


def resident(registers: int, shared_bytes: int, warps: int) -> int:
    """How many programs are on a multiprocessor at once."""
    by_registers = REGISTERS // (-(-registers // 8) * 8 * 32 * warps)
    by_shared = (SHARED_KB << 10) // (shared_bytes + (1 << 10))
    return max(1, min(by_registers, by_shared, MOST_WARPS // warps))


def predict_row(kernel: Row, dtype: str, compiled: dict[str, Any]) -> Prediction:
    block_k, block_d, warps, stages = launch.row_tile(K, kernel.size, ITEM[dtype], ARCH, **kernel.options)
    programs = resident(compiled["registers"], compiled["shared_bytes"], warps)
    numbers = N * K * kernel.size
    state = numbers * ITEM[dtype]
    in_flight = (stages - 1) * block_k * block_d * ITEM[dtype] * programs
    held = SMS * programs * K * kernel.size * ITEM[dtype] / 2  # half of a row is still to be read again, on average
    hits = min(1.0, L2_USABLE * L2_MB * 1e6 / held)
    memory = state * (kernel.moves + (kernel.reads - 1) * (1 - hits))
    rate = MEMORY_B_S * CEILING["copy"] * min(1.0, in_flight / (MEMORY_B_S / SMS * LATENCY_S))
    waves = math.ceil(N / (SMS * programs)) / (N / (SMS * programs))
    issue = numbers * kernel.instructions / (SMS * 128 * CLOCK_HZ * ISSUE)
    times = {"memory": memory / rate, "instructions": issue}
    limit = max(times, key=lambda name: times[name])
    return Prediction(
        kernel.case, dtype, compiled["registers"], compiled["shared_bytes"] / 1024, programs, warps, in_flight / 1024,
        f"{block_k} x {block_d}, {stages} stages", memory / 1e6, state * kernel.reads / 1e6,
        1e3 * kernel.moves * state / (MEMORY_B_S * CEILING["copy"]), 1e3 * times[limit] * waves, limit,
    )  # fmt: skip


def predict_matrix(kernel: Matrix, dtype: str, compiled: dict[str, Any], *, operands: str = "many") -> Prediction:
    mode = MODES[dtype]
    tile = launch.matrix_tile(mode, operands, ARCH)
    programs = resident(compiled["registers"], compiled["shared_bytes"], tile.num_warps)
    peak = {"half": TENSOR_FLOP_S, "tf32": TENSOR_FLOP_S / 2, "ieee": FLOAT_FLOP_S}[mode]
    tiles = kernel.batch * math.ceil(kernel.m / tile.block_m) * math.ceil(kernel.n / tile.block_n)
    steps = math.ceil(kernel.length / tile.block_l)
    step_flop = 2 * tile.block_m * tile.block_n * tile.block_l
    efficiency = TENSOR_EFFICIENCY["ieee" if mode == "ieee" else kernel.left]
    per_sm = math.ceil(tiles / SMS)
    # Programs on one multiprocessor share its units, and fill and drain under each other's steps.
    arithmetic = per_sm * (steps * step_flop / (peak / SMS * efficiency) + (FILL_S + DRAIN_S) / programs)
    item = ITEM.get(dtype, 4)
    l2 = tiles * steps * (tile.block_m + tile.block_n) * tile.block_l * item
    memory = kernel.moved * item
    times = {"arithmetic": arithmetic, "L2": l2 / L2_B_S, "memory": memory / (MEMORY_B_S * CEILING["copy"])}
    limit = max(times, key=lambda name: times[name])
    flops = 2 * kernel.batch * kernel.m * kernel.n * kernel.length
    ceiling = CEILING["fp32" if mode == "ieee" else "bf16"]
    floor = max(flops / (peak * ceiling), memory / (MEMORY_B_S * CEILING["copy"]))
    in_flight = (tile.stages - 1) * (tile.block_m + tile.block_n) * tile.block_l * item * programs
    return Prediction(
        f"{kernel.case}{', ieee' if mode == 'ieee' else ''}", dtype, compiled["registers"],
        compiled["shared_bytes"] / 1024, programs, tile.num_warps, in_flight / 1024,
        f"{tile.block_m} x {tile.block_n} x {tile.block_l}, {tile.stages} stages", memory / 1e6, l2 / 1e6,
        1e3 * floor, 1e3 * times[limit], limit,
    )  # fmt: skip


def predictions(sections: dict[str, Any]) -> list[Prediction]:
    """Every kernel in bfloat16 and in float32, from the compilations of :data:`TRITON`."""
    compiled, found = of_arch(sections), []
    for kernel in KERNELS:
        for dtype in ITEM:
            if isinstance(kernel, Row):
                found.append(predict_row(kernel, dtype, compiled[kernel.case, dtype]))
            else:
                case = kernel.case + (", ieee" if dtype == "fp32" else "")
                found.append(predict_matrix(kernel, dtype, compiled[case, dtype]))
    return found


def of_arch(sections: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """What was compiled for :data:`ARCH`, by case and dtype."""
    return {(r["case"], r["dtype"]): r for r in sections[TRITON]["rows"] if r["arch"] == ARCH}


def render(found: list[Prediction], whole: list[str]) -> str:
    """The prediction as Markdown; ``whole``: the lines about whole explanations."""
    lines = [
        "# What the Triton kernels should reach on an H100: a prediction",
        "",
        f"Made by `python tools/predict.py` from `compile.json` (Triton {TRITON}, {ARCH}). **Nothing is measured.**",
        f"Sizes are those of `bench_kernels.py`: N = {N}, K = {K}, d = {D}, f = {F}, {HEADS} heads, {ROWS} operators.",
        "",
        "Assumed of an H100 SXM: 132 multiprocessors with 65,536 registers and 228 KB of shared memory, 3.35 TB/s,",
        f"989 TFLOP/s dense bfloat16, 67 TFLOP/s float32, {L2_MB} MB of L2, {CLOCK_HZ / 1e9} GHz. Guessed; first to be",
        f"doubted: a large copy reaches {CEILING['copy']:.0%}, large products {CEILING['bf16']:.0%} (bfloat16) and",
        f"{CEILING['fp32']:.0%} (float32) of that;",
        f"L2 gives {L2_B_S / 1e12:g} TB/s, and {L2_USABLE:.0%} of it holds what is read a second time; a read takes "
        f"{LATENCY_S * 1e6:g} us; {ISSUE:.0%} of the issue",
        f"slots are used; a step of matrix products runs at {TENSOR_EFFICIENCY['shared']:.0%} of the units' rate "
        f"({TENSOR_EFFICIENCY['registers']:.0%} with an operand",
        f"from registers, {TENSOR_EFFICIENCY['ieee']:.0%} without matrix units); a program's first loads take "
        f"{FILL_S * 1e6:g} us and its stores {DRAIN_S * 1e6:g} us.",
        "",
        "The floor is what `bench_kernels.py` calls so: least bytes or operations at the rate of copy or product.",
        "`in flight` is what a multiprocessor has asked of memory at once: "
        f"{MEMORY_B_S / SMS * LATENCY_S / 1024:.0f} KB are needed for its part of the bandwidth.",
        "",
        "| kernel | dtype | registers | shared KB | programs x warps per SM | tile | in flight KB | memory MB "
        "| from L2 MB | floor ms | predicted ms | of the ceiling | limited by |",
        "| --- | --- | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for p in found:
        lines.append(
            f"| {p.case} | {p.dtype} | {p.registers} | {p.shared_kb:.0f} | {p.programs} x {p.warps} | {p.tile} | "
            f"{p.in_flight_kb:.0f} | {p.memory_mb:.0f} | {p.l2_mb:.0f} | {p.floor_ms:.3f} | {p.predicted_ms:.3f} | "
            f"{p.share:.0%} | {p.limit} |"
        )
    lines += ["", *whole, "## What to try first", ""]
    for kernel in KERNELS:
        lines += [f"**{kernel.case.partition(',')[0]}**", ""]
        lines += [f"{n}. {text}." for n, text in enumerate(kernel.tries, 1)] + [""]
    return "\n".join(lines)


def main() -> None:
    from predict_whole import render_wholes, wholes

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "h100-predicted.md")
    arguments = parser.parse_args()
    sections = json.loads((RESULTS / "compile.json").read_text(encoding="utf-8"))
    beside = arguments.out.with_name(arguments.out.name + ".part")
    whole = render_wholes(wholes(of_arch(sections)))
    beside.write_text(render(predictions(sections), whole), encoding="utf-8")
    beside.replace(arguments.out)


if __name__ == "__main__":
    main()
