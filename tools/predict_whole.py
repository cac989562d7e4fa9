"""How long whole explanations should take on an H100: operations by the plans, bytes and launches by what was counted.

Operations are those of the plans of the engines. Bytes of the forward engine are passes over the state, kernel by
kernel, at the rates that :mod:`predict` finds for the compiled kernels. Launches, and the bytes of PyTorch's own
operations on single positions, are those that ``tests/test_device_resident.py`` counts, which also keeps them from
growing. The host starts launches while the device works: the longer of both is what an explanation takes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import torch  # noqa: E402
from predict import (  # noqa: E402
    CEILING,
    KERNELS,
    MEMORY_B_S,
    TENSOR_FLOP_S,
    Matrix,
    Row,
    predict_matrix,
    predict_row,
)

from decompx_fast.config import DecompXConfig  # noqa: E402
from decompx_fast.engines.adjoint.plan import AdjointPlan  # noqa: E402
from decompx_fast.engines.forward.plan import Plan, plan  # noqa: E402
from decompx_fast.engines.shape import ModelShape  # noqa: E402
from decompx_fast.kernels.launch import FEW_ROWS  # noqa: E402
from decompx_fast.ops import registry  # noqa: E402

GPU = torch.device("cuda", 0)
MEMORY_BYTES = 80 << 30

#: Launches of an explanation: of each layer but one, of all else, and of each further input (whose first attention and
#: last row are taken one by one); the most that are counted.
LAUNCHES = {"direct": (104, 340, 11), "operator": (401, 302, 11), "adjoint": (137, 259, 0)}

#: Of one launch, on the host; with a CUDA graph nothing.
LAUNCH_S = 5e-6

#: What PyTorch's operations other than products read and write for a layer, in numbers ``[b, i, d]`` of float32, where
#: ``f = 4 d``: the model's own run, its linearisation and checks, and what they do of a state of eight tokens; with the
#: way back.
PASSES = {"forward": 239, "adjoint": 329}

#: Forward passes in which the model runs, and its layers are computed a second time.
FORWARD_PASSES = 2

PRODUCTS_FLOP_S = {"bf16": TENSOR_FLOP_S * CEILING["bf16"], "tf32": TENSOR_FLOP_S / 2 * CEILING["bf16"]}
DTYPES = {"bf16": torch.bfloat16, "tf32": torch.float32}
COPY_B_S = MEMORY_B_S * CEILING["copy"]

BERT = ModelShape(layers=12, d=768, f=3072, heads=12, kv_heads=12, head_size=64)
MINILM = ModelShape(layers=6, d=384, f=1536, heads=12, kv_heads=12, head_size=32)


@dataclass(frozen=True)
class Question:
    """What is asked: inputs at once, and perhaps the least rate or share, or the most seconds, that is the goal."""

    name: str
    shape: ModelShape
    n: int
    batch: int = 1
    seconds: float | None = None
    share: float | None = None
    workspace: int | None = None  # bytes
    rate: tuple[float, float] | None = None  # by the forward engine, and by the adjoint

    def goal(self, engine: str, dtype: str) -> str:
        if self.rate is not None:
            return f"{self.rate[engine == 'adjoint']:,.0f} a second"
        if engine == "adjoint":
            return ""
        if self.share is not None:
            return f"{self.share:.0%} of the ceiling" if dtype == "bf16" else ""
        return "" if self.seconds is None else f"{self.seconds:g} s"


QUESTIONS = (
    Question("BERT-base, 128 tokens", BERT, 128),
    Question("BERT-base, 512 tokens", BERT, 512, share=0.75),
    Question("the same, a workspace of 4 GiB", BERT, 512, share=0.75, workspace=4 << 30),
    Question("BERT-base, 2,048 tokens", BERT, 2048),
    Question("BERT-base, 4,096 tokens", BERT, 4096, seconds=5.0),
    Question("MiniLM, 256 sentences of 28 tokens", MINILM, 28, 256, rate=(3000, 10000)),
)


@dataclass(frozen=True)
class Whole:
    """What is predicted of one question.

    Attributes:
        parts: of the device, ``(name, seconds, what it waits for)``.
        flops: of the products, that must be done.
        launches: at most.
    """

    question: Question
    engine: str
    path: str
    dtype: str
    parts: tuple[tuple[str, float, str], ...]
    flops: int
    launches: int

    @property
    def device_s(self) -> float:
        """With CUDA graphs."""
        return sum(seconds for _, seconds, _ in self.parts)

    @property
    def seconds(self) -> float:
        return max(self.device_s, self.launches * LAUNCH_S)

    @property
    def share(self) -> float:
        """Of what large products reach."""
        return self.flops / PRODUCTS_FLOP_S[self.dtype] / self.seconds

    @property
    def reached(self) -> bool | None:
        """Whether the goal is; ``None`` without one."""
        question = self.question
        if not question.goal(self.engine, self.dtype):
            return None
        if question.rate is not None:
            return question.batch / self.seconds >= question.rate[self.engine == "adjoint"]
        if question.share is not None:
            return self.share >= question.share
        return question.seconds is not None and self.seconds <= question.seconds

    @property
    def bound(self) -> str:
        """What takes the time, and the two largest parts."""
        if self.launches * LAUNCH_S > self.device_s:
            return f"launches ({self.launches:,} x {LAUNCH_S * 1e6:g} us)"
        by_kind: dict[str, float] = {}
        for _, seconds, kind in self.parts:
            by_kind[kind] = by_kind.get(kind, 0) + seconds
        kinds = sorted(by_kind, key=lambda kind: -by_kind[kind])
        largest = sorted(self.parts, key=lambda part: -part[1])[:2]
        told = ", ".join(f"{kind} {by_kind[kind] / self.device_s:.0%}" for kind in kinds)
        return f"{told}; {', '.join(f'{name} {seconds / self.device_s:.0%}' for name, seconds, _ in largest)}"


def slower(name: str, flops: float, moved: float, dtype: str) -> tuple[str, float, str]:
    """A part that a library's products, or memory, takes the longer time for."""
    times = {"operations": flops / PRODUCTS_FLOP_S[dtype], "bytes": moved / COPY_B_S}
    kind = max(times, key=lambda kind: times[kind])
    return name, times[kind], kind


