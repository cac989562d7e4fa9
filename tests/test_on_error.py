"""An input that cannot be explained takes no other with it: a failure stands in its place."""

from __future__ import annotations

import json
from collections.abc import Iterator

import explainers
import generation_models
import models
import pytest
import task_models
import torch
from models import classifier
from refusals import refuses

import decompx_fast
from decompx_fast import DecompX, Explanation, Failure
from decompx_fast.calls.job import Job
from decompx_fast.errors import BackendError, InputError, NumericalError, OptionError


@pytest.fixture(scope="module")
def bert() -> DecompX:
    return explainers.bert()


@pytest.fixture(scope="module")
def bare() -> DecompX:
    return explainers.bare(engine="reference")


#: Wrong whatever the input is: a task, the argument, and what the message says.
WRONG_OPTIONS = [
    ("token-classification", {"targets": "B-FOO"}, "no label 'B-FOO'"),
    ("token-classification", {"targets": {"O": 10**400}}, "weight of 'O' in targets must be a finite number"),
    ("token-classification", {"at": 1, "top_k": 0}, "top_k=0: use a whole number from 1"),
    ("token-classification", {"ignore_labels": ["X"]}, "no label 'X'"),
    ("question-answering", {"targets": "middle"}, "'start' (0) and 'end' (1)"),
    ("question-answering", {"max_answer_tokens": 0}, "max_answer_tokens=0"),
    ("fill-mask", {"targets": "unbelievablyness"}, "'unbelievablyness' in targets is"),
    ("fill-mask", {"targets": 10**6}, "no token 1000000"),
    ("fill-mask", {"top_k": 0}, "top_k=0"),
    ("text-generation", {"targets": " unheardof"}, "' unheardof' in targets is"),
    ("text-generation", {"top_k": 0}, "top_k=0"),
]


@pytest.mark.parametrize(("task", "options", "match"), WRONG_OPTIONS)
def test_an_option_that_is_wrong_for_every_input_ends_the_call_before_it_begins(task, options, match):
    if task == "text-generation":
        explainer, text = DecompX(generation_models.llama(), generation_models.byte_level()), "The capital"
    else:
        explainer, text = DecompX(task_models.model(task), models.word_piece()), task_models.INPUTS[task]
    refuses(explainer.explain_iter, [text, text], on_error="skip", match=(match,), **options)


MIXED = ["good film", "", "good " * 30, "why?", "\u200b", None, "a \ud800", ("a", "b"), ["nested"], "not bad"]
GOOD = [0, 3, 7, 9]


@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_every_bad_text_is_a_failure_in_its_place(bert, batch_size):
    found = bert.explain(MIXED, on_error="skip", batch_size=batch_size)
    assert [n for n, one in enumerate(found) if one.ok] == GOOD
    assert all(isinstance(found[n], Explanation) for n in GOOD)
    for n in GOOD:
        alone = bert.explain(MIXED[n])
        assert (found[n].scores - alone.scores).abs().max() < 1e-12
    for n in set(range(len(MIXED))) - set(GOOD):
        with pytest.raises(InputError) as caught:
            bert.explain([*["good"] * n, MIXED[n]])
        assert found[n] == Failure(n, str(caught.value), "InputError")
        assert not found[n].ok and f"input {n}" in found[n].error


def test_a_stream_goes_on_after_a_bad_text(bert):
    def texts() -> Iterator[str]:
        for n in range(600):
            yield "" if n % 3 else "good film"

    found = list(bert.explain_iter(texts(), on_error="skip", bias="none", batch_size=8))
    assert [one.ok for one in found] == [n % 3 == 0 for n in range(600)]
    assert [one.input if isinstance(one, Failure) else one.metadata["input"] for one in found] == list(range(600))


def test_only_bad_texts(bert):
    assert [one.ok for one in bert.explain(["", " "], on_error="skip")] == [False, False]
    assert bert.explain("", on_error="skip") == Failure(
        0, "the input is an empty text: there is nothing to explain", "InputError"
    )


def test_bad_rows_of_an_encoding(bare):
    found = bare.explain({"input_ids": [[7, 8], [7, 999], [8, 9]]}, on_error="skip")
    assert [one.ok for one in found] == [True, False, True]
    assert found[1].input == 1 and "holds 999 in input_ids" in found[1].error
    refuses(bare.explain, {"input_ids": [["a"]]}, on_error="skip", match=("cannot be read as rows",))


def test_sources_that_fit_some_inputs(bare):
    found = bare.explain([[7, 8, 9], [7, 8], [9, 8, 7]], sources=[0, 0, 1], on_error="skip")
    assert [one.ok for one in found] == [True, False, True]
    assert found[1].error == "sources holds 3 group ids for 2 tokens (special ones count)"
    found = bare.explain([[7, 8, 9], [7, 8]], positions=[2], on_error="skip", engine="forward")
    assert [one.ok for one in found] == [True, False]


