"""What people have: tables, columns, arrays of every kind, ids to be cut, tokenizers of their own; and warnings."""

from __future__ import annotations

import warnings

import explainers
import models
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from models import classifier
from refusals import refuses
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast

from decompx_fast import DecompX
from decompx_fast.request.cutting import kept_of_long
from decompx_fast.result.display import source_labels


@pytest.fixture(scope="module")
def bert() -> DecompX:
    return explainers.bert()


@pytest.fixture(scope="module")
def bare() -> DecompX:
    return explainers.bare(engine="reference")


class Dataset:
    """What a dataset of the Hugging Face library looks like from outside."""

    column_names = ("label", "text")

    def __iter__(self):
        return iter([{"label": 1, "text": "good film"}])


# Tables and columns.


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (
            pd.DataFrame({"label": [1], "text": ["good"]}),
            ("a DataFrame is a table (columns: label, text)", 'df["text"]'),
        ),
        (pd.DataFrame({"note": ["good"]}), ('df["note"]',)),
        (pd.DataFrame(), ("columns: none",)),
        (pa.table({"text": ["good"]}), ("a Table is a table", 'data["text"]')),
        (Dataset(), ("a Dataset is a table (columns: label, text)", 'data["text"]')),
        (pd.Series([1, 2]), ("a Series of int64 holds no texts", ".to_list()")),
        (pd.Series([1.5]), ("a Series of float64 holds no texts",)),
        (pd.Index([1, 2]), ("of int64 holds no texts",)),
        ({"text": ["good"], "label": [1]}, ("no 'input_ids', only text, label", "data['text']")),
        ({"train": Dataset(), "test": Dataset()}, ("several tables (train, test)", "data['train']['text']")),
        ([{"text": "good", "label": 1}], ("input 0 is {'text': 'good'", "row['text']")),
        ({"good", "bad"}, ("a set has no order", "give a list")),
        (np.array("good"), ("cannot explain a ndarray",)),
        (torch.tensor(5), ("cannot explain a Tensor",)),
        (pd.Series(["good", None]), ("input 1 is",)),
        (np.array([[1.5, 2.5]]), ("input 0 is array([1.5, 2.5]) of float64",)),
    ],
)
def test_what_is_no_list_of_texts_says_what_to_give(bert, table, match):
    refuses(bert.explain, table, match=match)


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["good film", "why?"], index=[7, 3]),
        pd.Series(["good film", "why?"], dtype="category"),
        np.array(["good film", "why?"]),
        np.array(["good film", "why?"], dtype=object),
        pa.array(["good film", "why?"]),
        pa.chunked_array([["good film"], ["why?"]]),
    ],
    ids=lambda column: type(column).__name__,
)
def test_columns_of_texts_are_lists(bert, column):
    assert [explanation.texts for explanation in bert.explain(column)] == [("good film",), ("why?",)]


def test_a_column_of_lists_of_ids_is_a_list(bare):
    assert [explanation.token_ids for explanation in bare.explain(pd.Series([[7, 8], [9]]))] == [(7, 8), (9,)]


# Token ids.


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", ">i4", ">i8", ">u2", "<i2"])
def test_arrays_of_every_whole_number(bare, dtype):
    ids = np.array([7, 8, 9]).astype(dtype)
    expected = bare.explain([7, 8, 9]).scores
    for form in (ids, {"input_ids": ids}, ids[::-1][::-1], {"input_ids": ids[None]}):
        found = bare.explain(form)
        assert torch.equal((found[0] if isinstance(found, list) else found).scores, expected)
    assert bare.explain(ids[::-1]).token_ids == (9, 8, 7)
    assert bare.explain({"input_ids": [ids[::-1]]})[0].token_ids == (9, 8, 7)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_tensors_of_unsigned_numbers(bare, dtype):
    assert bare.explain(torch.tensor([7, 8], dtype=dtype)).token_ids == (7, 8)


def test_directions_in_arrays_of_every_kind(bare):
    weights = np.array([1.0, -0.5, 0.25])
    expected = bare.explain([7, 8], targets=weights).scores
    for form in (weights[::-1].copy()[::-1], weights.astype(">f8"), weights.astype(">f4"), weights.astype("<f2")):
        assert torch.equal(bare.explain([7, 8], targets=form).scores, expected)
    assert torch.equal(
        bare.explain([7, 8], targets=np.array([1, 0, 2], dtype="uint16")[::-1]).scores,
        bare.explain([7, 8], targets={0: 2, 2: 1}).scores,
    )


