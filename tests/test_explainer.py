"""The wrapper: what it reads, what it returns, in which order, and that the model and torch are left as they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from explainers import ENGINES, EXACT, assert_close, logits_of
from models import TEXTS, classifier, token_ids

from decompx_fast import DecompX, Explanation

# What it reads.


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_text(name, request):
    explainer = request.getfixturevalue(name)
    for text in TEXTS:
        explanation = explainer.explain(text)
        assert isinstance(explanation, Explanation)
        expected = logits_of(explainer, text)
        assert_close(explanation.scores.sum(0), expected)
        assert_close(explanation.logits, expected)
        assert explanation.completeness_error < EXACT
        ids = explainer.tokenizer(text)["input_ids"]
        assert explanation.token_ids == tuple(ids)
        assert explanation.tokens == tuple(explainer.tokenizer.convert_ids_to_tokens(ids))
        assert explanation.texts == (text,)
        assert explanation.special == (True, *[False] * (len(ids) - 2), True)


def test_spans_are_the_characters_of_each_token(bert, roberta):
    text = "  It's unbelievably good - caf\u00e9 \U0001f600!"
    for explainer in (bert, roberta):
        explanation = explainer.explain(text)
        assert [span is None for span in explanation.spans] == list(explanation.special)
        spans = [span for span in explanation.spans if span]
        assert all(segment == 0 for segment, _, _ in spans)
        covered = {n for _, start, end in spans for n in range(start, end)}
        assert covered >= {n for n, char in enumerate(text) if not char.isspace()}
    words = [text[start:end] for _, start, end in filter(None, bert.explain(text).spans)]
    assert words[:3] == ["It", "'", "s"] and words[-3:] == ["caf\u00e9", "\U0001f600", "!"]


def test_a_pair_of_texts(bert, roberta):
    for explainer in (bert, roberta):
        explanation = explainer.explain((TEXTS[0], TEXTS[1]))
        expected = logits_of(explainer, TEXTS[0], TEXTS[1])
        assert_close(explanation.scores.sum(0), expected)
        assert explanation.texts == (TEXTS[0], TEXTS[1])
        assert {span[0] for span in explanation.spans if span} == {0, 1}
        assert len(explainer.explain([(TEXTS[0], TEXTS[1])])) == 1


def test_a_list_of_two_texts_is_no_pair(bert):
    assert [explanation.texts for explanation in bert.explain(["one", "two"])] == [("one",), ("two",)]


def test_a_list_may_hold_texts_pairs_and_ids(bert):
    mixed = ["not bad", ("why", "not"), [101, 2204, 102], torch.tensor([101, 2204, 102])]
    explanations = bert.explain(mixed)
    assert [len(explanation.texts) for explanation in explanations] == [1, 2, 0, 0]
    assert explanations[2].tokens == explanations[3].tokens == ("[CLS]", "good", "[SEP]")
    assert explanations[2].special == (True, False, True)
    assert_close(explanations[2].scores, bert.explain("good").scores)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_padded_encoding(name, side, request):
    explainer = request.getfixturevalue(name)
    for tensors in (None, "pt", "np"):
        encoding = explainer.tokenizer(TEXTS, padding=True, padding_side=side, return_tensors=tensors)
        found = explainer.explain(encoding)
        assert len(found) == len(TEXTS)
        for explanation, text in zip(found, TEXTS, strict=True):
            alone = explainer.explain(text)
            assert explanation.tokens == alone.tokens and explanation.special == alone.special
            assert_close(explanation.scores, alone.scores)
        assert [len(e) for e in explainer.explain(dict(encoding))] == [len(e) for e in found]


def test_an_encoding_that_was_changed_by_hand(bert):
    encoding = bert.tokenizer(["not bad", "why"], padding=True)
    for name in list(encoding):
        encoding[name] = encoding[name][::-1]
    for explanation, text in zip(bert.explain(encoding), ["why", "not bad"], strict=True):
        assert_close(explanation.scores, bert.explain(text).scores)
        assert explanation.special == bert.explain(text).special


def test_an_encoding_of_one_text(bert):
    for encoding in (bert.tokenizer("not bad"), bert.tokenizer("not bad", return_tensors="pt")):
        found = bert.explain(encoding)
        single = isinstance(encoding["input_ids"], list)
        assert isinstance(found, Explanation) == single
        assert_close((found if single else found[0]).scores, bert.explain("not bad").scores)


def test_special_tokens_in_the_text_are_words_of_the_text(bert):
    explanation = bert.explain("good [SEP] film")
    assert explanation.tokens == ("[CLS]", "good", "[SEP]", "film", "[SEP]")
    assert explanation.completeness_error < EXACT


@pytest.mark.parametrize(("name", "text"), [("bert", "good"), ("roberta", "q")])
def test_one_word(name, text, request):
    explanation = request.getfixturevalue(name).explain(text)
    assert len(explanation) == 3 and explanation.completeness_error < EXACT


def test_one_token(bare):
    for engine, options in ENGINES.items():
        explanation = bare.explain([7], engine=engine, **options)
        assert_close(explanation.scores[0], explanation.logits)


def test_token_types_of_a_pair_are_passed_on(bert):
    pair = ("not bad", "why")
    encoding = bert.tokenizer(*pair)
    assert 1 in encoding["token_type_ids"]
    expected = bert.explain(pair).scores
    assert_close(bert.explain(encoding).scores, expected)
    without = bert.explain(encoding["input_ids"]).scores
    assert (without - expected).abs().max() > 1e-3


# What it returns.


def test_columns_are_classes_in_order(bert):
    explanation = bert.explain("not bad")
    assert explanation.labels == explanation.targets == ("NEGATIVE", "NEUTRAL", "POSITIVE")
    assert explanation.target_ids == (0, 1, 2)
    assert torch.equal(explanation.target_logits, explanation.logits)


@pytest.mark.parametrize("engine", ENGINES)
def test_targets_are_columns_of_all_classes(bare, engine):
    options = {"engine": engine, **ENGINES[engine]}
    whole = bare.explain([7, 8, 9], **options)
    cases = [
        ("POSITIVE", ["POSITIVE"], [2]),
        (1, ["NEUTRAL"], [1]),
        (np.int64(1), ["NEUTRAL"], [1]),
        ([2, "NEGATIVE"], ["POSITIVE", "NEGATIVE"], [2, 0]),
        (("NEUTRAL", "NEUTRAL"), ["NEUTRAL", "NEUTRAL"], [1, 1]),
    ]
    for targets, names, columns in cases:
        found = bare.explain([7, 8, 9], targets=targets, **options)
        assert found.targets == tuple(names) and found.target_ids == tuple(columns)
        assert_close(found.scores, whole.scores[:, columns])
        assert torch.equal(found.target_logits, whole.logits[columns])
        assert found.completeness_error < EXACT


@pytest.mark.parametrize("engine", ENGINES)
def test_directions_are_combinations_of_classes(bare, engine):
    options = {"engine": engine, **ENGINES[engine]}
    whole = bare.explain([7, 8, 9], **options)
    directions = {
        "POSITIVE - NEGATIVE": {"NEGATIVE": -1, "POSITIVE": 1},
        "0.5 NEGATIVE - 2 NEUTRAL": {0: np.float32(0.5), "NEUTRAL": -2},
        "NEUTRAL": torch.tensor([0.0, 1.0, 0.0]),
        "NEGATIVE + NEUTRAL + POSITIVE": np.array([1, 1, 1]),
        "0": {"NEUTRAL": 0},
    }
    names = list(directions)
    weights = torch.tensor([[-1, 0, 1], [0.5, -2, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]], dtype=torch.float64)
    together = bare.explain([7, 8, 9], targets=list(directions.values()), **options)
    assert {*together.targets} - {"- NEGATIVE + POSITIVE"} <= {*names}
    assert together.target_ids == (None,) * 5
    assert_close(together.scores, whole.scores @ weights.T)
    assert_close(together.target_logits, whole.logits @ weights.T)
    for n, direction in enumerate(directions.values()):
        alone = bare.explain([7, 8, 9], targets=direction, **options)
        assert (alone.scores[:, 0] - together.scores[:, n]).abs().max() < EXACT


def test_directions_and_classes_may_be_mixed(bare):
    found = bare.explain([7, 8], targets=["NEUTRAL", {"POSITIVE": 2}])
    assert found.targets == ("NEUTRAL", "2 POSITIVE") and found.target_ids == (1, None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "single_label"),
        ({"labels": 1}, "regression"),
        ({"labels": 3, "problem_type": "multi_label_classification"}, "multi_label"),
        ({"labels": 3, "problem_type": "regression"}, "regression"),
    ],
)
def test_problem_types(options, expected):
    assert DecompX(classifier(**options)).explain([7, 8]).problem_type == expected


def test_an_explanation_says_how_it_was_made(bare):
    explanation = bare.explain([7, 8], bias="none", activation="linear", dtype="float32")
    assert explanation.options["bias"] == "none" and explanation.options["activation"] == "linear"
    assert explanation.engine == "adjoint" and explanation.time_s > 0
    assert explanation.metadata["architecture"] == "BertForSequenceClassification"
    assert explanation.metadata["dtype"] == "float32"
    assert explanation.scores.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtypes_by_name_and_by_themselves(bare, dtype):
    name = str(dtype).removeprefix("torch.")
    expected = bare.explain([7, 8, 9]).scores
    for asked in (name, dtype):
        explanation = bare.explain([7, 8, 9], dtype=asked, engine="reference")
        assert explanation.scores.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert explanation.metadata["dtype"] == name
        assert (explanation.scores - expected).abs().max() < 8 * torch.finfo(dtype).eps * expected.abs().max() + EXACT
        assert torch.equal(
            DecompX(bare.model, dtype=asked, engine="reference").explain([7, 8, 9]).scores, explanation.scores
        )


def test_the_dtype_named_is_the_one_that_was_used(bare):
    explanation = bare.explain([7, 8], dtype="bfloat16", bias="none")
    assert explanation.engine == "adjoint" and explanation.metadata["dtype"] == "float32"


@pytest.mark.parametrize(
    ("id2label", "expected"),
    [({0: "x", 1: "y"}, ("x", "y")), ({"0": "x", "1": "y"}, ("x", "y")), ({0: "x", 5: "y"}, ("x", "LABEL_1"))],
)
def test_labels_however_they_are_written(id2label, expected):
    model = classifier()
    vars(model.config)["id2label"] = id2label
    assert DecompX(model).explain([7, 8]).labels == expected


def test_norms_without_a_head_keep_their_dtype(bare):
    explanation = bare.explain([7, 8, 9], head=False)
    assert explanation.targets == ("norm",) and explanation.target_ids == (None,)
    assert explanation.scores.dtype == torch.float64 and explanation.scores.shape == (3, 1)
    whole = bare.explain([7, 8, 9], head=False, stages="encoder", engine="reference").stages["encoder.1"]
    assert_close(explanation.scores[:, 0], whole[0])


def test_the_bias_token_is_kept_apart(bare):
    for options in ({}, {"head": False}):
        explanation = bare.explain([7, 8, 9], bias="bias_token", engine="reference", **options)
        assert explanation.scores.shape[0] == 3 == len(explanation.tokens)
        assert explanation.bias_token.shape == (explanation.scores.shape[1],)
    explanation = bare.explain([7, 8, 9], bias="bias_token")
    assert_close(explanation.scores.sum(0) + explanation.bias_token, explanation.logits)


def test_stages_are_those_of_one_input(bare):
    first, second = bare.explain([[7, 8, 9], [9, 8, 7]], stages=["ln1", "pooler"], engine="reference")
    assert first.stages["ln1.0"].shape == (3, 3) and first.stages["pooler.1"].shape == (3,)
    assert not torch.equal(first.stages["ln1.0"], second.stages["ln1.0"])


def test_engines_agree(bare):
    ids = token_ids(9)[0]
    for rule in ("none", "bias_token", "equal", "cls"):
        found = [bare.explain(ids, engine=engine, bias=rule).scores for engine in ENGINES]
        assert_close(found[1], found[0])
        assert_close(found[2], found[0])
    found = [bare.explain(ids, engine=engine).scores for engine in ("auto", "reference", "forward")]
    assert_close(found[0], found[1])
    assert_close(found[2], found[1])
    assert bare.explain(ids).engine == "forward" and bare.explain(ids, bias="none").engine == "adjoint"
