"""What cannot be explained is refused with a message that says what it got, what is allowed and what to do."""

from __future__ import annotations

import warnings

import explainers
import models
import numpy as np
import pytest
import torch
from models import classifier, token_ids
from refusals import message, refuses
from transformers import BertForPreTraining, BertModel

from decompx_fast import DecompX
from decompx_fast.errors import InputError, OptionError, UnsupportedModelError


@pytest.fixture(scope="module")
def bert() -> DecompX:
    return explainers.bert()


@pytest.fixture(scope="module")
def roberta() -> DecompX:
    return explainers.roberta()


@pytest.fixture(scope="module")
def bare() -> DecompX:
    """Without a tokenizer, for ids and encodings; vocabulary of 200, 40 positions, 2 token types."""
    return explainers.bare(engine="reference")


# Texts.


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\u3000"])
def test_empty_texts(bert, text):
    refuses(bert.explain, text, match=("the input is an empty text",))
    refuses(bert.explain, ["fine", text], match=("input 1 is an empty text",))
    refuses(bert.explain, ("fine", text), match=("the input is an empty text",))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("\x00", "U+0000"),
        ("\x00\x00 \x00", "U+0000"),
        ("\u200b", "U+200B"),
        ("\u200b\n\ufeff", "U+200B, U+FEFF"),
    ],
)
def test_texts_of_which_nothing_is_left(bert, text, named):
    match = ("the input is a text of which the tokenizer keeps nothing", f"({named})", "nothing to explain")
    refuses(bert.explain, text, match=match)


def test_nul_characters_inside_a_text_are_let_be(bert):
    explanation = bert.explain("good\x00 film")
    assert explanation.tokens == ("[CLS]", "good", "film", "[SEP]")
    assert explanation.texts == ("good\x00 film",)
    assert [explanation.texts[0][start:end] for _, start, end in explanation.spans[1:3]] == ["good", "film"]


def test_lone_surrogates(bert, roberta):
    for explainer in (bert, roberta):
        refuses(explainer.explain, ["fine", "bad \ud800 text"], match=("input 1", "not valid Unicode", "surrogates"))


def test_empty_lists(bert):
    for empty in ([], ()):
        refuses(bert.explain, empty, match=("the list of texts is empty", "give a text"))
    assert list(bert.explain_iter(iter([]))) == []


@pytest.mark.parametrize(
    ("thing", "name"), [(None, "NoneType"), (5, "int"), (2.5, "float"), (True, "bool"), (b"text", "bytes")]
)
def test_what_is_no_text(bert, thing, name):
    refuses(bert.explain, thing, match=(f"cannot explain a {name}", "give a text, a pair of texts as a tuple"))


def test_what_is_no_text_in_a_list(bert):
    for thing in (None, 5, b"text", 2.5, ["nested"], [["nested", "twice"]], [], ("a", "b", "c"), {"a": 1}, [1.5]):
        refuses(bert.explain, ["fine", thing], match=("input 1 is ", "give a text"))


def test_a_pair_holds_two_texts(bert):
    refuses(bert.explain, ("a", "b", "c"), match=("a tuple is a pair of texts, but this one holds 3", "use a list"))
    refuses(bert.explain, ("a",), match=("holds 1",))
    refuses(bert.explain, ("a", None), match=("input 1 is None",))


def test_texts_need_a_tokenizer(bare):
    refuses(bare.explain, "a text", match=("texts need a tokenizer", "DecompX(model, tokenizer)"))


def test_long_representations_are_cut(bert):
    assert len(message(InputError, bert.explain, [{"a": "x" * 10_000}])) < 300


# Length.


def test_too_many_tokens_names_both_numbers_and_the_ways_out(bert, roberta):
    for explainer, unit in ((bert, "good "), (roberta, "q")):
        text = unit * 19
        ways = ("21 tokens", "positions for 20", "truncate=True", "split the text", "more positions")
        refuses(explainer.explain, text, match=ways)
        assert len(explainer.explain(unit * 18)) == 20


