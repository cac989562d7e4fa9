"""Sources of one input, and many inputs: read ahead, put together, and given back in their order."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest
import torch
from explainers import ENGINES, EXACT, assert_close, logits_of

from decompx_fast import DecompX
from decompx_fast.errors import InputError

# Sources.


@pytest.mark.parametrize("engine", ENGINES)
def test_groups_of_tokens_add_up(bare, engine):
    options = {"engine": engine} | ({"bias": "bias_token"} if engine == "adjoint" else {})
    groups = [5, 3, 5, -1]
    found = bare.explain([7, 8, 9, 10], sources=groups, **options)
    assert found.source_unit == "group" and found.tokens == ("7 9", "8", "10")
    assert found.completeness_error < EXACT
    for same in (torch.tensor(groups), np.array(groups), (0, 1, 0, 2)):
        assert torch.equal(bare.explain([7, 8, 9, 10], sources=same, **options).scores, found.scores)


def test_groups_of_rules_that_are_linear_are_sums(bare):
    groups = [0, 1, 0, 2]
    member = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]], dtype=torch.float64)
    for rule, engine in itertools.product(["none", "bias_token", "cls"], ENGINES):
        tokens = bare.explain([7, 8, 9, 10], bias=rule, engine=engine)
        grouped = bare.explain([7, 8, 9, 10], bias=rule, engine=engine, sources=groups)
        assert_close(grouped.scores, member @ tokens.scores)


def test_words_and_sentences_as_sources(bert, roberta):
    text = "It is unbelievably good. Watch it!"
    for explainer in (bert, roberta):
        words = explainer.explain(text, sources="word")
        assert [word for word, special in zip(words.tokens, words.special, strict=True) if not special] == [
            "It", "is", "unbelievably", "good", ".", "Watch", "it", "!",
        ]  # fmt: skip
        sentences = explainer.explain(text, sources="sentence")
        assert sentences.tokens[1:-1] == ("It is unbelievably good.", "Watch it!")
        assert sentences.special == (True, False, False, True)
        for explanation in (words, sentences):
            assert_close(explanation.scores.sum(0), logits_of(explainer, text))


def test_one_group_of_all_tokens_has_the_whole_logit(bare):
    for engine in ("reference", "forward"):
        explanation = bare.explain([7, 8, 9], sources=[0, 0, 0], engine=engine)
        assert_close(explanation.scores[0], explanation.logits)


# Many inputs.


def test_results_keep_the_order_of_the_inputs(bert):
    texts = [" ".join(["good"] * n) for n in (3, 1, 7, 1, 3, 30, 2)]
    for size in (None, 1, 2, 3, 100):
        found = list(bert.explain_iter(texts, batch_size=size))
        assert [explanation.texts[0] for explanation in found] == texts
        for explanation, text in zip(found, texts, strict=True):
            assert_close(explanation.scores, bert.explain(text).scores)


def test_call_is_explain(bare):
    assert torch.equal(bare([7, 8]).scores, bare.explain([7, 8]).scores)


def test_options_of_the_call_come_before_those_of_the_explainer(bare):
    explainer = DecompX(bare.model, bias="none", engine="reference", batch_size=3, dtype="float32")
    explanation = explainer.explain([7, 8], bias="absdot", engine="forward", dtype="float64")
    assert (explanation.options["bias"], explanation.engine) == ("absdot", "forward")
    assert explanation.scores.dtype == torch.float64
    assert explainer.explain([7, 8]).options["bias"] == "none"


def test_a_stream_is_read_as_it_goes(bare):
    taken = []

    def endless():
        for n in itertools.count():
            taken.append(n)
            yield [5 + n % 190, 7, 9][: 1 + n % 3]

    stream = bare.explain_iter(endless(), batch_size=2, bias="none")
    assert taken == []
    found = list(itertools.islice(stream, 5))
    assert len(found) == 5 and len(taken) == 32  # 16 batches of 2
    list(itertools.islice(stream, 40))
    assert len(taken) == 64
    stream.close()


def test_what_precedes_a_bad_input_is_explained(bare):
    stream = bare.explain_iter(iter([[7, 8], [7, 8, 9], [7, 8], None, [7]]))
    assert [len(next(stream)) for _ in range(3)] == [2, 3, 2]
    with pytest.raises(InputError, match="input 3 is None"):
        next(stream)
    assert list(stream) == []
    with pytest.raises(InputError, match="input 1 is None"):
        bare.explain([[7, 8], None])


@pytest.mark.slow
def test_a_stream_of_1000_texts_has_flat_memory(bare):
    alive = weakref.WeakSet()

    def live_tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    counts = []
    stream = bare.explain_iter(([5 + n % 190, 7] for n in range(1000)), batch_size=4, bias="none")
    for n, explanation in enumerate(stream):
        alive.add(explanation)
        del explanation
        if n % 250 == 249:
            counts.append(live_tensors())
            assert len(alive) <= 16 * 4, "no more than what is read ahead"
    assert n == 999 and len(counts) == 4
    assert max(counts) - min(counts) < 16 * 4 * 10, counts


def test_progress_is_shown_when_asked_for(bare, capsys):
    list(bare.explain_iter([[7, 8]] * 3, progress=True))
    assert capsys.readouterr().err != ""
    list(bare.explain_iter([[7, 8]] * 3, progress=False))
    list(bare.explain_iter([[7, 8]] * 3))  # standard error is no terminal here
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


IDS = [5, 9, 12, 7, 11, 6]


def test_positions_are_kept_as_rows(bare):
    explainer = bare
    whole = explainer.explain(IDS, stages="encoder", stage_output="vector", engine="reference")
    found = explainer.explain(IDS, positions=[2, -1], stage_output="vector")
    last = whole.stages[max(whole.stages)]
    assert found.engine == "forward"
    torch.testing.assert_close(found.stages["rows"], last[[2, -1]], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"positions": 3}, "give a list of whole numbers"),
        ({"positions": [0.5]}, "give whole numbers only"),
        ({"positions": [999]}, "positions holds 999"),
        ({"positions": [0], "engine": "reference"}, "needs the forward engine"),
        ({"positions": [0], "engine": "adjoint", "bias": "none"}, "leave positions out"),
    ],
)
def test_positions_that_cannot_be_had_are_refused(bare, arguments, message):
    with pytest.raises(InputError, match=message):
        bare.explain(IDS, **arguments)