def kernel(name: str) -> Any:
    return next(found for found in KERNELS if found.case.startswith(name))


@dataclass(frozen=True)
class Rates:
    """Seconds of the library's kernels, from their compiled code."""

    compiled: dict[tuple[str, str], dict[str, Any]]
    dtype: str

    def rows(self, name: str, numbers: float, extra_moves: int = 0) -> tuple[str, float, str]:
        """A kernel over rows of so many numbers in all, by what a number takes at the sizes of ``bench_kernels.py``;
        ``extra_moves``: of what it reads beside the state."""
        row: Row = kernel(name)
        dtype = "bf16" if self.dtype == "bf16" else "fp32"
        found = predict_row(row, dtype, self.compiled[row.case, dtype])
        each = found.predicted_ms / 1e3 / (512 * 512 * row.size) * (row.moves + extra_moves) / row.moves
        return name, each * numbers, "bytes" if found.limit == "memory" else found.limit

    def products(self, name: str, times: int, **sizes: int) -> tuple[str, float, str]:
        """A kernel of products of these sizes, so many times."""
        matrix: Matrix = replace(kernel(name), **sizes)
        few = "few" if matrix.m <= FEW_ROWS else "many"
        case = matrix.case.replace("many", few) + (", tf32" if self.dtype == "tf32" else "")
        found = predict_matrix(
            matrix, self.dtype, self.compiled[case, "bf16" if self.dtype == "bf16" else "fp32"], operands=few
        )
        kind = {"arithmetic": "operations", "memory": "bytes", "L2": "L2"}[found.limit]
        return name, times * found.predicted_ms / 1e3, kind


def forward(question: Question, dtype: str, compiled: dict[tuple[str, str], dict[str, Any]]) -> Whole:
    """AbsDot by the forward engine."""
    found = planned(question, DTYPES[dtype])
    costs, s = found.costs, question.shape
    rates, flops = Rates(compiled, dtype), found.flops
    numbers = costs.positions * costs.k * s.d  # of the state
    state, whole = numbers * costs.item, s.layers - (not costs.keeps_rows)
    dense, ratio = whole - costs.starts_diagonal, s.f / s.d
    width = costs.k * s.head_size
    moved = costs.batch * (2 * costs.n * width * s.heads + s.heads * costs.n**2)
    parts = [
        slower("first attention", flops["first attention"], 3 * state, dtype),
        slower("projections", flops["projections"], dense * 4 * state, dtype),
        rates.products("mixing", dense, batch=s.heads * costs.batch, m=costs.n, n=width, length=costs.n, moved=moved),
        slower("last row", flops["last row"], state, dtype),
        own_passes(question, "forward", dtype),
    ]
    if found.path == "operator":
        each = {"batch": costs.positions}
        parts += [
            rates.products(
                "position_operator", whole, **each, m=s.d, n=s.d, length=s.f,
                moved=costs.positions * s.d**2 + 2 * s.d * s.f,
            ),
            rates.products(
                "position_apply", whole, **each, m=costs.k, n=s.d, length=s.d,
                moved=2 * numbers + costs.positions * s.d**2,
            ),
            rates.rows("functional_dots", 2 * whole * numbers),
            ("copies", whole * (3 + 2) * state / COPY_B_S, "bytes"),  # the branch is added, the result put back
        ]  # fmt: skip
    else:
        parts += [
            slower("network", flops["position-wise"], whole * (2 + 2 * ratio) * state, dtype),
            rates.rows("activation", whole * ratio * numbers),
            rates.rows("bias_split", 2 * whole * numbers, extra_moves=1),  # the residual
            rates.rows("layernorm", 2 * whole * numbers),
            ("copies", 2 * whole * 2 * state / COPY_B_S, "bytes"),  # of the branch to the state
        ]
    each_layer, rest, each_input = LAUNCHES[found.path]
    blocks = blocks_of(found)
    launches = blocks * each_layer * (s.layers - 1) + rest + each_input * (costs.batch - 1)
    own = pulled_back(question).flops["forward pass"] * FORWARD_PASSES
    return Whole(question, "forward", found.path, dtype, tuple(parts), found.total_flops + own, launches)


