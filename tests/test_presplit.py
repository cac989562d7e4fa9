"""Words that were split before: their tokens, their places in the joined text, and messages."""

from __future__ import annotations

import models
import pytest
from refusals import refuses
from task_samples import encode
from tokenizers import pre_tokenizers

from decompx_fast.request.encoding import Reader
from decompx_fast.request.sources import resolve_sources
from decompx_fast.request.tasks.places import Word, resolve_places

WORDS = ["Dr.", "Jackson", "isn't", "unbelievably", "ill"]


def byte_level():
    """RoBERTa's kind, as it must be made for words: each is read after a space."""
    tokenizer = models.byte_pair()
    backend = tokenizer.backend_tokenizer
    copied = type(backend).from_str(backend.to_str())
    copied.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return type(tokenizer)(
        tokenizer_object=copied, **{k: tokenizer.special_tokens_map[k] for k in tokenizer.special_tokens_map}
    )


@pytest.mark.parametrize("tokenizer", [models.word_piece, byte_level], ids=["wordpiece", "byte-level"])
def test_words_and_places_are_those_that_were_given(tokenizer):
    tokenizer = tokenizer()
    encoded = encode(tokenizer, WORDS, split=True)
    assert encoded.texts == (" ".join(WORDS),)
    expected = tokenizer(WORDS, is_split_into_words=True)
    assert encoded.inputs["input_ids"].tolist() == expected["input_ids"]
    assert list(encoded.words) == expected.word_ids()
    sources = resolve_sources("word", encoded)
    assert list(sources.names[1:-1]) == WORDS
    for word, group in zip(WORDS, sources.groups[1:-1], strict=True):
        _, start, end = group.span
        assert encoded.texts[0][start:end] == word
        tokens = [encoded.spans[p] for p in group.positions]
        assert (tokens[0][1], tokens[-1][2]) == (start, end)
    assert resolve_places(Word(2), encoded)[0].tokens == sources.groups[3].positions


def test_a_pair_of_lists_is_a_pair():
    encoded = encode(models.word_piece(), (["Who", "won?"], ["She", "did."]), split=True)
    assert encoded.texts == ("Who won?", "She did.")
    assert encoded.words == (None, 0, 1, 1, None, 2, 3, 3, None)
    assert encoded.spans[5] == (1, 0, 3)
    assert resolve_places(Word(1, text=1), encoded)[0].tokens == (6, 7)


def test_several_lists_are_several_inputs():
    found, single = Reader(models.word_piece(), None, split=True).read([["a", "b"], (["c"], ["d"])])
    assert not single
    assert [one.texts for one in found] == [("a b",), ("c", "d")]


def test_what_is_no_list_of_words_is_refused():
    reader = Reader(models.word_piece(), None, split=True)
    refuses(lambda: list(reader.read(["a", 1])[0]), match=("input 0 is 'a'", "list of strings"))
    refuses(lambda: list(reader.read("a text")[0]), match=("is_split_into_words=True", "the words of a text"))
    refuses(lambda: list(reader.read([["a"], ("b", "c")])[0]), match=("input 1 is ('b', 'c')", "pair of such lists"))
    refuses(lambda: list(reader.read([" ", ""])[0]), match=("empty text",))
    refuses(lambda: list(Reader(None, None, split=True).read(["a"])[0]), match=("need a tokenizer",))