def test_numbers_that_no_id_can_be(bare):
    for ids in ([7, 2**70], np.array([7, 2**63], dtype="uint64")):
        refuses(bare.explain, ids, match=("the input holds what can be no token id",))
    refuses(bare.explain, {"input_ids": [[2**70]]}, match=("input_ids cannot be read as rows of whole numbers",))


def test_ids_and_encodings_are_cut_where_the_tokenizer_would(bert):
    """The tokens that stay are those that the tokenizer's own truncation leaves."""
    for texts in (("good film " * 30,), ("good film " * 3, "not bad " * 30), ("a b c " * 20, "d e f " * 20)):
        ids = bert.tokenizer(*texts)["input_ids"]
        expected = bert.tokenizer(*texts, truncation="longest_first", max_length=20)["input_ids"]
        forms = [ids, torch.tensor(ids), {"input_ids": ids}, bert.tokenizer(*texts, return_tensors="pt")]
        for form in forms:
            with pytest.warns(UserWarning, match=rf"has {len(ids)} tokens and was cut to the model's 20 positions"):
                found = bert.explain(form, truncate=True)
            found = found[0] if isinstance(found, list) else found
            assert found.token_ids == tuple(expected)
            assert found.metadata["truncated_from"] == len(ids)
    refuses(bert.explain, ids, match=("pass truncate=True",))


def test_parts_of_a_cut_encoding_stay_together(bert):
    encoding = bert.tokenizer("good film " * 3, "not bad " * 30)
    encoding = {name: list(encoding[name]) for name in ("input_ids", "token_type_ids", "attention_mask")}
    encoding["position_ids"] = list(range(len(encoding["input_ids"])))
    with pytest.warns(UserWarning, match="was cut"):
        found = bert.explain(encoding, truncate=True)
    cut = bert.tokenizer(
        "good film " * 3, "not bad " * 30, truncation="longest_first", max_length=20, return_tensors="pt"
    )
    with torch.no_grad():
        expected = bert.model(**cut).logits[0]
    assert (found.logits - expected).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("special", "limit", "kept"),
    [
        ("....", 3, [0, 1, 2]),
        ("s....s", 4, [0, 1, 2, 5]),
        ("s..s....s", 7, [0, 1, 2, 3, 4, 5, 8]),
        ("s....s....s", 8, [0, 1, 2, 5, 6, 7, 8, 10]),
        ("s.....s....s", 8, [0, 1, 2, 3, 6, 7, 8, 11]),
        ("s...s....s....s", 9, [0, 1, 4, 5, 6, 9, 10, 11, 14]),
        ("sss.", 3, None),
    ],
)
def test_the_longest_text_loses_its_end_first(special, limit, kept):
    assert kept_of_long([char == "s" for char in special], limit) == kept


# Tokenizers.