def adjoint(question: Question) -> Whole:
    """NoBias of one target by the adjoint engine, whose constants are in float32."""
    found = pulled_back(question)
    parts = (
        ("products", found.total_flops / PRODUCTS_FLOP_S["tf32"], "operations"),
        own_passes(question, "adjoint", "tf32", flops=False),
    )
    each_layer, rest, _ = LAUNCHES["adjoint"]
    launches = each_layer * (question.shape.layers - 1) + rest
    return Whole(question, "adjoint", "", "tf32", parts, found.total_flops, launches)


def own_passes(question: Question, engine: str, dtype: str, *, flops: bool = True) -> tuple[str, float, str]:
    """The model's own run and what else is done for single positions."""
    s = question.shape
    moved = PASSES[engine] * s.layers * question.batch * question.n * s.d * 4
    products = pulled_back(question).flops["forward pass"] * FORWARD_PASSES if flops else 0
    seconds = moved / COPY_B_S + products / PRODUCTS_FLOP_S["tf32"]
    return "single positions", seconds, "bytes" if moved / COPY_B_S > seconds / 2 else "operations"


def blocks_of(found: Plan) -> int:
    """In how many blocks a layer is taken, at the most."""
    costs = found.costs
    rows = found.blocks.operator_rows if found.path == "operator" else found.blocks.direct_rows
    return max(-(-costs.positions // costs.rows_at_once(rows)), -(-costs.k // found.blocks.sources))


def planned(question: Question, dtype: torch.dtype) -> Plan:
    """The forward engine's plan on a GPU that has the kernels."""
    there: Callable[[torch.device], tuple[bool, str]] = lambda device: (True, "as on a GPU")  # noqa: E731
    usable = {"triton": replace(registry._backends["triton"], probe=there)}
    with mock.patch.dict(registry._backends, usable):
        return plan(
            question.shape,
            question.n,
            batch=question.batch,
            dtype=dtype,
            workspace_bytes=question.workspace,
            device=GPU,
            available=MEMORY_BYTES,
        )


def pulled_back(question: Question) -> AdjointPlan:
    config = DecompXConfig(bias="none")
    return AdjointPlan(question.shape, question.n, question.batch, 1, torch.float32, config, GPU, MEMORY_BYTES)


def wholes(compiled: dict[tuple[str, str], dict[str, Any]]) -> list[Whole]:
    """All questions, by both engines."""
    found = []
    for question in QUESTIONS:
        found += [forward(question, dtype, compiled) for dtype in DTYPES]
        found.append(adjoint(question))
    return found


def render_wholes(found: list[Whole]) -> list[str]:
    """The prediction as lines of Markdown."""
    direct, operator, pulled = (LAUNCHES[path] for path in ("direct", "operator", "adjoint"))
    lines = [
        "## Whole explanations: predicted, never run",
        "",
        "Operations are those of the engines' plans, and take what large products take: 692 TFLOP/s in bfloat16, half",
        "of that with TF32; the kernels above take what is predicted of them; passes over the state go at the rate of",
        "a copy. The model's own run and its linearisation are in it. The forward engine shares by AbsDot, all",
        "classes; the adjoint engine answers NoBias for one target, always with constants in float32.",
        f"Launches are counted (`tests/test_device_resident.py`): {direct[0]} for a layer of short texts,",
        f"{operator[0]} for a block of a layer by one matrix for each position, {pulled[0]} for a layer of the adjoint",
        f"engine. One takes the host {LAUNCH_S * 1e6:g} us, while the device works; what takes longer is told. With",
        "CUDA graphs, which are not there, it would be the device's time.",
        "`of the ceiling`: the least time of the operations over all of it.",
        "",
        "| explanation | engine | dtype | TFLOP | device ms | launches | ms | a second | of the ceiling | goal "
        "| bound by |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for w in found:
        goal = w.question.goal(w.engine, w.dtype)
        if goal:
            goal += ": reached" if w.reached else ": missed"
        engine = f"{w.engine}, {w.path}" if w.path else w.engine
        lines.append(
            f"| {w.question.name} | {engine} | {w.dtype} | {w.flops / 1e12:,.3g} | {w.device_s * 1e3:,.3g} | "
            f"{w.launches:,} | {w.seconds * 1e3:,.3g} | {w.question.batch / w.seconds:,.3g} | {w.share:.0%} | {goal} | "
            f"{w.bound} |"
        )
    return [*lines, ""]
