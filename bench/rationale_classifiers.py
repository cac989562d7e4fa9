"""Prediction performance as DecompX's paper has it: a Transformer is trained on the rationales of each method.

    PYTHONPATH=. python bench/rationale_classifiers.py --work FOLDER [--runs movies,tweets,products,editorials]

The folders are those of ``bench/faithful_sets.py``, whose results hold each method's order of the tokens of each text:
of these the rationale is the first 20 percent, with the special tokens around them. What is trained is the demo model
with a new head, all of its weights, for each method and each of five folds of the texts, on the rationales of the other
four; it predicts the labels of the fold's texts from their rationales. It has the same start and the same batches for
each method. Beside them stand all tokens of the texts, and tokens drawn at random. Numbers go to
``bench/results/faithfulness/rationale-classifiers.json``, and the table beside it is made of that file.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import torch
from torch import nn

from decompx_fast import DecompX
from decompx_fast.evaluation import all_methods
from decompx_fast.evaluation.bootstrap import bootstrap_means, estimate
from decompx_fast.evaluation.masking import count_of
from decompx_fast.evaluation.rationales import FOLDS, folds_of

RESULTS = Path(__file__).resolve().parent / "results" / "faithfulness" / "rationale-classifiers.json"

RUNS = "movies,tweets,products,editorials"
PERCENT = 20
EPOCHS, BATCH, RATE = 4, 16, 5e-5
SEED = 0

#: Rationales of no method.
WHOLE, DRAWN = "all tokens", "tokens at random"


class Texts:
    """The same texts for all methods, with labels: ``ids[method][n]`` are of text ``n``, special tokens among them."""

    def __init__(self, work: Path, runs: Sequence[str], tokenizer: Any) -> None:
        self.ids: dict[str, list[list[int]]] = {}
        self.labels: list[int] = []
        self.texts: list[tuple[str, ...]] = []
        self.counts: dict[str, int] = {}
        draw = random.Random(SEED)
        for run in runs:
            rows = pyarrow.parquet.read_table(work / run / "results.parquet").to_pylist()
            for method in dict.fromkeys(row["method"] for row in rows):
                own = sorted((row for row in rows if row["method"] == method), key=lambda row: row["index"])
                found = self.ids.setdefault(method, [])
                if not self.counts.get(run):
                    self.counts[run] = len(own)
                    for row in own:
                        self.labels.append(row["label"])
                        self.texts.append(tuple(row["tokens"]))
                        self._add(WHOLE, row, row["order"], 100, tokenizer)
                        self._add(DRAWN, row, draw.sample(row["order"], len(row["order"])), PERCENT, tokenizer)
                found += [rationale(row, row["order"], PERCENT, tokenizer) for row in own]
        whole = {name: found for name, found in self.ids.items() if len(found) == len(self.labels)}
        if len(whole) < len(self.ids):
            print(f"left out, since not in every run: {', '.join(set(self.ids) - set(whole))}", flush=True)
        self.ids = whole

    def _add(self, name: str, row: dict[str, Any], order: Sequence[int], percent: int, tokenizer: Any) -> None:
        self.ids.setdefault(name, []).append(rationale(row, order, percent, tokenizer))


def rationale(row: dict[str, Any], order: Sequence[int], percent: int, tokenizer: Any) -> list[int]:
    """The token ids of the most important tokens and of the special ones, in the text's order."""
    kept = {*order[: count_of(percent, len(order))], *(n for n, special in enumerate(row["special"]) if special)}
    return tokenizer.convert_tokens_to_ids([row["tokens"][n] for n in sorted(kept)])


def fresh_model() -> nn.Module:
    """The demo model with a new pooler and classifier."""
    model = DecompX.demo().model
    torch.manual_seed(SEED)
    for module in (model.bert.pooler.dense, model.classifier):
        nn.init.normal_(module.weight, std=model.config.initializer_range)
        nn.init.zeros_(module.bias)
    return model


def together(ids: Sequence[list[int]], pad: int) -> dict[str, torch.Tensor]:
    length = max(map(len, ids))
    rows = torch.tensor([[*own, *[pad] * (length - len(own))] for own in ids])
    return {
        "input_ids": rows,
        "attention_mask": (torch.arange(length) < torch.tensor([[len(own)] for own in ids])).long(),
    }