def test_too_many_ids(bare):
    refuses(bare.explain, token_ids(41)[0], match=("41 tokens", "positions for 40"))
    refuses(bare.explain, {"input_ids": token_ids(41)}, match=("row 0 of the encoding has 41 tokens",))
    assert len(bare.explain(token_ids(40)[0])) == 40


def test_truncate_warns_and_cuts(bert, roberta):
    for explainer, text in ((bert, "a good film, " * 800), (roberta, "a gripping film " * 700)):
        assert len(text) > 10_000
        with pytest.warns(UserWarning, match=r"input 1 has \d+ tokens and was cut to the model's 20 positions"):
            short, long = explainer.explain(["why?", text], truncate=True)
        assert len(long) == 20 and long.special[0] and long.special[-1]
        assert long.texts == (text,)
        assert max(end for span in long.spans if span for end in span[2:]) < 200
        assert long.completeness_error < 1e-12


def test_truncate_does_not_warn_without_need(bert):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(bert.explain("why?", truncate=True)) == 4


def test_truncated_pairs_keep_both_texts(bert):
    with pytest.warns(UserWarning, match="was cut"):
        explanation = bert.explain(("good film " * 50, "not bad " * 50), truncate=True)
    assert len(explanation) == 20 and {span[0] for span in explanation.spans if span} == {0, 1}


@pytest.mark.parametrize("unit", ["word", "sentence"])
def test_text_that_was_cut_off_is_in_no_group(bert, unit):
    text = "A good film. " * 30
    with pytest.warns(UserWarning, match="was cut"):
        explanation = bert.explain(text, truncate=True, sources=unit)
    assert "".join(explanation.tokens).count("film") == 4  # 18 tokens: four sentences of 4, and two words
    assert explanation.completeness_error < 1e-12


def test_a_very_long_word(bert, roberta):
    with pytest.warns(UserWarning, match="1 of 1 tokens are unknown"):
        assert bert.explain("x" * 5000).tokens == ("[CLS]", "[UNK]", "[SEP]")
    refuses(roberta.explain, "x" * 5000, match=("tokens, and the model has positions for 20",))


# Token ids and encodings.


def test_only_special_tokens(bert):
    for ids in ([101, 102], torch.tensor([101, 102]), {"input_ids": [101, 102]}, {"input_ids": [[101, 102, 0]]}):
        refuses(bert.explain, ids, match=("only special tokens",))


def test_no_tokens(bare):
    refuses(bare.explain, torch.tensor([], dtype=torch.int64), match=("has no tokens",))
    refuses(bare.explain, {"input_ids": [[]]}, match=("row 0 of the encoding has no tokens",))
    refuses(bare.explain, {"input_ids": []}, match=("no",))


def test_ids_out_of_the_vocabulary(bare):
    for ids in ([7, 8, 200], [7, 8, -1], torch.tensor([7, 10**12])):
        wrong = str(int(ids[-1]))
        match = (f"holds {wrong} in input_ids", "embeddings for 0 to 199", "tokenizer")
        refuses(bare.explain, ids, match=("the input", *match))
        refuses(bare.explain, [[7, 8], ids], match=("input 1", *match))
    refuses(bare.explain, {"input_ids": [[7, 8], [7, 200]]}, match=("row 1 of the encoding holds 200",))
    assert len(bare.explain([0, 199])) == 2


def test_ids_of_another_tokenizer_are_refused():
    explainer = DecompX(classifier(vocab=200), models.word_piece())
    refuses(explainer.explain, "a good film", match=("embeddings for 0 to 199", "is this the model's own tokenizer?"))


def test_types_and_positions_out_of_range(bare, roberta):
    encoding = {"input_ids": [[7, 8, 9]], "token_type_ids": [[0, 1, 2]]}
    refuses(bare.explain, encoding, match=("holds 2 in token_type_ids", "embeddings for 0 to 1"))
    encoding = {"input_ids": [[7, 8, 9]], "position_ids": [[0, 1, 40]]}
    refuses(bare.explain, encoding, match=("holds 40 in position_ids", "embeddings for 0 to 39"))


