"""A decoder of random weights on long texts, by the adjoint engine: seconds, forward passes, memory, and the plan's.

    python bench/long_decoder.py llama-1b-4 --tokens 4096 --rounds 2
    python bench/long_decoder.py llama-1b-4 --tokens 512 --targets 1 64
    python bench/long_decoder.py smollm2-2 --tokens 32768

A target is a token of an output at the end of the text, each read at a position of its own. The forward pass is the
model's own, without outputs of positions that nobody asked for. Adds lines to a file of JSON, and writes its table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from bench_adjoint import peak_bytes
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from decompx_fast import DecompX

VOCABULARY = 1000

#: The widths of Llama 3.2 1B and of SmolLM2-135M, of a few layers.
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
RESULTS = Path(__file__).parent / "results"


def build(shape: str, tokens: int) -> nn.Module:
    torch.manual_seed(0)
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=tokens + 64, **SHAPES[shape], **ends)
    return LlamaForCausalLM(config).eval()


def seconds(run) -> float:  # type: ignore[no-untyped-def]
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(shape: str, tokens: int, targets: int, rounds: int) -> dict:
    """One length and number of targets: medians, and ratios of neighbouring runs."""
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
        forward_s.append(seconds(forward))
        start = time.perf_counter()
        peaks.append(peak_bytes(explain, "cpu")[1])
        explain_s.append(time.perf_counter() - start)
    plan = explainer.plan(tokens=tokens, engine="adjoint", targets=list(range(targets)))
    return {
        "shape": shape,
        "tokens": tokens,
        "targets": targets,
        "rounds": rounds,
        "forward_s": statistics.median(forward_s),
        "explain_s": statistics.median(explain_s),
        "passes": statistics.median(b / a for a, b in zip(forward_s, explain_s, strict=True)),
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
        for name, s in SHAPES.items()
    )
    threads = sorted({row["threads"] for row in rows})
    return "\n".join([*lines, "", f"Shapes: {shapes}. Threads: {', '.join(map(str, threads))}."]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=list(SHAPES))
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--targets", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "long-decoder.json")
    given = parser.parse_args()
    for targets in given.targets:
        row = measure(given.shape, given.tokens, targets, given.rounds)
        print(json.dumps(row), flush=True)
        known = json.loads(given.out.read_text()) if given.out.is_file() else []
        key = ("shape", "tokens", "targets")
        rows = [one for one in known if any(one[name] != row[name] for name in key)] + [row]
        rows.sort(key=lambda one: tuple(one[name] for name in key))
        given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        given.out.with_suffix(".md").write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
