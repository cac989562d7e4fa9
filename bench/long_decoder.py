"""Decoders of random weights on long texts, by the adjoint engine: seconds, forward passes, memory, and the plan's.

    python bench/long_decoder.py      # the whole table, each case in a process of its own: about six minutes
    python bench/long_decoder.py llama-1b-4 --tokens 512 --targets 1 64 --rounds 3
    OMP_NUM_THREADS=1 python bench/long_decoder.py llama-1b-4 --tokens 1024 --cpu-time --out some.json

A target is a token of an output at the end of the text, each read at a position of its own. The forward pass is the
model's own, without outputs of positions that nobody asked for. Both are run in turns, and the fewest seconds of each
count; ``--cpu-time`` counts those that this process computes, for a machine that others use too. Adds lines to a file
of JSON, and writes its table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from bench_adjoint import peak_bytes
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from decompx_fast import DecompX

VOCABULARY = 1000

#: The widths of Llama 3.2 1B and of SmolLM2-135M, of a few layers; the latter with a window too.
SHAPES: dict[str, dict[str, int]] = {
    "llama-1b-4": {
        **{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4},
        **{"num_attention_heads": 32, "num_key_value_heads": 8},
    },
    "smollm2-2": {
        **{"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 2},
        **{"num_attention_heads": 9, "num_key_value_heads": 3},
    },
}
SHAPES["smollm2-2-window"] = {**SHAPES["smollm2-2"], "sliding_window": 512}

#: Shape, tokens, targets and rounds of the whole table.
CASES = (
    ("llama-1b-4", 192, 1, 5),
    ("llama-1b-4", 192, 64, 2),
    ("llama-1b-4", 4096, 1, 2),
    ("smollm2-2", 8192, 1, 2),
    ("smollm2-2-window", 8192, 1, 2),
    ("smollm2-2", 32768, 1, 1),
)
RESULTS = Path(__file__).parent / "results"


def build(shape: str, tokens: int) -> nn.Module:
    torch.manual_seed(0)
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": tokens + 64, **SHAPES[shape]}
    if "sliding_window" in sizes:
        return MistralForCausalLM(MistralConfig(**sizes, **ends)).eval()
    return LlamaForCausalLM(LlamaConfig(**sizes, **ends)).eval()


def seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def measure(shape: str, tokens: int, targets: int, rounds: int, clock: Callable[[], float]) -> dict:
    """One length and number of targets, in this process."""
    explainer = DecompX(build(shape, tokens))
    ids = torch.randint(0, VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(1)).tolist()
    prompt, output = ids[: tokens - targets + 1], ids[tokens - targets + 1 :] + [0]
    fed = torch.tensor([ids])

    def forward() -> None:
        with torch.inference_mode():
            explainer.model(input_ids=fed, logits_to_keep=targets, use_cache=False)

    found = {}

    def explain() -> None:
        found["one"] = explainer.explain(prompt, continuation=output, engine="adjoint")

    explainer.explain(prompt[:64], continuation=output[:1], engine="adjoint")  # a short text, to warm up
    forward_s, explain_s, peaks = [], [], []
    for _ in range(rounds):
        forward_s.append(seconds(forward, clock))
        explain_s.append(seconds(lambda: peaks.append(peak_bytes(explain, "cpu")[1]), clock))
    plan = explainer.plan(tokens=tokens, engine="adjoint", targets=list(range(targets)))
    return {
        "shape": shape,
        "tokens": tokens,
        "targets": targets,
        "rounds": rounds,
        "forward_s": min(forward_s),
        "explain_s": min(explain_s),
        "passes": min(explain_s) / min(forward_s),
        "planned_passes": plan.passes,  # type: ignore[union-attr]
        "peak_bytes": max(peaks),
        "planned_peak_bytes": plan.peak_bytes,
        "completeness_error": found["one"].completeness_error,
        "threads": torch.get_num_threads(),
    }


def table(rows: list[dict]) -> str:
    lines = [
        "# Long texts through decoders",
        "",
        "The adjoint engine on decoders of random weights in float32, by `bench/long_decoder.py`: one explanation, "
        "with the layer check and the model's own run, in seconds and in forward passes of the model, as measured and "
        "as `plan` foretells; the peak of the process above what it held before, and that of the plan.",
        "",
        "| shape | tokens | targets | forward, s | explained, s | passes | planned | for each target | peak, GiB "
        "| planned | gap |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        peak, planned = row["peak_bytes"] / 2**30, row["planned_peak_bytes"] / 2**30
        lines.append(
            f"| {row['shape']} | {row['tokens']:,} | {row['targets']} | {row['forward_s']:.2f} "
            f"| {row['explain_s']:.2f} | {row['passes']:.2f} | {row['planned_passes']:.2f} "
            f"| {row['passes'] / row['targets']:.2f} | {peak:.2f} | {planned:.2f} | {row['completeness_error']:.1e} |"
        )
    shapes = "; ".join(
        f"{name}: d = {s['hidden_size']:,}, {s['num_hidden_layers']} layers, {s['num_attention_heads']} heads on "
        f"{s['num_key_value_heads']}, hidden {s['intermediate_size']:,}"
        + (f", window {s['sliding_window']:,}" if "sliding_window" in s else "")
        for name, s in SHAPES.items()
    )
    threads = sorted({row["threads"] for row in rows})
    return "\n".join([*lines, "", f"Shapes: {shapes}. Threads: {', '.join(map(str, threads))}."]) + "\n"


def add(row: dict, out: Path) -> None:
    """Put the numbers in their place in the file, and make the table beside it anew."""
    known = json.loads(out.read_text()) if out.is_file() else []
    key = ("shape", "tokens", "targets")
    rows = [one for one in known if any(one[name] != row[name] for name in key)] + [row]
    rows.sort(key=lambda one: tuple(one[name] for name in key))
    out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(table(rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=list(SHAPES), nargs="?", help="without one: the whole table")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--targets", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true", help="seconds of computing, not of the clock")
    parser.add_argument("--out", type=Path, default=RESULTS / "long-decoder.json")
    given = parser.parse_args()
    if given.shape is None:
        for shape, *numbers in CASES:
            command = [sys.executable, __file__, shape, "--out", str(given.out)]
            for name, number in zip(("--tokens", "--targets", "--rounds"), numbers, strict=True):
                command += [name, str(number)]
            subprocess.run(command + ["--cpu-time"] * given.cpu_time, check=True)
        return
    if given.tokens is None:
        parser.error(f"{given.shape} needs --tokens")
    clock = time.process_time if given.cpu_time else time.perf_counter
    for targets in given.targets:
        row = measure(given.shape, given.tokens, targets, given.rounds, clock)
        print(json.dumps(row), flush=True)
        add(row, given.out)


if __name__ == "__main__":
    main()
