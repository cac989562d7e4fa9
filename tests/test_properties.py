"""What must hold for every input: on random models, texts, rules, groups and batches."""

from __future__ import annotations

import functools

import models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import classifier

from decompx_fast import DecompX, Explanation
from decompx_fast.errors import InputError

#: Rounding of two layers in float64. The rule "dot" is left out where it would divide by nearly nothing.
EXACT = 1e-12

RULES = ("absdot", "abssim", "norm", "equal", "cls", "bias_token", "none")
LINEAR_RULES = ("none", "bias_token", "equal", "cls")
FAMILIES = tuple(models.FAMILIES)
LABELS = {0: "a", 1: "b", 2: "c"}

pytestmark = pytest.mark.filterwarnings("ignore:.*was cut")

few = settings(max_examples=25)


@functools.cache
def explainer(family: str = "bert", seed: int = 0) -> DecompX:
    return DecompX(classifier(family, labels=3, seed=seed, id2label=LABELS), engine="reference")


@functools.cache
def reader(family: str) -> DecompX:
    """With a tokenizer."""
    if family == "bert":
        model = classifier(vocab=models.WORD_PIECES, hidden_size=4, intermediate_size=8, layers=1)
        return DecompX(model, models.word_piece(), engine="reference")
    return DecompX(classifier("roberta", vocab=320, layers=1), models.byte_pair(), engine="reference")


def ids(most: int = 9) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(5, 199), min_size=1, max_size=most)


options = st.fixed_dictionaries(
    {
        "bias": st.sampled_from(RULES),
        "variant": st.sampled_from(["paper", "released"]),
        "activation": st.sampled_from(["zero_origin", "linear"]),
        "tanh": st.sampled_from(["zero_origin", "linear"]),
    }
)

linear_options = st.fixed_dictionaries(
    {
        "bias": st.sampled_from(LINEAR_RULES),
        "variant": st.sampled_from(["paper", "released"]),
        "activation": st.sampled_from(["zero_origin", "linear", "relu"]),
        "tanh": st.sampled_from(["zero_origin", "linear"]),
    }
)


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = EXACT) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * max(expected.abs().max().item(), 1.0)


def assert_same(found: Explanation, expected: Explanation) -> None:
    assert found.tokens == expected.tokens and found.special == expected.special
    assert_close(found.scores, expected.scores)
    assert_close(found.logits, expected.logits)
    assert (found.bias_token is None) == (expected.bias_token is None)
    if found.bias_token is not None:
        assert_close(found.bias_token, expected.bias_token)


@few
@given(st.sampled_from(FAMILIES), st.integers(0, 3), ids(), options)
def test_scores_and_the_bias_token_add_up_to_the_models_logits(family, seed, tokens, chosen):
    tool = explainer(family, seed)
    with torch.no_grad():
        expected = tool.model(torch.tensor([tokens])).logits[0]
    explanation = tool.explain(tokens, **chosen)
    assert_close(explanation.logits, expected)
    if chosen["bias"] == "none":
        return
    total = explanation.scores.sum(0) + (0 if explanation.bias_token is None else explanation.bias_token)
    assert (total - expected).abs().max() < 1e-10 * expected.abs().max()
    assert explanation.completeness_error < 1e-10 * expected.abs().max()


@few
@given(
    st.sampled_from(FAMILIES),
    st.lists(ids(6), min_size=1, max_size=5),
    st.integers(0, 4),
    st.sampled_from(["left", "right"]),
    options,
)
def test_alone_in_a_batch_and_padded_give_the_same(family, rows, extra, side, chosen):
    tool = explainer(family)
    alone = [tool.explain(row, **chosen) for row in rows]
    longest = max(map(len, rows)) + extra
    pad = tool.model.config.pad_token_id

    def padded(row: list[int], value: int) -> list[int]:
        filling = [value] * (longest - len(row))
        return filling + row if side == "left" else row + filling

    encoding = {
        "input_ids": torch.tensor([padded(row, pad) for row in rows]),
        "attention_mask": torch.tensor([padded([1] * len(row), 0) for row in rows]),
    }
    for found in (tool.explain(rows, **chosen), tool.explain(encoding, **chosen)):
        for ours, expected in zip(found, alone, strict=True):
            assert_same(ours, expected)


@few
@given(st.lists(ids(4), min_size=1, max_size=12), st.sampled_from([1, 2, 3, 5, None]), options)
def test_order_and_batch_size_have_no_influence(rows, size, chosen):
    tool = explainer()
    found = list(tool.explain_iter(iter(rows), batch_size=size, **chosen))
    assert [list(explanation.token_ids) for explanation in found] == rows
    for explanation, row in zip(found, rows, strict=True):
        assert_same(explanation, tool.explain(row, **chosen))


