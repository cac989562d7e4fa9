"""Tokens found in the text: by hand, with tokenizers that say where theirs are, and with those that do not."""

from __future__ import annotations

from pathlib import Path

import explanation_samples
import pytest
import slow_tokenizers
from hypothesis import given
from hypothesis import strategies as st
from models import classifier
from refusals import refuses

from decompx_fast import DecompX
from decompx_fast.request.alignment import align


def pieces(tokens: list[str], text: str, unknown: tuple[int, ...] = (), *, cut: bool = False) -> list[str] | None:
    """The characters of each token."""
    flags = [n in unknown for n in range(len(tokens))]
    spans = align(tokens, [False] * len(tokens), flags, [text], cut=cut)
    return spans and [text[start:end] for _, start, end in spans]


@pytest.mark.parametrize(
    ("tokens", "text", "expected"),
    [
        (["good", "film", "##s", "!"], "Good  films!", ["Good", "film", "s", "!"]),
        (["cafe", "naive"], "Café naïve", ["Café", "naïve"]),
        (["goo@@", "d", "f@@", "ilm"], "good film", ["goo", "d", "f", "ilm"]),
        (["goo", "d</w>", "film</w>"], "good film", ["goo", "d", "film"]),
        (["\u2581good", "\u2581", "film"], "good film", ["good", " ", "film"]),
        (["fi", "##lm"], "ﬁlm", ["ﬁ", "lm"]),
        (["f", "ilm"], "ﬁlm", ["ﬁ", "ﬁlm"]),  # two tokens share a ligature
        (["ss", "a"], "ß a", ["ß", "a"]),
        (["ABC", "1"], "\uff21\uff22\uff23 \uff11", ["\uff21\uff22\uff23", "\uff11"]),
        (["go", "od"], "go\u200bod", ["go", "od"]),
        (["e", "\u0301", "t"], "e\u0301t", ["e", "\u0301", "t"]),
        (["\u2581", "\u6771", "\u4eac"], "\u6771\u4eac", ["", "\u6771", "\u4eac"]),
        (["\u00c3", "\u00a9", "a"], "\u00e9a", ["\u00e9", "\u00e9", "a"]),  # bytes by their numbers
        (["\u0120caf", "\u00c3\u00a9"], "caf\u00e9", ["caf", "\u00e9"]),  # byte-level BPE
    ],
)
def test_tokens_of_every_kind_are_found(tokens, text, expected):
    assert pieces(tokens, text) == expected


@pytest.mark.parametrize(
    ("tokens", "unknown", "text", "expected"),
    [
        (["?", "a"], (0,), "xaz a", ["xaz", "a"]),
        (["?", "?", "a"], (0, 1), "xa ya a", ["xa", "ya", "a"]),
        (["a", "?", "?", "b"], (1, 2), "axyb", ["a", "x", "y", "b"]),
        (["a", "?"], (1,), "a b-c", ["a", "b-c"]),
        (["a", "?", "?", "b"], (1, 2), "a xyz b", ["a", "xyz", "xyz", "b"]),
        (["?"], (0,), " x\u6771 ", ["x\u6771"]),
        (["?", "film", "##s"], (0,), "filme films", ["filme", "film", "s"]),
    ],
)
def test_unknown_tokens_are_what_lies_between(tokens, unknown, text, expected):
    assert pieces(tokens, text, unknown) == expected


@pytest.mark.parametrize(
    ("tokens", "unknown", "text"),
    [
        (["bad"], (), "good"),
        (["good"], (), "good film"),  # something is left over
        (["good", "film"], (), "good"),
        (["?", "good"], (0,), "good"),
        (["good", "?"], (1,), "good "),
        (["mlif"], (), "film"),
    ],
)
def test_nothing_is_guessed(tokens, unknown, text):
    assert pieces(tokens, text, unknown) is None


def test_a_cut_text_may_go_on():
    assert pieces(["good"], "good film", cut=True) == ["good"]
    assert pieces(["\u00c3"], "\u00e9\u00e8", cut=True) == ["\u00e9"]
    assert pieces(["good", "?"], "good x y z", (1,), cut=True) == ["good", "x"]


