"""Faithfulness on several sets of rated sentences, and on three models: the demo, one of three layers, one of pairs.

    python bench/faithful_sets.py --work FOLDER [--texts 40] [--only NAMES] [--page FILE]

The two small models are trained here in minutes: the first three layers of the demo on the movie snippets that it
learnt from, and the same on pairs of a question (is this praise, is this a complaint) and a snippet, of which neither
text tells the answer alone. A run that ended early goes on where it was; the page is of all that is finished.
"""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from decompx_fast import DecompX
from decompx_fast.evaluation import evaluate
from decompx_fast.evaluation.snippets import Snippet, kept_snippets, split_snippets
from decompx_fast.result.file import atomic_write

METHODS = (
    "decompx,decompx-paths-3,decompx-paths,attn-lrp,integrated-gradients,occlusion,gradient-x-input,attention-rollout"
)
METRICS = "aopc,accuracy,comprehensiveness,sufficiency,log-odds,flip-fraction"
QUESTIONS = ("is this praise ?", "is this a complaint ?")
LAYERS, BATCH, LEARNING_RATE = 3, 32, 1e-4
SEED = 0


@dataclass(frozen=True)
class Run:
    """A model and data: names, or files in the folder of the work."""

    name: str
    model: str
    data: str
    pair_column: str | None = None
    sanity: int = 0


RUNS = (
    Run("product-snippets", "demo", "product-snippets"),
    Run("tweet-snippets", "demo", "tweet-snippets"),
    Run("pairs", "pair-model", "pairs.csv", pair_column="text"),
    Run("editorial-snippets", "demo", "editorial-snippets"),
    Run("three-layers", "three-layers", "product-snippets", sanity=4),
    Run("snippets", "demo", "snippets"),
)


def train(work: Path, name: str, texts: list[tuple[str, ...]], labels: list[int], epochs: int) -> None:
    """The first layers of the demo model, trained on texts or pairs, unless it is there."""
    if (work / name).exists():
        return
    demo = DecompX.demo()
    model, tokenizer = demo.model, demo.tokenizer
    model.bert.encoder.layer = model.bert.encoder.layer[:LAYERS]
    model.config.num_hidden_layers = LAYERS
    model.requires_grad_(True).train()
    torch.manual_seed(SEED)
    steps = epochs * (len(texts) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, steps, pct_start=0.1)
    right = 0.5
    for _ in range(steps):
        chosen = torch.randint(len(texts), (BATCH,)).tolist()
        columns = zip(*(texts[n] for n in chosen), strict=True)
        inputs = tokenizer(
            *(list(column) for column in columns), padding=True, truncation=True, max_length=48, return_tensors="pt"
        )
        target = torch.tensor([labels[n] for n in chosen])
        logits = model(**inputs).logits
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, target).backward()
        optimizer.step()
        schedule.step()
        right = 0.98 * right + 0.02 * (logits.argmax(-1) == target).float().mean().item()
    print(f"{name}: {steps} steps, {right:.3f} right in training", flush=True)
    model.eval().save_pretrained(work / name)
    tokenizer.save_pretrained(work / name)


def asked(snippets: list[Snippet]) -> tuple[list[tuple[str, ...]], list[int]]:
    """Pairs of one of two questions in turn and a snippet, and whether the answer is yes."""
    texts = [(QUESTIONS[n % 2], snippet.text) for n, snippet in enumerate(snippets)]
    return texts, [snippet.label ^ (n % 2) for n, snippet in enumerate(snippets)]


def prepare(work: Path, run: Run, epochs: int) -> None:
    """Train the model of a run and write its data, where they are not there."""
    learnt, _, heldout = split_snippets(kept_snippets())
    if run.model == "three-layers":
        train(work, run.model, [(one.text,) for one in learnt], [one.label for one in learnt], epochs)
    if run.model == "pair-model":
        train(work, run.model, *asked(learnt), epochs)
    if run.data == "pairs.csv":
        texts, labels = asked(heldout)
        with open(work / run.data, "w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["question", "text", "label"])
            rows.writerows((*pair, label) for pair, label in zip(texts, labels, strict=True))


def measure(work: Path, run: Run, texts: int, methods: str, metrics: str) -> None:
    """Go on with a run."""
    model = run.model if run.model == "demo" else str(work / run.model)
    data = str(work / run.data) if run.data.endswith(".csv") else run.data
    columns = {} if run.pair_column is None else {"text_column": "question", "pair_column": run.pair_column}
    options = {"methods": methods, "metrics": metrics, "limit": texts, "seed": SEED, "sanity": run.sanity}
    found = evaluate(data, model, out=work / run.name, truncate=True, progress=False, **options, **columns)
    atomic_write(work / run.name / "table.md", lambda temporary: Path(temporary).write_text(_section(run, found)))


def _section(run: Run, found) -> str:
    """A run as a part of the page."""
    right = f"right about {found.accuracy:.0%}"
    head = f"## {run.name}\n\nModel {run.model}, data {run.data}, {found.n_texts} texts, {right}.\n\n"
    parts = [head + found.table(), "Differences to DecompX on the same texts:\n\n" + found.difference_table()]
    parts += [f"Sanity, on {run.sanity} texts:\n\n" + found.sanity_table()] if run.sanity else []
    return "\n".join([*parts, found.seconds_table()])


def page(work: Path, metrics: list[str]) -> str:
    """What is finished, and the methods that are ahead of DecompX in each metric where the interval says so."""
    finished = [run for run in RUNS if (work / run.name / "table.md").exists()]
    lines = [
        "| Set and model | " + " | ".join(metrics) + " |",
        "| --- |" + " --- |" * len(metrics),
    ]
    for run in finished:
        methods = json.loads((work / run.name / "summary.json").read_text(encoding="utf-8"))["methods"]
        lines.append(f"| {run.name}, {run.model} | " + " | ".join(ahead(methods, metric) for metric in metrics) + " |")
    sections = [(work / run.name / "table.md").read_text(encoding="utf-8") for run in finished]
    return "\n".join([*lines, "", *sections])


def ahead(methods: dict, metric: str) -> str:
    """The methods that are better than DecompX with the whole interval of the difference, by their names."""
    lower = metric in ("accuracy", "sufficiency", "log-odds", "flip-fraction", "infidelity")
    rows = [(name, one["differences"].get(metric)) for name, one in methods.items()]
    better = [name for name, one in rows if one and (one["high"] < 0 if lower else one["low"] > 0)]
    return ", ".join(better) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder")
    parser.add_argument("--texts", type=int, default=40, help="of each set")
    parser.add_argument("--epochs", type=int, default=1, help="of training")
    parser.add_argument("--methods", default=METHODS, help="with commas between")
    parser.add_argument("--metrics", default=METRICS, help="with commas between")
    parser.add_argument("--only", help="names of runs, with commas between; none: the page alone")
    parser.add_argument("--page", type=Path, help="where the tables are put together")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        if arguments.only is None or run.name in arguments.only.split(","):
            prepare(arguments.work, run, arguments.epochs)
            measure(arguments.work, run, arguments.texts, arguments.methods, arguments.metrics)
            print(f"{run.name} is finished", flush=True)
    if arguments.page:
        arguments.page.write_text(page(arguments.work, arguments.metrics.split(",")), encoding="utf-8")


if __name__ == "__main__":
    main()
