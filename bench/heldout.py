"""The demo model on held-out snippets: accuracy, completeness, agreement of the rules, and seconds a sentence.

    python bench/heldout.py [--count 200] [--threads N]

Every configuration explains the same sentences, one at a time (``batch_size=1``) and in batches; configurations take
turns sentence by sentence, so that a noisy machine is noisy for all of them alike.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from pathlib import Path

import torch

from decompx_fast import DecompX, Explanation

ROOT = Path(__file__).resolve().parent.parent
SNIPPETS = ROOT / "tests" / "data" / "movie-snippets-heldout.tsv"

#: Name, and what is asked.
CONFIGURATIONS: dict[str, dict] = {
    "reference, absdot": {"engine": "reference"},
    "forward, absdot": {"engine": "forward"},
    "forward, absdot, bfloat16": {"engine": "forward", "dtype": "bfloat16"},
    "forward, none": {"engine": "forward", "bias": "none"},
    "adjoint, none": {"engine": "adjoint", "bias": "none"},
    "adjoint, bias_token": {"engine": "adjoint", "bias": "bias_token"},
}


def read_snippets(count: int) -> list[tuple[str, int]]:
    """The first ``count`` sentences with their labels."""
    with open(SNIPPETS, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [(row["sentence"], int(row["label"])) for row in rows[:count]]


def spearman(a: torch.Tensor, b: torch.Tensor) -> float:
    """Rank correlation of two score vectors (ties, which real scores do not have, are broken by position)."""
    ranks = torch.stack([a, b]).argsort(-1).argsort(-1).double()
    return torch.corrcoef(ranks)[0, 1].item()


def agreement(explanations: list[Explanation], others: list[Explanation]) -> dict[str, float]:
    """Rank correlation of the scores for the predicted class: the mean over the sentences, and the least."""
    found = [
        spearman(a.scores[:, b.column()], b.scores[:, b.column()]) for a, b in zip(explanations, others, strict=True)
    ]
    return {"spearman_with_absdot": statistics.mean(found), "least_spearman_with_absdot": min(found)}


def measure(explainer: DecompX, texts: list[str]) -> tuple[dict[str, list[Explanation]], dict[str, list[float]]]:
    """Each configuration on each text in turn, alone; the first text is explained once more, to warm up."""
    for arguments in CONFIGURATIONS.values():
        explainer.explain(texts[0], **arguments)
    found: dict[str, list[Explanation]] = {name: [] for name in CONFIGURATIONS}
    seconds: dict[str, list[float]] = {name: [] for name in CONFIGURATIONS}
    for text in texts:
        for name, arguments in CONFIGURATIONS.items():
            start = time.perf_counter()
            found[name].append(explainer.explain(text, **arguments))
            seconds[name].append(time.perf_counter() - start)
    return found, seconds


def measure_batches(explainer: DecompX, texts: list[str]) -> dict[str, float]:
    """Seconds a sentence when all are given at once."""
    result = {}
    for name, arguments in CONFIGURATIONS.items():
        start = time.perf_counter()
        explainer.explain(texts, **arguments)
        result[name] = (time.perf_counter() - start) / len(texts)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="how many sentences")
    parser.add_argument("--threads", type=int, default=None, help="of torch")
    parser.add_argument("--json", type=Path, default=None, help="where to write the figures")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    explainer = DecompX.demo()
    texts, labels = map(list, zip(*read_snippets(arguments.count), strict=True))
    found, seconds = measure(explainer, texts)
    batched = measure_batches(explainer, texts)
    full = found["forward, absdot"]
    report = {
        "sentences": len(texts),
        "threads": torch.get_num_threads(),
        "tokens": statistics.mean(len(e) for e in full),
        "accuracy": statistics.mean(e.predicted == label for e, label in zip(full, labels, strict=True)),
        "configurations": {
            name: {
                "median_s": statistics.median(seconds[name]),
                "mean_s": statistics.mean(seconds[name]),
                "batched_s": batched[name],
                "largest_completeness_error": max(e.completeness_error for e in found[name]),
                **agreement(found[name], full),
            }
            for name in CONFIGURATIONS
        },
    }
    print(
        f"{report['sentences']} sentences, {report['tokens']:.1f} tokens on average, {report['threads']} threads, "
        f"accuracy {report['accuracy']:.1%}"
    )
    print(
        f"{'':26s} {'median s':>9s} {'mean s':>9s} {'batched s':>9s} "
        f"{'completeness':>13s} {'Spearman':>9s} {'least':>6s}"
    )
    for name, row in report["configurations"].items():
        print(
            f"{name:26s} {row['median_s']:9.4f} {row['mean_s']:9.4f} {row['batched_s']:9.4f} "
            f"{row['largest_completeness_error']:13.1e} {row['spearman_with_absdot']:9.3f} "
            f"{row['least_spearman_with_absdot']:6.3f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
