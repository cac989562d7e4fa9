"""Long inputs on models of random weights in the shapes of well-known ones: time, and the peak of the whole process.

    python bench/long_inputs.py modernbert --positions 8192 --layers 22
    python bench/long_inputs.py longformer --positions 2048 8192 --layers 12
    python bench/long_inputs.py sentences --positions 2048 --layers 22
    python bench/long_inputs.py all      # these three, of all layers that the models have: a quarter of an hour

``modernbert`` and ``longformer`` ask the adjoint engine for one class under NoBias, beside a plain forward pass of the
model; ``sentences`` asks the forward engine for full AbsDot with 100 sources on ModernBERT. Each length runs in a
process of its own, once, without a warm-up. The numbers go to ``bench/results/long-inputs-cpu.json``, each in the place
of an older one of the same case, and the table beside it is made of that file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from adjoint_models import CLASSES, HEADS, VOCABULARY, D, modernbert
from bench_adjoint import peak_bytes
from transformers import LongformerConfig, LongformerForSequenceClassification

from decompx_fast import DecompX
from decompx_fast.config import DecompXConfig
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.terms import Terms
from decompx_fast.linearize.linearization import linearize

RESULTS = Path(__file__).resolve().parent / "results" / "long-inputs-cpu.json"

#: Sources of ``sentences``.
SOURCES = 100


def longformer(positions: int, layers: int) -> torch.nn.Module:
    """Longformer-base's shape: windows of 256 tokens to each side, and the first token global."""
    config = LongformerConfig(
        hidden_size=D,
        num_attention_heads=HEADS,
        intermediate_size=3072,
        num_hidden_layers=layers,
        max_position_embeddings=positions + 2,
        vocab_size=VOCABULARY,
        num_labels=CLASSES,
        attention_window=512,
        pad_token_id=1,
        sep_token_id=2,
    )
    return LongformerForSequenceClassification(config)


#: Positions and layers of ``all``.
FULL = {"modernbert": (8192, 22), "longformer": (8192, 12), "sentences": (2048, 22)}

MODELS = {"modernbert": modernbert, "longformer": longformer, "sentences": modernbert}


def timed(run: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    found = run()
    return time.perf_counter() - start, found


def one_class(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> float:
    """NoBias of one class by the adjoint engine, the model's own forward pass among it.

    Returns:
        How far scores and the biases' part are from the logit, relative to the sum of absolute scores.
    """
    linearization = linearize(model, inputs, record=True)
    found = adjoint.attribute(
        linearization, DecompXConfig(bias="bias_token"), terms=Terms.of_classes(1, CLASSES, torch.eye(CLASSES)[:1])
    )
    total = found.scores.double().sum(1) + found.bias_token.double()
    return ((total - linearization.logits[:, :1]).abs().max() / found.scores.double().abs().sum()).item()


def by_sentences(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> float:
    """AbsDot of all classes with :data:`SOURCES` sources by the forward engine; returns as :func:`one_class`."""
    ids = inputs["input_ids"][0].tolist()
    groups = [n * SOURCES // len(ids) for n in range(len(ids))]
    found = DecompX(model, engine="forward").explain(ids, sources=groups)
    return found.completeness_error / found.scores.abs().sum(0).max().item()


def measure(case: str, positions: int, layers: int) -> dict[str, Any]:
    """One length, in this process."""
    torch.manual_seed(0)
    model = MODELS[case](positions, layers).eval()
    inputs = {"input_ids": torch.randint(5, VOCABULARY, (1, positions))}
    explain = by_sentences if case == "sentences" else one_class
    took: list[tuple[float, float]] = []
    peak, above = peak_bytes(lambda: took.append(timed(lambda: explain(model, inputs))), "cpu")
    with torch.inference_mode():
        forward_s, _ = timed(lambda: model(**inputs))
    ((explain_s, error),) = took
    return {
        "case": case,
        "positions": positions,
        "layers": layers,
        "sources": SOURCES if case == "sentences" else positions,
        "explain_s": explain_s,
        "forward_s": forward_s,
        "ratio": explain_s / forward_s,
        "peak_bytes": peak,
        "peak_above_model_bytes": above,
        "completeness_error": error,
        "threads": torch.get_num_threads(),
        "processor": processor(),
        "torch": torch.__version__,
    }


def processor() -> str:
    """As the system names it, with the instruction set that matters here."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


TITLES = {
    "modernbert": "ModernBERT-base's shape, adjoint engine, one class, NoBias",
    "longformer": "Longformer-base's shape, adjoint engine, one class, NoBias",
    "sentences": f"ModernBERT-base's shape, forward engine, AbsDot, {SOURCES} sources",
}


def markdown(rows: list[dict[str, Any]]) -> str:
    """The tables of all rows."""
    lines = [
        "# Long inputs on a CPU",
        "",
        "What is measured, and how: `bench/long_inputs.py`. Random weights, float32. Seconds are those of the clock, "
        "on a machine that others used too: ratios are of runs one after the other; memory does not depend on it.",
    ]
    for case, title in TITLES.items():
        own = sorted((row for row in rows if row["case"] == case), key=lambda row: (row["layers"], row["positions"]))
        if not own:
            continue
        lines += ["", f"## {title}", ""]
        lines += ["| processor | threads | layers | tokens | s | forward pass s | ratio | peak MiB | above | error |"]
        lines += ["| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |"]
        for row in own:
            mib = row["peak_bytes"] / 2**20, row["peak_above_model_bytes"] / 2**20
            lines.append(
                f"| {row['processor']} | {row['threads']} | {row['layers']} | {row['positions']:,} | "
                f"{row['explain_s']:.1f} | {row['forward_s']:.1f} | {row['ratio']:.2f} | {mib[0]:,.0f} | "
                f"{mib[1]:,.0f} | {row['completeness_error']:.0e} |"
            )
    return "\n".join(lines) + "\n"


def run_apart(case: str, positions: int, layers: int, out: Path) -> None:
    """Measure in a process of its own, and put the numbers in their place in the file."""
    command = [sys.executable, __file__, case, "--positions", str(positions), "--layers", str(layers), "--one"]
    new = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    same = ("case", "positions", "layers")
    known = json.loads(out.read_text()) if out.is_file() else []
    rows = [row for row in known if any(row[key] != new[key] for key in same)] + [new]
    out.write_text(json.dumps(rows, indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(rows))
    print(json.dumps(new), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("case", choices=[*MODELS, "all"])
    parser.add_argument("--positions", type=int, nargs="+", help="of each run; not for all")
    parser.add_argument("--layers", type=int, help="of the model; not for all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of numbers")
    parser.add_argument("--one", action="store_true", help="measure in this process and print JSON")
    args = parser.parse_args()
    if args.case == "all":
        for case, (positions, layers) in FULL.items():
            run_apart(case, positions, layers, args.out)
        return
    if args.positions is None or args.layers is None:
        parser.error(f"{args.case} needs --positions and --layers")
    if args.one:
        print(json.dumps(measure(args.case, args.positions[0], args.layers)))
        return
    for n in args.positions:
        run_apart(args.case, n, args.layers, args.out)


if __name__ == "__main__":
    main()
