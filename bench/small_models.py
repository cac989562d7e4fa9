"""Small classifiers of other shapes than the demo's, trained in minutes: the first three layers of the demo model.

- three-layers: sentiment, on the movie snippets that the demo model learnt from.
- two-reviews: pairs of two snippets that are both for their film or both against it, and which. (Whether two agree, or
  which of two is for its film, is not learnt in minutes: the model stays with one answer.)
- shuffled-labels: sentiment of a few snippets whose labels are shuffled, learnt by heart (for sanity checks).

What they learn is known to the demo model's encoder in part, so that one pass over the texts is enough. Each says how
often it is right about texts of the development part, which it has not seen, in ``accuracy.json``.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from decompx_fast import DecompX
from decompx_fast.evaluation.snippets import Snippet, kept_snippets, split_snippets

LAYERS, BATCH, MAX_TOKENS = 3, 32, 56
DEVELOPMENT = 400
#: A model that is right about fewer of the texts that it learnt has not learnt them.
LEARNT = 0.65
SEED = 0

Texts = tuple[str, ...]
Task = tuple[list[Texts], list[int]]


def sentiment(snippets: Sequence[Snippet]) -> Task:
    return [(one.text,) for one in snippets], [one.label for one in snippets]


def two_reviews(snippets: Sequence[Snippet]) -> Task:
    """Each with another one of the same label, which is that of the pair."""
    draw = random.Random(SEED)
    of_label = {label: [one for one in snippets if one.label == label] for label in (0, 1)}
    return [(one.text, draw.choice(of_label[one.label]).text) for one in snippets], [one.label for one in snippets]


def shuffled(snippets: Sequence[Snippet]) -> Task:
    texts, labels = sentiment(snippets)
    random.Random(SEED).shuffle(labels)
    return texts, labels


@dataclass(frozen=True)
class Small:
    """How a model is made.

    Attributes:
        task: texts and labels from snippets.
        labels: the names of the classes.
        texts: how many are learnt; ``None``: all.
        epochs: passes over them.
        rate: of learning, at its highest.
        clear: those of which the rating is so far from 0 are learnt.
    """

    task: Callable[[Sequence[Snippet]], Task]
    labels: tuple[str, str]
    texts: int | None = None
    epochs: int = 1
    rate: float = 1e-4
    clear: float = 0.0


MODELS = {
    "three-layers": Small(sentiment, ("NEGATIVE", "POSITIVE")),
    "two-reviews": Small(two_reviews, ("NEGATIVE", "POSITIVE"), texts=4000, clear=0.5),
    "shuffled-labels": Small(shuffled, ("NEGATIVE", "POSITIVE"), texts=160, epochs=36, rate=2e-4),
}


def ready(name: str, folder: Path) -> Path:
    """The folder of a model, trained unless it is there."""
    place, small = folder / name, MODELS[name]
    if place.exists():
        return place
    learnt, development, _ = split_snippets(kept_snippets())
    begin = time.monotonic()
    model, tokenizer = _new(small)
    texts, labels = small.task([one for one in learnt if abs(one.rating) >= small.clear][: small.texts])
    steps = _train(model, tokenizer, texts, labels, small)
    about: dict[str, Any] = {"steps": steps, "texts": len(texts), "seconds": round(time.monotonic() - begin)}
    about["learnt"] = accuracy(model, tokenizer, texts[:DEVELOPMENT], labels[:DEVELOPMENT])
    about["development"] = accuracy(model, tokenizer, *small.task(development[:DEVELOPMENT]))
    print(f"{name}: {about}", flush=True)
    if about["learnt"] < LEARNT:
        raise RuntimeError(f"{name} has learnt nothing ({about}): methods that explain it cannot be compared")
    partial = folder / f"{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    (partial / "accuracy.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    partial.rename(place)
    return place


def _new(small: Small) -> tuple[Any, Any]:
    demo = DecompX.demo()
    model = demo.model
    model.bert.encoder.layer = model.bert.encoder.layer[:LAYERS]
    model.config.num_hidden_layers = LAYERS
    model.config.id2label = dict(enumerate(small.labels))
    model.config.label2id = {label: n for n, label in enumerate(small.labels)}
    return model, demo.tokenizer


def _train(model: Any, tokenizer: Any, texts: list[Texts], labels: list[int], small: Small) -> int:
    """Batches are of texts of like length, in a random order; returns how many steps were made."""
    model.requires_grad_(True).train()
    torch.manual_seed(SEED)
    draw = random.Random(SEED)
    by_length = sorted(range(len(texts)), key=lambda n: sum(len(part) for part in texts[n]))
    batches = [by_length[n : n + BATCH] for n in range(0, len(by_length), BATCH)]
    steps = small.epochs * len(batches)
    optimizer = torch.optim.AdamW(model.parameters(), small.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, small.rate, steps, pct_start=0.1)
    for _ in range(small.epochs):
        draw.shuffle(batches)
        for chosen in batches:
            logits = model(**_inputs(tokenizer, [texts[n] for n in chosen])).logits
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, torch.tensor([labels[n] for n in chosen])).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    return steps


def accuracy(model: Any, tokenizer: Any, texts: list[Texts], labels: list[int]) -> float:
    """How often the model is right."""
    right = 0
    with torch.inference_mode():
        for start in range(0, len(texts), BATCH):
            found = model(**_inputs(tokenizer, texts[start : start + BATCH])).logits.argmax(-1).tolist()
            right += sum(a == b for a, b in zip(found, labels[start : start + BATCH], strict=True))
    return right / len(texts)


def _inputs(tokenizer: Any, texts: list[Texts]) -> Any:
    columns = [list(column) for column in zip(*texts, strict=True)]
    return tokenizer(*columns, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