def test_numbers_that_are_no_ids(bare):
    refuses(bare.explain, [1.0, 2.0], match=("input 0 is 1.0",))
    refuses(bare.explain, torch.tensor([1.0, 2.0]), match=("give a text",))
    refuses(bare.explain, torch.tensor([[1.0, 2.0]]), match=("input 0 is tensor", "token ids"))
    refuses(bare.explain, [True, False], match=("input 0 is True",))
    refuses(bare.explain, torch.tensor([True, False]), match=("input 0 is tensor(True)",))
    refuses(bare.explain, torch.zeros(2, 3, 4, dtype=torch.int64), match=("input 0 is tensor",))


@pytest.mark.parametrize(
    ("encoding", "match"),
    [
        ({}, ("no 'input_ids', only nothing",)),
        ({"attention_mask": [[1, 1]]}, ("no 'input_ids', only attention_mask",)),
        ({"input_ids": 5}, ("input_ids cannot be read as rows of whole numbers",)),
        ({"input_ids": None}, ("input_ids cannot be read as rows of whole numbers",)),
        ({"input_ids": "text"}, ("input_ids cannot be read as rows of whole numbers",)),
        ({"input_ids": [["a", "b"]]}, ("input_ids cannot be read as rows of whole numbers",)),
        ({"input_ids": [[1.5, 2.5]]}, ("input_ids must be [i] or [b, i] whole numbers", "float32")),
        ({"input_ids": [[True, False]]}, ("input_ids must be [i] or [b, i] whole numbers", "bool")),
        ({"input_ids": [[[7, 8]]]}, ("whole numbers", "2 axes")),
        ({"input_ids": [[7, 8]], "inputs_embeds": 1}, ("'inputs_embeds', which is not supported", "attention_mask")),
        ({"input_ids": [[7, 8]], "attention_mask": [[0, 0]]}, ("row 0", "all zero")),
        ({"input_ids": [[7, 8, 9]], "attention_mask": [[1, 0, 1]]}, ("row 0", "hides tokens between real ones")),
        ({"input_ids": [[7, 8]], "attention_mask": [[1]]}, ("the parts of the encoding differ in shape",)),
        ({"input_ids": [[7, 8]], "attention_mask": [[1, 1], [1, 1]]}, ("differ in shape",)),
        ({"input_ids": [[7, 8], [9]], "attention_mask": [[1, 1], [1, 1]]}, ("differ in shape",)),
        ({"input_ids": [[7, 8]], "attention_mask": [[[1, 1]]]}, ("attention_mask must be [i] or [b, i]",)),
    ],
)
def test_encodings_that_cannot_be_read(bare, encoding, match):
    refuses(bare.explain, encoding, match=match)


def test_ragged_encodings_are_rows_of_their_own_length(bare):
    ids = [[7, 8, 9], [10, 11]]
    together = bare.explain({"input_ids": ids, "attention_mask": [[1, 1, 1], [1, 1]]})
    assert [len(explanation) for explanation in together] == [3, 2]
    for explanation, row in zip(together, ids, strict=True):
        assert torch.equal(explanation.scores, bare.explain(row).scores)


def test_every_form_of_ids_is_the_same(bare):
    ids = [7, 8, 9]
    expected = bare.explain(ids).scores
    tensor = torch.tensor(ids)
    forms = [tensor, tensor.int(), tensor.to(torch.uint8), np.array(ids), tuple(ids), list(np.array(ids)), range(7, 10)]
    forms += [{"input_ids": form} for form in (ids, tensor, np.array(ids))]
    for form in forms:
        assert torch.equal(bare.explain(form).scores, expected)
    several = [[ids, ids], tensor.expand(2, 3), np.array([ids, ids]), [tensor, tensor], {"input_ids": [tensor, tensor]}]
    several += [{"input_ids": np.array([ids, ids]), "attention_mask": np.ones((2, 3), dtype=bool)}]
    for form in several:
        for explanation in bare.explain(form):
            assert (explanation.scores - expected).abs().max() < 1e-14