def train(model: nn.Module, ids: Sequence[list[int]], labels: Sequence[int], pad: int) -> None:
    model.requires_grad_(True).train()
    torch.manual_seed(SEED)
    draw = random.Random(SEED)
    steps = EPOCHS * -(-len(ids) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.1)
    for _ in range(EPOCHS):
        order = draw.sample(range(len(ids)), len(ids))
        for start in range(0, len(ids), BATCH):
            chosen = order[start : start + BATCH]
            logits = model(**together([ids[n] for n in chosen], pad)).logits
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, torch.tensor([labels[n] for n in chosen])).backward()
            optimizer.step()
            schedule.step()
    model.eval()


def right(texts: Texts, name: str, pad: int) -> list[int]:
    """For each text, whether the model that was trained on the rationales of other folds is right about its own."""
    numbers = {text: n for n, text in enumerate(dict.fromkeys(texts.texts))}  # equal texts are in one fold
    fold = folds_of(np.array([numbers[text] for text in texts.texts]), seed=SEED)
    found = [0] * len(texts.labels)
    for held_out in range(FOLDS):
        learnt = [n for n in range(len(found)) if fold[n] != held_out]
        model = fresh_model()
        train(model, [texts.ids[name][n] for n in learnt], [texts.labels[n] for n in learnt], pad)
        with torch.inference_mode():
            for n in (n for n in range(len(found)) if fold[n] == held_out):
                logits = model(**together([texts.ids[name][n]], pad)).logits
                found[n] = int(logits.argmax().item() == texts.labels[n])
    return found


def table(report: dict[str, Any]) -> str:
    """As Markdown, the best first."""
    rows = {name: np.array(found, dtype=float) for name, found in report["right"].items()}
    known = all_methods()
    others = [name for name in rows if name in known and not name.startswith("decompx")]
    best = max(others, key=lambda name: rows[name].mean())

    def shown(values: np.ndarray) -> str:
        mean, low, high = estimate(values, bootstrap_means(values[:, None], seed=SEED)[:, 0])
        return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"

    lines = [
        "# Transformers trained on rationales\n",
        f"`bench/rationale_classifiers.py`: {sum(report['texts'].values())} texts "
        f"({', '.join(f'{n} {name}' for name, n in report['texts'].items())}), the {report['percent']} % of their "
        "tokens that each method finds most important. For each method and fold the demo model with a new head is "
        f"trained on the rationales of the other folds ({report['epochs']} passes), and asked about the labels of this "
        "fold's. Its encoder has learnt the task from other texts, so that levels are high; differences between "
        "methods are what the table is for. In brackets: 95 % intervals, by a bootstrap over texts. The difference is "
        f"to {known[best].label}, the best method that is not DecompX.\n",
        "| Rationales | Accuracy | Difference |",
        "| --- | ---: | ---: |",
    ]
    for name in sorted(rows, key=lambda name: -rows[name].mean()):
        difference = "" if name == best else shown(rows[name] - rows[best])
        label = known[name].label if name in known else name
        lines.append(f"| {label} | {shown(rows[name]).replace('+', '')} | {difference} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="the folder of faithful_sets.py")
    parser.add_argument("--runs", default=RUNS, help="with commas between")
    parser.add_argument("--out", type=Path, default=RESULTS, help="of the numbers; the table is beside it")
    arguments = parser.parse_args()
    tokenizer = DecompX.demo().tokenizer
    texts = Texts(arguments.work, arguments.runs.split(","), tokenizer)
    report: dict[str, Any] = {"texts": texts.counts, "percent": PERCENT, "epochs": EPOCHS, "seed": SEED, "right": {}}
    for name in texts.ids:
        report["right"][name] = right(texts, name, tokenizer.pad_token_id)
        print(f"{name}: {sum(report['right'][name]) / len(texts.labels):.3f}", flush=True)
    arguments.out.write_text(json.dumps(report) + "\n", encoding="utf-8")
    arguments.out.with_suffix(".md").write_text(table(report), encoding="utf-8")


if __name__ == "__main__":
    main()