def test_a_batch_that_fails_is_explained_one_by_one(bare, monkeypatch):
    """The model overflows for one of four texts that are computed together."""
    sizes = []
    run = Job.run

    def failing(self, batch):
        sizes.append(len(batch))
        if any(77 in encoded.inputs["input_ids"] for encoded, _ in batch):
            raise NumericalError("the logits hold NaN")
        return run(self, batch)

    monkeypatch.setattr(Job, "run", failing)
    texts = [[7, 8], [8, 9], [77, 9], [9, 7], [5, 6, 7]]
    found = bare.explain(texts, on_error="skip", batch_size=4)
    assert sizes == [4, 1, 1, 1, 1, 1]
    assert [one.ok for one in found] == [True, True, False, True, True]
    assert found[2] == Failure(2, "the logits hold NaN", "NumericalError")
    with pytest.raises(NumericalError):
        bare.explain(texts, batch_size=4)


def test_weights_that_overflow_for_one_text():
    model = classifier(dtype=torch.float32)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[77] = float("inf")
    found = DecompX(model).explain([[7, 8], [77, 8], [8, 9]], on_error="skip")
    assert [one.ok for one in found] == [True, False, True]
    assert found[1].error_type == "NumericalError"


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("out of memory")])
def test_too_little_memory_for_one_text(bare, monkeypatch, error):
    def failing(self, batch):
        raise error

    monkeypatch.setattr(Job, "run", failing)
    found = bare.explain([[7, 8]], on_error="skip")[0]
    assert (found.error_type, found.error) == (type(error).__name__, str(error) or "MemoryError")


@pytest.mark.parametrize(
    "error", [BackendError("no such device"), RuntimeError("a fault of ours"), KeyboardInterrupt()]
)
def test_what_no_input_can_cause_is_raised(bare, monkeypatch, error):
    def failing(self, batch):
        raise error

    monkeypatch.setattr(Job, "run", failing)
    with pytest.raises(type(error)):
        bare.explain([[7, 8]], on_error="skip")


def test_what_is_wrong_with_the_call_is_raised(bare):
    refuses(
        bare.explain, [7, 8], on_error="ignore", match=("on_error='ignore'", "'raise' or 'skip'"), error=OptionError
    )
    refuses(bare.explain, [7, 8], onerror="skip", match=("did you mean 'on_error'?",))
    refuses(bare.explain, None, on_error="skip", match=("cannot explain a NoneType",))
    refuses(bare.explain, [[7, 8]], on_error="skip", sources="words", match=("sources='words'",))
    refuses(bare.explain, [[7, 8]], on_error="skip", targets="x", match=("no class 'x'",))


def test_an_exception_of_the_users_iterator_is_theirs(bare):
    def texts():
        yield [7, 8]
        raise InputError("from the user's own code")

    with pytest.raises(InputError, match="own code"):
        list(bare.explain_iter(texts(), on_error="skip"))


def test_a_failure_is_data():
    failure = Failure(3, "too long", "InputError")
    assert json.loads(json.dumps(failure.to_dict())) == {"input": 3, "error": "too long", "error_type": "InputError"}
    assert decompx_fast.Failure is Failure and not failure.ok
    with pytest.raises(AttributeError):
        failure.input = 4


# Which input a result belongs to.


def test_a_result_names_its_input(bert):
    found = list(bert.explain_iter(["good", "a good film", "bad"], batch_size=2))
    assert [one.metadata["input"] for one in found] == [0, 1, 2]
    assert "id" not in found[0].metadata
    assert bert.explain("good").metadata["input"] == 0
    assert [one.metadata["input"] for one in bert.explain(bert.tokenizer(["good", "bad"]))] == [0, 1]


def test_results_carry_the_users_ids(bert):
    found = bert.explain(["good", "", "bad film", "a"], ids=["r1", "r2", "r3", 7], on_error="skip")
    assert [one.metadata["id"] for one in found if one.ok] == ["r1", "r3", 7]
    assert [one.metadata["input"] for one in found if one.ok] == [0, 2, 3]
    assert bert.explain("good", ids="r9").metadata["id"] == "r9"
    assert found[0].words().metadata["id"] == "r1"
    assert found[0].to_dict()["metadata"]["id"] == "r1"


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        ("ab", ("ids='ab'", "a name for each input")),
        (["a"], ("ids holds 1 names, and there are more inputs",)),
        (["a", "b", "c"], ("ids holds more names than there are inputs",)),
        (["a", 1.5], ("ids holds 1.5 for input 1", "strings or whole numbers")),
        (5, ("ids=5",)),
    ],
)
def test_ids_that_do_not_fit(bert, ids, match):
    refuses(bert.explain, ["good", "bad"], ids=ids, match=match)