class IdsOnly:
    """A callable that gives ids and nothing else."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __call__(self, text: str, **options: object) -> object:
        ids = [5 + len(word) for word in text.split()]
        return {
            "list": ids,
            "mapping": {"input_ids": ids},
            "rows": {"input_ids": [ids]},
            "tensor": {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))},
        }[self.form]


@pytest.mark.parametrize("form", ["list", "mapping", "rows", "tensor"])
def test_a_callable_that_gives_ids(form):
    explainer = DecompX(classifier(positions=8), IdsOnly(form), engine="reference")
    explanation = explainer.explain("a good film")
    assert explanation.token_ids == (6, 9, 9) and explanation.tokens == ("6", "9", "9")
    assert explanation.special == (False, False, False)
    with pytest.warns(UserWarning, match="12 tokens and was cut"):
        assert len(explainer.explain("good " * 12, truncate=True)) == 8


@pytest.mark.parametrize(
    ("tokenizer", "match"),
    [
        (lambda text: [7], ("failed on the input: TypeError", "unexpected keyword argument", "give token ids")),
        (lambda text, **options: None, ("gave a NoneType without input_ids",)),
        (lambda text, **options: {"ids": [7]}, ("gave a dict without input_ids",)),
        (lambda text, **options: {"input_ids": ["a"]}, ("the input holds what can be no token id",)),
        (lambda text, **options: {"input_ids": [7], "token_type_ids": [0, 0]}, ("parts of different lengths",)),
        (lambda text, **options: 1 / 0, ("failed on the input: ZeroDivisionError",)),
    ],
)
def test_a_callable_that_is_no_tokenizer(tokenizer, match):
    refuses(DecompX(classifier(), tokenizer).explain, "a text", match=match)


def test_a_tokenizers_object_says_how_it_is_wrapped():
    refuses(
        DecompX, classifier(), Tokenizer(tokenizer_models.BPE()), match=("PreTrainedTokenizerFast(tokenizer_object=",)
    )


# Unknown tokens.


def test_unknown_tokens_are_words_in_every_form(bert):
    text = "good \U0001f9ff"
    ids = bert.tokenizer(text)["input_ids"]
    assert ids[2] == bert.tokenizer.unk_token_id
    encodings = [bert.tokenizer(text), {"input_ids": ids}, bert.tokenizer(text, return_special_tokens_mask=True).data]
    for form in (text, ids, *encodings):
        with pytest.warns(UserWarning, match="the input: 1 of 2|row 0 of the encoding: 1 of 2"):
            assert bert.explain(form).special == (True, False, False, True)
    for form in ("\U0001f9ff", [101, 100, 102], [100]):
        with pytest.warns(UserWarning, match="1 of 1 tokens are unknown to the tokenizer: is it the model's own"):
            assert bert.explain(form).special.count(False) == 1


def test_an_unknown_token_that_has_another_use_stays_special():
    tokenizer = models.byte_pair()
    assert tokenizer.unk_token == "<unk>"
    same = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, unk_token="</s>", eos_token="</s>")
    explainer = DecompX(classifier("roberta", vocab=320), same, engine="reference")
    assert explainer.explain([7, 2]).special == (False, True)


def test_the_unknown_are_counted_once_for_a_call(bert):
    texts = [
        "good film",
        "\U0001f9ff",
        "\U0001f9ff x",
        "\U0001f9ff",
        "\U0001f9ff \U0001f9ff",
        "one unknown \U0001f9ff of many words",
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = bert.explain(texts)
    assert [str(w.message) for w in caught] == [
        "many tokens of 4 inputs are unknown to the tokenizer: is it the model's own? (input 1 (1 of 1 tokens), "
        "input 2 (1 of 2 tokens), input 3 (1 of 1 tokens) and 1 more)"
    ]
    assert [explanation.metadata.get("unknown_tokens", 0) for explanation in found] == [0, 1, 1, 1, 2, 1]


# Warnings.


def test_a_cut_is_said_once_for_a_call_at_the_users_line(bert):
    texts = ["good " * n for n in (3, 30, 40, 4, 50, 60, 70)]
    for call in (
        lambda: bert.explain(texts, truncate=True),
        lambda: bert(texts, truncate=True),
        lambda: list(bert.explain_iter(iter(texts), truncate=True, batch_size=1)),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert [str(w.message) for w in caught] == [
            "5 inputs were cut to the model's 20 positions: input 1 (32 tokens), input 2 (42 tokens), "
            "input 4 (52 tokens) and 2 more"
        ]
        assert caught[0].filename == __file__
        assert caught[0].lineno == call.__code__.co_firstlineno


def test_a_cut_is_said_when_the_call_ends_early(bert):
    stream = bert.explain_iter(iter(["good " * 30, None]), truncate=True, on_error="raise")
    with pytest.warns(UserWarning, match="input 0 has 32 tokens and was cut") as caught:
        next(stream)
    assert caught[0].filename == __file__


# Blanks.


def test_a_blank_by_itself_is_not_labelled_with_the_next_letter():
    pieces = [("<unk>", -5.0), ("\u2581", -2.0), ("\u2581the", -1.0), ("\u2581king", -1.0), ("\u6771\u4eac", -1.0)]
    tokenizer = Tokenizer(tokenizer_models.Unigram(pieces, 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    explainer = DecompX(classifier("xlm_roberta"), wrapped, engine="reference")
    for text, labels in (
        ("\u6771\u4eac king", ["\u2423", "\u6771\u4eac", "king"]),
        ("the \u6771\u4eac", ["the", "\u2423", "\u6771\u4eac"]),
    ):
        explanation = explainer.explain(text)
        assert source_labels(explanation) == labels
        assert "".join(t.strip() for t in explanation.words().tokens) == text.replace(" ", "")
        assert explainer.explain(text, sources="word").tokens[-1] == explanation.words().tokens[-1]
