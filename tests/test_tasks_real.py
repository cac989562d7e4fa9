"""Real weights: the embedded sentence encoder with heads that are trained here, on sentences made from lists."""

from __future__ import annotations

import pytest
import trained_heads
from trained_heads import QUESTION
from transformers import BertModel

from decompx_fast import DecompX

pytestmark = pytest.mark.slow

#: Sums of float32 numbers of up to 20, over 6 layers.
FLOAT32 = 1e-4


@pytest.fixture(scope="module")
def encoder() -> BertModel:
    return trained_heads.encoder()


@pytest.fixture(scope="module")
def tagger(encoder) -> DecompX:
    return trained_heads.tagger(encoder)


@pytest.fixture(scope="module")
def reader(encoder) -> DecompX:
    return trained_heads.reader(encoder)


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
