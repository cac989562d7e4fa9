"""`at=`: each form finds its tokens, and what cannot be found is refused with what there is."""

from __future__ import annotations

import models
import numpy as np
import pytest
import torch
from refusals import refuses
from task_samples import encode

from decompx_fast.request.tasks.places import Word, resolve_places, words_of

TEXT = "Unbelievably good, and good again."


@pytest.fixture(scope="module")
def encoded():
    found = encode(models.word_piece(), TEXT)
    assert found.tokens == (
        *("[CLS]", "un", "##bel", "##ie", "##va", "##bly", "good", ",", "and", "good", "again", ".", "[SEP]"),
    )
    return found


@pytest.mark.parametrize(
    ("at", "tokens"),
    [
        (6, [(6,)]),
        (-2, [(11,)]),
        (np.int64(6), [(6,)]),
        (torch.tensor(6), [(6,)]),
        ((0, 12), [(1, 2, 3, 4, 5)]),
        ((13, 18), [(6, 7)]),
        ((14, 15), [(6,)]),  # a part of a token
        (Word(0), [(1, 2, 3, 4, 5)]),
        (Word(4), [(9,)]),
        ("again", [(10,)]),
        ([3, Word(1), (0, 2)], [(3,), (6,), (1,)]),
        ("all", [(n,) for n in range(1, 12)]),
    ],
)
def test_each_form_finds_its_tokens(encoded, at, tokens):
    assert [place.tokens for place in resolve_places(at, encoded)] == tokens


@pytest.mark.parametrize(
    ("at", "match"),
    [
        (13, ("at=13 is beyond the input, which has 13 tokens", "0 to 12")),
        (-14, ("beyond the input",)),
        ((30, 40), ("beyond the text, which has 34 characters", "end <= 34")),
        ((5, 5), ("start < end",)),
        (Word(7), ("at=Word(7) is beyond the text, which has 7 words: use 0 to 6",)),
        (0, ("special token '[CLS]'", "1 to 11")),
        (-1, ("special token '[SEP]'",)),
        ("good", ("occurs 2 times", "(13, 17), (23, 27)")),
        ("bad", ("at='bad' is not in the text", "Word(n)")),
        ("", ("is not in the text",)),
        ((12, 13), ("has no token", "' '")),
        (True, ("at=True", "token's index")),
        (1.5, ("at=1.5",)),
        ((1, 2, 3, 4), ("(start, end) in characters",)),
        ((3, 0, 4), ("names the text 3: there are 1",)),
        ([], ("empty list",)),
    ],
)
def test_places_that_are_none_are_refused(encoded, at, match):
    refuses(resolve_places, at, encoded, match=match)


def test_places_in_a_pair_say_which_text():
    pair = encode(models.word_piece(), ("Who won?", "She won it."))
    assert [p.tokens for p in resolve_places([(1, 4, 7), Word(0, text=1)], pair)] == [(6,), (5,)]
    refuses(resolve_places, (0, 3), pair, match=("which text of the pair", "(text, start, end)"))
    refuses(resolve_places, "won", pair, match=("(0, 4, 7), (1, 4, 7)",))


def test_places_of_ids_are_indices():
    ids = encode(models.word_piece(), [101, 2204, 102])
    assert resolve_places(1, ids)[0].tokens == (1,)
    refuses(resolve_places, (0, 3), ids, match=("counts characters", "token's index"))
    refuses(resolve_places, "good", ids, match=("only token ids were given",))
    refuses(resolve_places, Word(0), ids, match=("words of token ids are not known",))


def test_a_place_that_was_cut_off_says_so():
    from decompx_fast.request.encoding import Reader

    with pytest.warns(UserWarning, match="cut"):
        (cut,) = Reader(models.word_piece(), 6, truncate=True).read(TEXT)[0]
    refuses(resolve_places, "again", cut, match=("the input was cut",))


def test_special_tokens_can_be_allowed(encoded):
    assert resolve_places(0, encoded, readable=[0])[0].tokens == (0,)


def test_words_of_an_encoding_are_its_tokenizer_s():
    tokenizer = models.word_piece()
    (found,) = encode_all(tokenizer, tokenizer("Unbelievably good"))
    assert [group.positions for group in words_of(found)] == [(1, 2, 3, 4, 5), (6,)]
    pair = tokenizer("a b", "c", padding="max_length", max_length=9)
    (found,) = encode_all(tokenizer, pair)
    assert [group.positions for group in words_of(found)] == [(1,), (2,), (4,)]


def encode_all(tokenizer, item):
    from decompx_fast.request.encoding import Reader

    return list(Reader(tokenizer, None).read(item)[0])
