"""The synthetic tasks with known causes: the causes are what the answer is made from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import known_causes as bench

COUNT, QUESTIONS = 50, 3
TASKS = {task.name: task for task in bench.TASKS}


def drawn(model: str, name: str):
    """Texts as lists, with what is asked, where it is read, the answer and the places of the causes."""
    ids, places, answers, causes = bench.batch(model, TASKS[name], COUNT, QUESTIONS, seed=5)
    for row, text in enumerate(ids.tolist()):
        for q, place in enumerate(places.tolist()):
            yield text, text[place], place, answers[row, q].item(), causes[row, q].tolist()


@pytest.mark.parametrize("model", ["Llama", "BERT"])
def test_what_is_copied_is_the_cause(model):
    for text, asked, _, answer, causes in drawn(model, "copy"):
        assert causes == [asked - bench.PLACES.start + 1] and text[causes[0]] == answer


@pytest.mark.parametrize("model", ["Llama", "BERT"])
def test_the_value_behind_the_key_is_the_cause(model):
    for text, asked, place, answer, (cause,) in drawn(model, "look up"):
        keys = [k for k in range(1, 13) if text[k] == asked]
        assert keys == [cause - 1] and text[cause] == answer and place not in (cause, cause - 1)


@pytest.mark.parametrize("model", ["Llama", "BERT"])
def test_the_word_and_the_truth_value_are_the_causes(model):
    seen = set()
    for text, asked, _, answer, (word, truth) in drawn(model, "negate"):
        assert text[word - 1] == asked and truth == word + 1 and text[word] in (bench.IS, bench.NOT)
        said = {bench.FALSE: False, bench.TRUE: True}
        assert said[answer] == (said[text[truth]] != (text[word] == bench.NOT))
        seen.add((text[word], text[truth]))
    assert len(seen) == 4


def test_a_decoder_reads_each_answer_after_its_question():
    for text, _, place, answer, _ in drawn("Llama", "copy"):
        assert text[0] == bench.BEGIN and (place + 1 == len(text) or text[place + 1] == answer)


def test_texts_are_drawn_again_with_their_seed_and_are_others_with_another():
    task = TASKS["copy"]
    one, again, other = (bench.batch("Llama", task, COUNT, 1, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)