@pytest.mark.parametrize("name", ["wordpiece", "byte_level", "unigram"])
@given(text=st.text(st.sampled_from("ago di\u00e9\u6771\u4eac\U0001f600,.\u0301'- kings"), min_size=1, max_size=30))
def test_the_same_as_tokenizers_that_say_where(name, text):
    """Characters that are no white space go to the same tokens; accents and blanks may fall to either neighbour."""
    encoding = getattr(explanation_samples, name)().encode(text)
    special = [bool(flag) for flag in encoding.special_tokens_mask]
    unknown = [token in ("[UNK]", "<unk>") for token in encoding.tokens]
    if all(special) or any(unknown):
        return
    spans = align(encoding.tokens, special, unknown, [text])
    assert spans is not None
    for n, (span, (start, end)) in enumerate(zip(spans, encoding.offsets, strict=True)):
        if span is None or not encoding.tokens[n].strip("\u2581"):
            continue
        assert letters(text[span[1] : span[2]]) == letters(text[start:end]), (encoding.tokens[n], span, (start, end))


def letters(text: str) -> str:
    return "".join(char for char in text if not char.isspace() and char != "\u0301")


# Real tokenizers.


def explained(tokenizer: object, text: object, vocab: int = 400, **options: object):
    model = classifier(vocab=vocab, positions=40, type_vocab_size=2)
    return DecompX(model, tokenizer, engine="reference").explain(text, **options)


def test_words_of_a_python_tokenizer(tmp_path: Path):
    with pytest.warns(UserWarning, match="3 of 6 tokens are unknown"):
        explanation = explained(slow_tokenizers.japanese(tmp_path), "Good films 東京は大きい。 Café")
    assert explanation.texts == ("Good films 東京は大きい。 Café",)
    shown = [explanation.source_text(k) for k in range(len(explanation))]
    assert shown == ["[CLS]", "Good", "film", "s", "東京は大きい", "。", "Café", "[SEP]"]
    words = explanation.words()
    assert words.tokens[1:3] == ("Good", "films")
    assert (words.scores.sum(0) - explanation.scores.sum(0)).abs().max() < 1e-12
    with pytest.warns(UserWarning, match="unknown"):
        by_word = explained(slow_tokenizers.japanese(tmp_path), "Good films 東京は大きい。 Café", sources="word")
    assert by_word.tokens == words.tokens


def test_pairs_of_a_python_tokenizer(tmp_path: Path):
    explanation = explained(slow_tokenizers.japanese(tmp_path), ("good film", "good films"))
    assert explanation.spans == (None, (0, 0, 4), (0, 5, 9), None, (1, 0, 4), (1, 5, 9), (1, 9, 10), None)


@pytest.mark.slow
def test_bytes_and_characters_are_found():
    text = "caf\u00e9 \U0001f600!"
    explanation = explained(slow_tokenizers.byte_tokens(), text)
    assert explanation.words().tokens == ("caf\u00e9", " ", "\U0001f600", "!", "</s>")
    tokens = [text[start:end] for _, start, end in explanation.spans[:-1]]
    assert tokens == [char for char in text for _ in char.encode()]
    encoding = slow_tokenizers.characters()(text)
    spans = align(
        slow_tokenizers.characters().convert_ids_to_tokens(encoding["input_ids"]),
        [True, *[False] * len(text), True],
        [False] * (len(text) + 2),
        [text],
    )
    assert spans == (None, *[(0, n, n + 1) for n in range(len(text))], None)


def test_pieces_that_end_in_marks(tmp_path: Path):
    explanation = explained(slow_tokenizers.tweets(tmp_path), "good film")
    assert [explanation.source_text(k) for k in range(1, len(explanation) - 1)] == ["goo", "d", "film"]


def test_a_cut_text_of_a_python_tokenizer(tmp_path: Path):
    with pytest.warns(UserWarning, match="the input has 62 tokens and was cut to the model's 40 positions"):
        explanation = explained(slow_tokenizers.japanese(tmp_path), "good films " * 20, truncate=True)
    assert explanation.spans[1:4] == ((0, 0, 4), (0, 5, 9), (0, 9, 10))
    assert explanation.metadata["truncated_from"] == 62


def test_tokens_that_do_not_follow_the_text_blame_the_tokenizer():
    explanation = explained(slow_tokenizers.Reversing(), "good film")
    assert explanation.tokens == ("doog", "mlif") and explanation.texts == ("good film",)
    refuses(explanation.words, match=("this tokenizer does not say where its tokens are", "fast tokenizer"))
    refuses(
        explained, slow_tokenizers.Reversing(), "good film", sources="word", match=("does not say where", "group ids")
    )