# Devices.


def test_tensors_on_another_device(bare):
    ids = token_ids().to("meta")
    match = ("on meta and the model on cpu", ".to('cpu')")
    refuses(bare.explain, ids[0], match=("the input is", *match))
    refuses(bare.explain, [[7, 8], ids[0]], match=("input 1 is", *match))
    refuses(bare.explain, {"input_ids": ids}, match=("input_ids is", *match))
    refuses(bare.explain, {"input_ids": token_ids(), "attention_mask": ids}, match=("attention_mask is", *match))


def test_a_model_that_is_not_loaded_or_spread_out():
    model = classifier().to("meta")
    refuses(DecompX(model).explain, [7, 8], match=("whole on one device", "meta", "without device_map"))
    model = classifier()
    model.classifier.to("meta")
    refuses(DecompX(model).explain, [7, 8], match=("cpu, meta", "without device_map"))


# Targets.


@pytest.mark.parametrize(
    ("targets", "match"),
    [
        ("positive", ("no class 'positive'", "did you mean 'POSITIVE'?")),
        (" Neutral ", ("did you mean 'NEUTRAL'?",)),
        ("POSITVE", ("no class 'POSITVE'", "did you mean 'POSITIVE'?", "'NEGATIVE' (0), 'NEUTRAL' (1)")),
        ("x", ("no class 'x': classes are 'NEGATIVE' (0)",)),
        (3, ("no class 3", "'POSITIVE' (2)")),
        (-1, ("no class -1",)),
        ([0, "neutral"], ("no class 'neutral'",)),
        ([], ("targets is an empty list",)),
        (1.0, ("targets holds 1.0", "a class's name or index")),
        (True, ("targets holds True",)),
        (b"POSITIVE", ("targets holds b'POSITIVE'",)),
        ([[1, -1, 0]], ("targets holds [1, -1, 0]", "a mapping of classes to weights")),
        (range(2), ("targets holds range(0, 2)",)),
        ({}, ("a direction in targets is empty",)),
        ({"NEUTRAL": "1"}, ("weight of 'NEUTRAL'", "finite number, got '1'")),
        ({"NEUTRAL": 10**400}, ("weight of 'NEUTRAL'", "finite number, got 1000000")),
        ({"NEUTRAL": 10**5000}, ("weight of 'NEUTRAL'", "finite number, got a int")),
        ({"NEUTRAL": 1e308, 1: 1e308}, ("weight of 1", "finite number, got inf")),
        ({"NEUTRAL": float("nan")}, ("weight of 'NEUTRAL'", "nan")),
        ({"NEUTRAL": True}, ("weight of 'NEUTRAL'", "True")),
        ({"NEUTRL": 1}, ("did you mean 'NEUTRAL'?",)),
        ({7: 1}, ("no class 7",)),
        (torch.tensor([1.0, -1.0]), ("3 finite weights, one per class, got tensor([ 1., -1.])",)),
        (torch.tensor([1.0, float("inf"), 0.0]), ("3 finite weights",)),
        (torch.ones(2, 3), ("3 finite weights",)),
        (torch.tensor([1, -1]), ("3 finite weights",)),
        (np.array([1.0, 2.0]), ("3 finite weights",)),
        (np.array(["a", "b", "c"]), ("3 finite weights",)),
        (torch.tensor(1.0), ("targets holds tensor(1.)",)),
    ],
)
def test_targets_that_do_not_exist(bare, targets, match):
    refuses(bare.explain, [7, 8], targets=targets, match=match)


def test_many_classes_are_not_all_listed():
    explainer = DecompX(classifier(labels=50))
    assert "and 38 more" in message(InputError, explainer.explain, [7, 8], targets="none of them")


# Sources.