@st.composite
def grouped(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    tokens = draw(ids(8))
    return tokens, draw(st.lists(st.integers(0, 4), min_size=len(tokens), max_size=len(tokens)))


@few
@given(grouped(), st.permutations(range(5)), options)
def test_permuting_groups_permutes_results(request_, order, chosen):
    tokens, groups = request_
    found = explainer().explain(tokens, sources=groups, **chosen)
    renamed = explainer().explain(tokens, sources=[order[group] for group in groups], **chosen)
    assert_same(renamed, found)  # groups come in the order of their first tokens, whatever their numbers
    names = {group: n for n, group in enumerate(dict.fromkeys(groups))}
    for group, n in names.items():
        assert found.tokens[n] == " ".join(str(token) for token, g in zip(tokens, groups, strict=True) if g == group)


@few
@given(grouped(), st.sampled_from(["none", "bias_token", "cls"]), st.sampled_from(["reference", "adjoint"]))
def test_scores_of_groups_are_sums_where_shares_are_known(request_, rule, engine):
    tokens, groups = request_
    each = explainer().explain(tokens, bias=rule, engine=engine)
    found = explainer().explain(tokens, sources=groups, bias=rule, engine=engine)
    numbers = list(dict.fromkeys(groups))
    expected = torch.zeros_like(found.scores)
    for position, group in enumerate(groups):
        expected[numbers.index(group)] += each.scores[position]
    assert_close(found.scores, expected)


@few
@given(st.sampled_from(FAMILIES), st.integers(0, 3), ids(), linear_options)
def test_adjoint_and_reference_agree(family, seed, tokens, chosen):
    tool = explainer(family, seed)
    assert_same(tool.explain(tokens, engine="adjoint", **chosen), tool.explain(tokens, engine="reference", **chosen))


weights = st.floats(-4, 4).map(lambda weight: round(weight, 3))


@few
@given(
    ids(),
    st.lists(st.fixed_dictionaries({name: weights for name in LABELS.values()}), min_size=1, max_size=4),
    st.sampled_from(["reference", "adjoint"]),
    st.sampled_from(LINEAR_RULES),
)
def test_a_direction_is_the_combination_of_classes(tokens, directions, engine, rule):
    whole = explainer().explain(tokens, engine=engine, bias=rule)
    found = explainer().explain(tokens, engine=engine, bias=rule, targets=directions)
    columns = torch.tensor([[direction[name] for name in "abc"] for direction in directions], dtype=torch.float64).T
    assert_close(found.scores, whole.scores @ columns)
    assert_close(found.target_logits, whole.logits @ columns)
    if whole.bias_token is not None:
        assert_close(found.bias_token, whole.bias_token @ columns)


@few
@given(ids(), st.lists(st.sampled_from([0, 1, 2, "a", "b", "c"]), min_size=1, max_size=4), options)
def test_targets_are_columns_of_all_classes(tokens, targets, chosen):
    whole = explainer().explain(tokens, **chosen)
    found = explainer().explain(tokens, targets=targets, **chosen)
    columns = ["abc".index(target) if isinstance(target, str) else target for target in targets]
    assert found.target_ids == tuple(columns)
    assert_close(found.scores, whole.scores[:, columns])


# Any text at all.

#: Letters, accents, ideographs, emoji with joiners, controls, white space, right-to-left, lone surrogates.
text = st.text(
    st.one_of(
        st.sampled_from(list("abc  .,!?'-\n\t\x00\u200b\u200d\u0301\u3000\ufeff\ud800\u4e2d\u6587\u05d0\U0001f468")),
        st.characters(),
    ),
    max_size=20,
)


@settings(max_examples=60)
@given(st.sampled_from(["bert", "roberta"]), text, st.sampled_from(["token", "word", "sentence"]))
def test_any_text_is_explained_or_refused(family, content, unit):
    tool = reader(family)
    try:
        explanation = tool.explain(content, sources=unit, truncate=True)
    except InputError as error:
        surrogates = any("\ud800" <= char <= "\udfff" for char in content)
        nothing = any(words in str(error) for words in ("empty", "only special", "U+"))
        assert surrogates or nothing, error
        return
    assert explanation.completeness_error < 1e-10
    assert explanation.texts == (content,)
    for span in filter(None, explanation.spans):
        assert 0 <= span[1] <= span[2] <= len(content)
    assert len(explanation.tokens) == len(explanation.scores)


@few
@given(text, text)
def test_any_pair_is_explained_or_refused(first, second):
    try:
        explanation = reader("roberta").explain((first, second), truncate=True)
    except InputError:
        return
    assert explanation.completeness_error < 1e-10
    assert explanation.texts == (first, second)


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats() | st.binary(max_size=3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from(["input_ids", "attention_mask", "x"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@settings(max_examples=150)
@given(junk)
def test_any_object_is_explained_or_refused(thing):
    try:
        found = explainer().explain(thing)
    except InputError as error:
        assert str(error) and "\n" not in str(error)
        return
    for explanation in found if isinstance(found, list) else [found]:
        assert explanation.completeness_error < 1e-10


@settings(max_examples=100)
@given(junk)
def test_any_targets_and_sources_are_used_or_refused(thing):
    for argument in ("targets", "sources"):
        try:
            explainer().explain([7, 8, 9], **{argument: thing})
        except InputError as error:
            assert str(error) and "\n" not in str(error)
