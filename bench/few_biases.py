"""How far NoBias is from AbsDot where a model has few biases: Qwen2's, of queries, keys and values.

    python bench/few_biases.py      # writes bench/results/few-biases.md: some minutes

NoBias is answered by the adjoint engine, in about two forward passes, and tells beside the scores what the biases of
each place add (``bias_sites``); AbsDot takes the whole decomposition. Those of queries and keys are in the attention
weights, and only those of the values are anything to share. Models are of random weights, with value biases of so many
parts of the values' own size, drawn from a normal distribution.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from decompx_fast import DecompX, Explanation

RESULTS = Path(__file__).resolve().parent / "results" / "few-biases.md"
VOCABULARY, TOKENS, TEXTS, MODELS = 1000, 48, 8, 3
SIZES = {
    "hidden_size": 192,
    "intermediate_size": 576,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}

#: Root mean square of the value biases, as parts of that of the values without them.
SCALES = (0.01, 0.03, 0.1, 0.3, 1.0)


def build(scale: float, seed: int) -> nn.Module:
    """A model whose values have biases of this size; those of queries and keys are as large as queries and keys."""
    torch.manual_seed(seed)
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    spread = {"initializer_range": SIZES["hidden_size"] ** -0.5}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, **SIZES, **spread, **ends)).eval()
    for layer in model.model.layers:
        attention = layer.self_attn
        # What enters is normed, so that a map of such weights gives numbers of size 1.
        for part, size in ((attention.q_proj, 1.0), (attention.k_proj, 1.0), (attention.v_proj, scale)):
            nn.init.normal_(part.bias, std=size)
    return model


def compare(absdot: Explanation, nobias: Explanation) -> dict[str, float]:
    """One text and its likeliest next token."""
    shared, left = absdot.scores[:, 0].double().numpy(), nobias.scores[:, 0].double().numpy()
    sites = np.array([float(site.value[0]) for site in nobias.bias_sites])
    mass = np.abs(shared).sum()
    parts = (np.abs(scores) / np.abs(scores).sum() for scores in (shared, left))
    return {
        "rank": spearmanr(shared, left).statistic,
        "overlap": 1 - 0.5 * np.abs(np.subtract(*parts)).sum(),
        "first": float(np.abs(shared).argmax() == np.abs(left).argmax()),
        "left out": abs(sites.sum()) / mass,
        "by place": np.abs(sites).sum() / mass,
        "gap": abs(shared.sum() - left.sum() - sites.sum()) / mass,
    }


def measure(scale: float) -> dict[str, list[float]]:
    """All models and texts of one size of biases."""
    found: dict[str, list[float]] = {}
    for seed in range(MODELS):
        explainer = DecompX(build(scale, seed))
        generator = torch.Generator().manual_seed(seed)
        for ids in torch.randint(0, VOCABULARY, (TEXTS, TOKENS), generator=generator).tolist():
            absdot = explainer.explain(ids, engine="forward", bias="absdot")
            one = compare(absdot, explainer.explain(ids, engine="adjoint", bias="none"))
            for name, value in one.items():
                found.setdefault(name, []).append(value)
    return found


def table(rows: dict[float, dict[str, list[float]]]) -> str:
    lines = [
        "# NoBias beside AbsDot where biases are few",
        "",
        f"By `bench/few_biases.py`: {MODELS} random Qwen2 models ({SIZES['num_hidden_layers']} layers, "
        f"d = {SIZES['hidden_size']}) with {TEXTS} random texts of {TOKENS} tokens each, the likeliest next token; "
        "means over texts, and the smallest in brackets. What is said of AbsDot's mass is relative to the sum of its "
        "absolute scores.",
        "",
        "| value biases / values | rank correlation | mass on the same tokens | same first token "
        "| biases' sum / mass | each place's, absolute / mass | NoBias + places - AbsDot |",
        "| --: | --: | --: | --: | --: | --: | --: |",
    ]
    for scale, found in rows.items():
        mean = {name: statistics.fmean(values) for name, values in found.items()}
        lines.append(
            f"| {scale} | {mean['rank']:.3f} ({min(found['rank']):.3f}) "
            f"| {mean['overlap']:.3f} ({min(found['overlap']):.3f}) | {mean['first']:.0%} "
            f"| {mean['left out']:.3f} | {mean['by place']:.3f} | {max(found['gap']):.0e} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    out: Path = parser.parse_args().out
    text = table({scale: measure(scale) for scale in SCALES})
    out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
