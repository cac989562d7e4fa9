"""Words by characters of the text: boundaries, and which token belongs where, for every kind of tokenizer."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from explanation_samples import byte_level, sample, simple, unigram, wordpiece
from hypothesis import example, given
from hypothesis import strategies as st

from decompx_fast.errors import InputError
from decompx_fast.result.words import group_by_word, segment_words

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
TECHNOLOGIST = "\U0001f469\U0001f3fd\u200d\U0001f4bb"
ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"

# Most of what hypothesis draws is exotic; this mixes in what decides about words.
TEXTS = st.text() | st.lists(
    st.sampled_from(["a", "Z", "3", "don't", ".", ",", "-", "'", " ", "\n", "\u6771", "\u30fc", "\ud55c", "\u05d0"])
    | st.sampled_from(
        [FAMILY, TECHNOLOGIST, ENGLAND, "\u200d", "\u200b", "\ufe0f", "\u0301", "\U0001f1e9", "\U0001f3fd"]
    )
    | st.characters(exclude_categories=["Cs"]),
    max_size=12,
).map("".join)


def words_of(text: str) -> list[str]:
    return [text[start:end] for start, end, is_space in segment_words(text) if not is_space]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A good, film.", ["A", "good", ",", "film", "."]),
        ("don't well-made 3.5 1,000 x_1", ["don't", "well-made", "3.5", "1,000", "x_1"]),
        (
            "the dogs' 'tis a--b end.Start",
            ["the", "dogs", "'", "'", "tis", "a", "--", "b", "end", ".", "Start"],
        ),
        ('"wow!!!" (yes...)', ['"', "wow", "!!!", '"', "(", "yes", "...", ")"]),
        ("$5 100% a@b.c C++", ["$", "5", "100", "%", "a", "@", "b", ".", "c", "C", "++"]),
        ("caf\u00e9 cafe\u0301 na\u00efve", ["caf\u00e9", "cafe\u0301", "na\u00efve"]),
        ("\u6771\u4eac\u30bf\u30ef\u30fc\u3002", ["\u6771", "\u4eac", "\u30bf", "\u30ef\u30fc", "\u3002"]),
        ("\ud55c\uad6d\uc5b4 \uc601\ud654\ub294", ["\ud55c\uad6d\uc5b4", "\uc601\ud654\ub294"]),
        (
            "\u0645\u0631\u062d\u0628\u0627\u060c \u0661\u066b\u0665",
            ["\u0645\u0631\u062d\u0628\u0627", "\u060c", "\u0661\u066b\u0665"],
        ),
        ("\u05e6\u05d4\u05f4\u05dc \u200f\u05d0\u05d1", ["\u05e6\u05d4\u05f4\u05dc", "\u200f\u05d0\u05d1"]),
        (
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            ["\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"],
        ),
        (
            f"{FAMILY}{TECHNOLOGIST}\U0001f600\U0001f600ok",
            [FAMILY, TECHNOLOGIST, "\U0001f600", "\U0001f600", "ok"],
        ),
        (ENGLAND + "\u2764\ufe0f\u203c\ufe0f", [ENGLAND, "\u2764\ufe0f", "\u203c\ufe0f"]),
        (
            "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7\U0001f1fa",
            ["\U0001f1e9\U0001f1ea", "\U0001f1eb\U0001f1f7", "\U0001f1fa"],
        ),
        ("a\u200bb\u3000c\u00a0d", ["a", "b", "c", "d"]),
        ("a\x00b", ["a\x00b"]),
        ("", []),
        (" \n\t", []),
    ],
)
def test_segment_words_boundaries(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@given(TEXTS)
def test_segment_words_covers_every_character_once(text: str) -> None:
    segments = segment_words(text)
    assert [segment.start for segment in segments] == [0, *(segment.end for segment in segments)][: len(segments)]
    assert "".join(text[start:end] for start, end, _ in segments) == text
    assert all(start < end for start, end, _ in segments)


@given(TEXTS)
def test_segment_words_keeps_spaces_and_words_apart(text: str) -> None:
    for start, end, is_space in segment_words(text):
        assert {char.isspace() or char == "\u200b" for char in text[start:end]} == {is_space}


@pytest.mark.parametrize("text", ["It isn't unbelievably well-made, rated 3.5.", "\u6771\u4eac \U0001f600 caf\u00e9"])
@pytest.mark.parametrize(
    "tokenizer",
    [wordpiece, byte_level, lambda: byte_level(False)],
    ids=["wordpiece", "byte_level", "with_space"],
)
def test_words_of_every_tokenizer_are_those_of_the_text(text, tokenizer) -> None:
    words = sample(text, tokenizer()).words()
    found = [token for token, is_special in zip(words.tokens, words.special, strict=True) if not is_special]
    assert [word for word in found if word.strip()] == words_of(text)


def test_words_of_wordpiece_add_scores_by_hand() -> None:
    tokens = ("[CLS]", "un", "##believ", "##able", ",", "don", "'", "t", "[SEP]")
    spans = (None, (0, 0, 2), (0, 2, 8), (0, 8, 12), (0, 12, 13), (0, 14, 17), (0, 17, 18), (0, 18, 19), None)
    words = simple(
        [1, 2, 4, 8, 16, 32, 64, 128, 256],
        tokens=tokens,
        spans=spans,
        texts=("unbelievable, don't",),
        special=(True, *[False] * 7, True),
        token_ids=range(9),
        stages={"attention.0": torch.zeros(9, 9)},
    ).words()
    assert words.tokens == ("[CLS]", "unbelievable", ",", "don't", "[SEP]")
    assert words.scores[:, 0].tolist() == [1, 2 + 4 + 8, 16, 32 + 64 + 128, 256]
    assert words.spans == (None, (0, 0, 12), (0, 12, 13), (0, 14, 19), None)
    assert words.special == (True, False, False, False, True)
    assert (words.source_unit, words.token_ids, words.stages) == ("word", None, {})
    assert words.texts == ("unbelievable, don't",)


def test_words_bytes_of_one_emoji_merge() -> None:
    explanation = sample(f"ok {TECHNOLOGIST}!", byte_level())
    words = explanation.words()
    assert [token for token in words.tokens if token.strip()] == ["<s>", "ok", TECHNOLOGIST, "!", "</s>"]
    assert len(explanation) > 12  # the bytes of four code points


def test_words_token_of_no_width_goes_to_what_stands_there() -> None:
    explanation = simple(
        [1, 2, 4, 8],
        tokens=("a", "\u0120", "\u0120", "b"),
        spans=((0, 0, 1), (0, 2, 2), (0, 3, 3), (0, 3, 4)),
        texts=("a  b",),
        special=(False,) * 4,
    )
    words = explanation.words()
    assert words.tokens == ("a", "  ", "b")
    assert words.scores[:, 0].tolist() == [1, 2, 4 + 8]


def test_words_token_across_words_goes_to_the_larger_part() -> None:
    explanation = sample("king of the \u6771\u4eac\u306f", unigram())
    pieces = [token for token in explanation.tokens if token != "\u2581"]
    assert pieces == ["\u2581king", "\u2581of\u2581the", "\u6771\u4eac", "\u306f"]
    words = explanation.words()
    assert [token for token in words.tokens if token.strip()] == ["king", "of the", "\u6771\u4eac", "\u306f"]

    # "ab c" has its larger part in "ab"; "c" has a token of its own, so it stays a word.
    groups = group_by_word([(0, 0, 4), (0, 3, 4)], [False, False], ["ab c"])
    assert [(group.positions, group.span) for group in groups] == [((0,), (0, 0, 2)), ((1,), (0, 3, 4))]


@pytest.mark.parametrize(
    ("text", "spans", "groups"),
    [
        # A word wins over whitespace, however much of that the token covers.
        ("x    a", [(0, 0, 1), (0, 1, 6)], [(0, 0, 1), (0, 5, 6)]),
        # The middle ideograph is covered by both tokens and chosen by none: only the first takes it.
        ("\u6771\u4eacab", [(0, 0, 2), (0, 1, 4)], [(0, 0, 2), (0, 2, 4)]),
    ],
)
def test_group_by_word_spans(text: str, spans: list, groups: list) -> None:
    assert [group.span for group in group_by_word(spans, [False] * len(spans), [text])] == groups


def test_words_of_a_pair_stay_in_their_text() -> None:
    words = sample(["same", "same"]).words()
    assert words.tokens == ("[CLS]", "same", "[SEP]", "same", "[SEP]")
    assert words.spans == (None, (0, 0, 4), None, (1, 0, 4), None)


def test_words_unknown_places_stay_alone() -> None:
    explanation = simple([1, 2, 4], spans=(None, None, (0, 0, 1)), special=(False, False, False))
    assert explanation.words().scores[:, 0].tolist() == [1, 2, 4]


def test_words_twice_is_once() -> None:
    words = sample("unbelievable").words()
    assert words.words() is words


def test_words_refuse_what_has_no_tokens_or_text() -> None:
    with pytest.raises(InputError, match="sentences"):
        simple([1, 2], source_unit="sentence").words()
    with pytest.raises(InputError, match="only token ids"):
        simple([1, 2], texts=(), spans=(None, None)).words()


@pytest.mark.parametrize(
    "tokenizer",
    [wordpiece, byte_level, lambda: byte_level(False)],
    ids=["wordpiece", "byte_level", "with_space"],
)
@given(text=TEXTS)
@example(text="\ufffd \x00")
@example(text="\u6771\u4eac\u30bf\u30ef\u30fc " + FAMILY)
def test_words_conserve_totals_and_cover_every_token_once(tokenizer, text: str) -> None:
    explanation = sample(text, tokenizer())
    groups = group_by_word(explanation.spans, explanation.special, explanation.texts)
    assert sorted(k for group in groups for k in group.positions) == list(range(len(explanation)))

    words = explanation.words()
    for before, after in zip(explanation.scores.T.tolist(), words.scores.T.tolist(), strict=True):
        assert sum(map(Fraction, before)) == sum(map(Fraction, after))
    assert sum(words.special) == sum(explanation.special)

    ends = 0
    for span in sorted(span for span in words.spans if span is not None):
        assert ends <= span[1] <= span[2] <= len(text)
        ends = span[2]


@given(TEXTS, st.data())
def test_group_by_word_accepts_any_spans(text: str, data: st.DataObject) -> None:
    place = st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).map(sorted)
    spans = [(0, *span) if span else None for span in data.draw(st.lists(st.none() | place, max_size=8))]
    special = data.draw(st.lists(st.booleans(), min_size=len(spans), max_size=len(spans)))
    groups = group_by_word(spans, special, [text])
    assert sorted(k for group in groups for k in group.positions) == list(range(len(spans)))
    taken = [group.span[1:] for group in groups if group.span and not special[group.positions[0]] and text]
    assert all(before[1] <= after[0] for before, after in zip(sorted(taken), sorted(taken)[1:], strict=False))
