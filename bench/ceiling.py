"""The forward engine over lengths, batches and groups as a share of what the processor's products allow, and its two
paths in turns.

    PYTHONPATH=. python bench/ceiling.py [--threads 1] [--rounds 3] [--only lengths,groups,paths]

The ceiling of a dtype is the fastest large product of a library, measured before each run of the engine: a neighbour
who slows the machine slows both. The floor of a run is its plan's operations at that rate, of the model's own pass at
that of float32; beside it stand the bytes that layers cannot help to move, at the rate of a large copy in the same
turns. Models have random weights in BERT's shapes, three layers, all biases shared by AbsDot. Numbers go to
``bench/results/ceiling.json``, and the table beside it is made of that file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from long_inputs import processor
from transformers import BertConfig, BertForSequenceClassification

from decompx_fast import DecompX
from decompx_fast.config import DecompXConfig
from decompx_fast.engines.forward import run as forward
from decompx_fast.linearize.linearization import linearize
from decompx_fast.ops import network_is_fused

RESULTS = Path(__file__).resolve().parent / "results" / "ceiling.json"

SHAPES = {"base": (768, 12, 3072), "minilm": (384, 12, 1536)}
LAYERS = 3
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Case:
    """Sizes of one measurement; ``sources``: groups of neighbouring tokens, ``None`` for each token its own."""

    part: str
    shape: str
    tokens: int
    batch: int = 1
    sources: int | None = None
    path: str = "auto"


CASES = (
    *(Case("lengths", "base", n) for n in (28, 64, 128, 256, 512)),
    *(Case("lengths", "minilm", 28, batch=b) for b in (1, 4, 16)),
    *(Case("lengths", "minilm", n) for n in (128, 512)),
    Case("groups", "base", 512, sources=64),
    Case("groups", "base", 1024, sources=64),
    *(Case("paths", "minilm", 256, sources=k, path=path) for k in (128, 192, 256) for path in ("direct", "operator")),
    *(Case("paths", "minilm", 384, path=path) for path in ("direct", "operator")),
)


def build(case: Case) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    d, heads, f = SHAPES[case.shape]
    config = BertConfig(
        num_hidden_layers=LAYERS,
        hidden_size=d,
        num_attention_heads=heads,
        intermediate_size=f,
        vocab_size=1000,
        max_position_embeddings=max(case.tokens, 512),
        num_labels=2,
    )
    model = BertForSequenceClassification(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(0.1 * torch.randn_like(parameter))  # no bias is zero
    return model, {"input_ids": torch.randint(0, 1000, (case.batch, case.tokens))}


def groups(case: Case) -> torch.Tensor | None:
    if case.sources is None:
        return None
    return (torch.arange(case.tokens) * case.sources // case.tokens).expand(case.batch, -1)


def model_flops(case: Case) -> int:
    """Of the model's own pass."""
    (d, _, f), n = SHAPES[case.shape], case.tokens
    return case.batch * LAYERS * (8 * n * d**2 + 4 * n * d * f + 4 * n**2 * d)


def moved_bytes(case: Case, dtype: torch.dtype) -> int:
    """What whole layers move at the least, the first counted as half of one, since it reads no state: values read from
    the state and what is mixed added to it, what the network reads and writes, each with a norm, 12 vectors of ``d`` in
    all; and of ``f`` four where the hidden layer is formed."""
    d, _, f = SHAPES[case.shape]
    vectors = case.batch * case.tokens * (case.sources or case.tokens)
    hidden = 0 if network_is_fused("cpu", dtype) else 4 * f
    return round((LAYERS - 1.5) * vectors * (12 * d + hidden) * dtype.itemsize)


def measure(case: Case, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """One case: its floor and its time in each round, seconds of the clock."""
    from conftest import copy_bytes_per_s, matmul_flops_per_s  # of the benchmarks: the tests have one of that name, too

    model, inputs = build(case)
    planned = DecompX(model).plan(
        case.tokens, sources=case.sources, batch=case.batch, engine="forward", dtype=dtype, path=case.path
    )
    own = {"decomposition": planned.total_flops, "model": model_flops(case), "bytes": moved_bytes(case, dtype)}
    found: dict[str, list[float]] = {name: [] for name in ("seconds", "floor", "moving")}
    for turn in range(rounds + 1):
        ceiling = matmul_flops_per_s("cpu", dtype)
        single = ceiling if dtype is torch.float32 else matmul_flops_per_s("cpu", torch.float32)
        copied = copy_bytes_per_s("cpu")
        start = time.perf_counter()
        linearization = linearize(model, inputs, record=True)
        forward.attribute(linearization, DecompXConfig(), dtype=dtype, sources=groups(case), path=case.path)
        seconds = time.perf_counter() - start
        if turn:  # the first is for caches
            found["seconds"].append(seconds)
            found["floor"].append(own["decomposition"] / ceiling + own["model"] / single)
            found["moving"].append(own["bytes"] / copied)
    return {**asdict(case), "dtype": str(dtype).removeprefix("torch."), "chosen": planned.path, **own, **found}


def table(report: dict[str, Any]) -> str:
    """As Markdown."""
    lines = [
        "# Shares of the ceiling\n",
        f"`bench/ceiling.py`, {report['processor']}, {report['threads']} thread(s), three layers, all biases by "
        "AbsDot. Floor: the operations of the decomposition and of the model's own pass, at the rate of the fastest "
        "large product between the runs. Moving: what whole layers cannot help to read and write, at the rate of a "
        "large copy between the runs; a processor does some of it while it multiplies. Medians of rounds, ratios "
        "within each.",
    ]
    heads = {"lengths": "Lengths and batches", "groups": "Groups of tokens", "paths": "The two paths"}
    for part, title in heads.items():
        rows = [row for row in report["rows"] if row["part"] == part]
        if not rows:
            continue
        lines += [
            f"\n## {title}\n",
            "| shape | tokens | sources | batch | dtype | path | s | floor, s | share of the ceiling | with moving |",
            "| --- | ---: | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: |",
        ]
        for row in rows:
            rounds = list(zip(row["seconds"], row["floor"], row["moving"], strict=True))
            share = statistics.median(floor / seconds for seconds, floor, _ in rounds)
            both = statistics.median((floor + moving) / seconds for seconds, floor, moving in rounds)
            lines.append(
                f"| {row['shape']} | {row['tokens']} | {row['sources'] or row['tokens']} | {row['batch']} | "
                f"{row['dtype']} | {row['chosen']} | {statistics.median(row['seconds']):.3g} | "
                f"{statistics.median(row['floor']):.3g} | {share:.0%} | {both:.0%} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="lengths,groups,paths", help="parts, with commas between")
    parser.add_argument("--out", type=Path, default=RESULTS, help="of the numbers; the table is beside it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report: dict[str, Any] = {"processor": processor(), "threads": arguments.threads, "rows": []}
    for case in CASES:
        for dtype in DTYPES if case.part in arguments.only.split(",") else ():
            report["rows"].append(measure(case, dtype, arguments.rounds))
            arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            arguments.out.with_suffix(".md").write_text(table(report), encoding="utf-8")
            print(table(report).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
