"""How nearly the columns of a language model add up to its logits, on real prompts: writes a table.

    python bench/generation.py [--out bench/results/generation.md] [--limit N] [--model FOLDER]

The model is the embedded one (see the README), or one in a folder. Each prompt is gone on with by three tokens, each a
column. The gap of a column is that between its sum and the model's own logit; the share is of the largest logit.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

from decompx_fast import DecompX

PROMPTS = {
    "facts": (
        *("The capital of France is", "The capital of Japan is", "Water is made of hydrogen and"),
        *("The largest planet is", "The author of Hamlet is", "The opposite of hot is", "Ice melts when it gets"),
        *("Two plus two is", "The sun rises in the", "A week has seven"),
    ),
    "copying": (
        *("The key is 7421. The key is", "A B C A B", "red green blue red green", "John met Mary. Mary met"),
        *("Anna has a cat. Anna's cat is a", "1, 2, 3, 4, 5, 6,", "one two three one two"),
        *("Paris is in France. Berlin is in Germany. Paris is in", "x = 5. So x is", "La la la la la"),
    ),
    "negation": (
        *("The film was not good, it was", "He is not tall, he is", "It is never cold here, it is always"),
        *("She did not say yes, she said", "The glass is not full, it is", "Not today, but"),
        *("This is not true, it is", "I do not like it, I", "No one was there, the room was", "Not black but"),
    ),
    "code": (
        *("def add(a, b):\n    return a +", "for i in range(", "import numpy as", "if x is not", "print('hello"),
        *("x = [1, 2, 3]\nprint(len(", "while True:\n   ", "class Dog:\n    def __init__("),
        *("return None if", "int main() {"),
    ),
    "French": (
        *("La capitale de la France est", "Bonjour, je m'appelle", "Le chat est sur la", "Il fait tres"),
        *("Je suis", "Un, deux, trois,", "Merci", "L'eau est", "Paris est la capitale de la"),
        *("Le contraire de grand est",),
    ),
}

WRITTEN = 3


def gaps_of(explainer: DecompX, prompts: Sequence[str]) -> list[float]:
    """The gap of each column, as a share of the largest logit of its output."""
    shares: list[float] = []
    for prompt in prompts:
        found = explainer.explain(prompt, generate=WRITTEN)
        logits = found.target_logits.double()
        shares += ((found.totals - logits).abs() / logits.abs().max()).tolist()
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "generation.md")
    parser.add_argument("--limit", type=int, default=10, help="prompts of each kind")
    parser.add_argument("--model", help="a folder, in the place of the embedded model")
    given = parser.parse_args()
    explainer = DecompX.demo_lm() if given.model is None else DecompX.from_pretrained(given.model)
    lines = [
        "# Columns of a language model against its own logits",
        "",
        f"SmolLM2-135M-Instruct, {WRITTEN} tokens written after each prompt, each a column, by `bench/generation.py`; "
        f"torch {torch.__version__}, {platform.machine()}. The gap is that between a column's sum and the model's "
        "logit, as a share of the largest of the output's logits.",
        "",
        "| weights | prompts | number | columns | median gap | largest gap |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        model = DecompX(explainer.model.to(dtype), explainer.tokenizer)
        for kind, prompts in PROMPTS.items():
            some = prompts[: given.limit]
            shares = gaps_of(model, some)
            numbers = f"{len(some)} | {len(shares)} | {statistics.median(shares):.1e} | {max(shares):.1e}"
            lines.append(f"| {name} | {kind} | {numbers} |")
            given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")  # so far


if __name__ == "__main__":
    main()
