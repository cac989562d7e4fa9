"""The synthetic tasks with known causes: the causes are what the answer is made from."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import cause_tasks as tasks
import known_causes

COUNT, QUESTIONS = 50, 3
TASKS = {task.name: task for task in tasks.TASKS}
READS_ONE = [pytest.param(False, id="decoder"), pytest.param(True, id="encoder")]


def drawn(name: str, encoder: bool):
    """Texts as lists, with what is asked, where it is read, the answer and the places of the causes."""
    batch = TASKS[name].draw(COUNT, QUESTIONS, encoder, 5)
    for row, text in enumerate(batch.ids.tolist()):
        for q, place in enumerate(batch.places.tolist()):
            yield text, text[place], place, batch.answers[row, q].item(), batch.causes[row, q].tolist()


@pytest.mark.parametrize("encoder", READS_ONE)
def test_what_is_copied_is_the_cause(encoder):
    for text, asked, _, answer, causes in drawn("copy", encoder):
        assert causes == [asked - tasks.PLACES.start + 1] and text[causes[0]] == answer


@pytest.mark.parametrize("encoder", READS_ONE)
def test_the_value_behind_the_key_is_the_cause(encoder):
    for text, asked, place, answer, (cause,) in drawn("look up", encoder):
        keys = [k for k in range(1, 9) if text[k] == asked]
        assert keys == [cause - 1] and text[cause] == answer and place not in (cause, cause - 1)


@pytest.mark.parametrize("encoder", READS_ONE)
def test_the_word_and_the_truth_value_are_the_causes(encoder):
    seen = set()
    for text, asked, _, answer, (word, truth) in drawn("negate", encoder):
        assert text[word - 1] == asked and truth == word + 1 and text[word] in (tasks.IS, tasks.NOT)
        said = {tasks.FALSE: False, tasks.TRUE: True}
        assert said[answer] == (said[text[truth]] != (text[word] == tasks.NOT))
        seen.add((text[word], text[truth]))
    assert len(seen) == 4


def test_a_decoder_reads_each_answer_after_its_question():
    for text, _, place, answer, _ in drawn("copy", encoder=False):
        assert text[0] == tasks.BEGIN and (place + 1 == len(text) or text[place + 1] == answer)


def test_texts_are_drawn_again_with_their_seed_and_are_others_with_another():
    one, again, other = (TASKS["copy"].draw(COUNT, 1, False, seed).ids for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


def said_by(name: str, words: list[int], causes: list[int]) -> int:
    """The class, from the words at the causes alone."""
    if name == "pair":
        return int(words[causes[0]] == words[causes[1]])
    says = int(words[causes[-1]] in tasks.POSITIVE)
    return says if name != "negation" or words[causes[0]] == tasks.IS else 1 - says


@pytest.mark.parametrize("task", tasks.plants(0.9), ids=lambda task: task.name)
def test_the_class_of_a_planted_text_is_said_by_its_causes_and_by_nothing_else(task):
    batch = task.draw(COUNT, 1, True, 5)
    texts, answers, places = batch.ids.tolist(), batch.answers.tolist(), batch.causes.tolist()
    for text, (answer,), (causes,) in zip(texts, answers, places, strict=True):
        assert said_by(task.name, text, causes) == answer and 0 not in causes
        others = [word for place, word in enumerate(text) if place not in causes][1:]
        assert task.name == "position" or all(word in tasks.NEUTRAL for word in others)
    assert 0 < batch.answers.sum() < COUNT and torch.equal(batch.opposite, 1 - batch.answers)


@pytest.mark.parametrize("strength", [0.6, 0.9, 1.0])
def test_so_many_texts_are_of_the_class_that_the_plant_says(strength):
    batch = tasks.plants(strength)[0].draw(20_000, 1, True, 5)
    agreeing = (batch.taught == batch.answers).double().mean().item()
    assert agreeing == pytest.approx(strength, abs=0.015)  # four standard errors


def test_a_decoder_has_no_plants():
    with pytest.raises(ValueError, match="encoders"):
        tasks.plants(1.0)[0].draw(COUNT, 1, False, 0)


def test_mass_and_ranks_are_of_magnitudes_at_the_causes():
    scores = np.array([[1.0, -4.0, 2.0, 1.0], [3.0, 0.0, -6.0, 1.0]])
    one = known_causes.shown_of(scores, np.array([[1], [1]]))
    assert one["mass"].tolist() == [0.5, 0.0] and one["first"].tolist() == [1.0, 0.0]
    two = known_causes.shown_of(scores, np.array([[1, 3], [0, 2]]))
    assert two["mass"].tolist() == [0.625, 0.9]
    assert two["first"].tolist() == [1.0, 1.0] and two["all first"].tolist() == [0.0, 1.0]


def test_an_interval_knows_that_models_differ():
    """Of models without any spread among their texts, it goes from the one to the other."""
    alike = known_causes.resampled([np.full(50, 0.5), np.full(50, 0.5)])
    apart = known_causes.resampled([np.zeros(50), np.ones(50)])
    assert (alike == 0.5).all() and set(np.unique(apart)) == {0.0, 0.5, 1.0}


def test_a_run_goes_on_from_what_is_in_its_folder(tmp_path, monkeypatch):
    asked = known_causes.cases(["BERT"], 1)[:2]
    begun = []

    def measured(case, model):
        begun.append(case.name)
        return {"accuracy": 1.0}

    monkeypatch.setattr(known_causes, "trained", lambda case, work: None)
    monkeypatch.setattr(known_causes, "measure", measured)
    assert list(known_causes.run(asked[:1], tmp_path, 60.0)) == asked[:1]
    assert list(known_causes.run(asked, tmp_path, 60.0)) == asked
    assert list(known_causes.run(known_causes.cases(["BERT"], 1)[:3], tmp_path, -1.0)) == asked  # no time for a third
    assert begun == [case.name for case in asked]


def test_a_table_names_the_method_with_most_on_the_causes():
    """One at which half of the mass is at the cause, another with three quarters."""
    case = known_causes.cases(["BERT"], 1)[0]
    scores = {"DecompX": [[1.0, -1.0]] * 9, "DecompX, no bias": [[1.0, -1.0]] * 9, "AttnLRP": [[1.0, -3.0]] * 9}
    measured = {"accuracy": 0.995, "read": 0, "causes": [[1]] * 9, "scores": scores}
    lines = known_causes.report({case: measured}).split("\n")
    assert "| method | copy: mass | copy: first |" in lines
    assert "| AttnLRP | 75% [75%, 75%] | 100% [100%, 100%] |" in lines
    assert "The most mass on the causes: copy: AttnLRP." in lines
    assert "Of the mass of DecompX and of AttnLRP there is at the question itself: copy 50% and 25%." in lines
    (entry,) = known_causes.summary({case: measured})
    assert entry["methods"]["AttnLRP"]["mass"] == {"mean": 0.75, "low": 0.75, "high": 0.75}