@pytest.mark.parametrize(
    ("sources", "match"),
    [
        ("words", ("sources='words'", "'token', 'word', 'sentence'")),
        ("word", ("where each token lies in the text", "group ids")),
        ([0, 1], ("2 group ids for 3 tokens", "special ones count")),
        ([0, 1, 0.5], ("one whole number per token",)),
        ([0, 1, True], ("one whole number per token",)),
        (torch.tensor([0.0, 1, 2]), ("one whole number per token",)),
        (torch.zeros(1, 3, dtype=torch.int64), ("one whole number per token",)),
        (None, ("one whole number per token", "None")),
        (5, ("one whole number per token", "5")),
    ],
)
def test_sources_that_cannot_be(bare, sources, match):
    refuses(bare.explain, [7, 8, 9], sources=sources, match=match)


# Options.


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"engine": "fast"}, ("engine='fast' is not an engine", "'auto'", "'reference'")),
        ({"engine": 3}, ("engine=3 is not an engine",)),
        ({"engine": "adjoint"}, ("engine='adjoint' cannot answer", "bias='absdot'")),
        ({"dtype": "float8"}, ("dtype='float8' cannot be used", "'float64'", "'bfloat16'")),
        ({"dtype": torch.int64}, ("dtype=torch.int64",)),
        ({"dtype": np.float32}, ("cannot be used",)),
        ({"batch_size": 0}, ("batch_size=0", "whole number from 1")),
        ({"batch_size": -1}, ("batch_size=-1",)),
        ({"batch_size": 2.0}, ("batch_size=2.0",)),
        ({"batch_size": True}, ("batch_size=True",)),
        ({"batch_size": "8"}, ("batch_size='8'",)),
        ({"bais": "none"}, ("unknown option 'bais'", "did you mean 'bias'?")),
        ({"bias": "abs"}, ("bias='abs' is not an option", "'absdot'")),
        ({"ffn": 1}, ("ffn=1", "True, False")),
        ({"stages": "attn"}, ("stages='attn'", "'attention'")),
        ({"bias_token_split": "absdot"}, ("needs bias='bias_token'",)),
        ({"aggregation": "rollout"}, ("set head=False",)),
        ({"head": False, "targets": 0}, ("targets needs head=True",)),
    ],
)
def test_options_that_do_not_exist(bare, options, match):
    refuses(bare.explain, [7, 8], match=match, **options)
    if "targets" not in options:
        refuses(DecompX, bare.model, match=match, **options)


@pytest.mark.parametrize(
    ("name", "near"), [("target", "targets"), ("source", "sources"), ("truncation", "truncate"), ("engin", "engine")]
)
def test_misspelt_arguments_of_a_call(bare, name, near):
    refuses(bare.explain, [7, 8], match=(f"unknown option {name!r}: did you mean {near!r}?",), **{name: 0})


def test_classes_that_the_configuration_does_not_name():
    model = classifier()
    model.classifier = torch.nn.Linear(16, 5).double()
    refuses(DecompX(model).explain, [7, 8], match=("has 5 classes", "names 2", "set model.config.id2label"))


def test_explain_iter_refuses_at_once(bare):
    refuses(bare.explain_iter, [[7, 8]], engine="fast", match=("engine='fast'",))
    refuses(bare.explain_iter, None, match=("cannot explain a NoneType",))


def test_arguments_of_a_wrong_kind():
    model = classifier()
    refuses(DecompX, "bert-base-uncased", match=("model is a str", "DecompX.from_pretrained(path)"))
    refuses(DecompX, model, "bert-base-uncased", match=("tokenizer is a str",))
    refuses(DecompX, model, config={"bias": "none"}, match=("config is a dict", "DecompXConfig"), error=OptionError)
    text = message(UnsupportedModelError, DecompX, BertModel(model.config))
    assert "BertModel has no head" in text and "pooling='mean'" in text
    text = message(OptionError, DecompX, BertForPreTraining(model.config))
    assert "BertForPreTraining has two heads, and task= is not given: say which" in text
