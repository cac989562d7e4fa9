"""Where in a text: tokens by index, stretches of characters, words."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InputError, shown
from ...result.tokens import readable_tokens
from ...result.words import NO_PLACES, Span, TokenGroup
from ..encoded import Encoded
from ..sources import word_groups
from .columns import index_of

#: The forms of ``at=``, for messages.
FORMS = (
    "use a token's index, (start, end) in characters, (text, start, end) in a pair, Word(n), 'all', or a list of these"
)

#: So many places of a string are listed.
_LISTED = 5


@dataclass(frozen=True)
class Word:
    """The word number ``index`` of a text, from 0; of a pair, of the one number ``text``.

    Words are those of :meth:`decompx_fast.Explanation.words`; of pre-split words, these.
    """

    index: int
    text: int = 0


@dataclass(frozen=True)
class Place:
    """What one item of ``at=`` names: its tokens, in their order."""

    tokens: tuple[int, ...]


def resolve_places(at: Any, encoded: Encoded, *, readable: Sequence[int] = ()) -> list[Place]:
    """The tokens that the user names.

    Args:
        at: a token's index (negative ones count from the end); ``(start, end)``, characters of the text, or
            ``(text, start, end)`` of a pair; a :class:`Word`; a string that occurs once; ``"all"``, every token of the
            texts; or a list of these.
        encoded: the input.
        readable: special tokens that can be named all the same.

    Raises:
        InputError: for what is beyond the text, for a special token, and for a string that is not there or is there
            twice; the message lists the places.
    """
    items = at if isinstance(at, list) else [at]
    if not items:
        raise InputError(f"at is an empty list: {FORMS}")
    places: list[Place] = []
    for item in items:
        if isinstance(item, str) and item == "all":
            places += [Place((n,)) for n in range(len(encoded)) if not encoded.special[n] or n in readable]
            continue
        place = _place(item, encoded)
        for token in place.tokens:
            if encoded.special[token] and token not in readable:
                raise InputError(
                    f"at={_said(item)} is the special token {encoded.tokens[token]!r}, which is no part of the text: "
                    f"name a token of it ({_ordinary(encoded)})"
                )
        places.append(place)
    return places


def name_of_token(encoded: Encoded, position: int) -> str:
    """How a token is read: its characters in the text, or its token without marks."""
    span = encoded.spans[position]
    if span is not None and not encoded.special[position] and span[1] < span[2]:
        return _one_line(encoded.texts[span[0]][span[1] : span[2]]) or encoded.tokens[position]
    return readable_tokens(encoded.tokens, encoded.special)[position].strip() or encoded.tokens[position]


def name_of_word(encoded: Encoded, word: TokenGroup) -> str:
    """How a word is read."""
    if word.span is not None and encoded.texts and word.span[1] < word.span[2]:
        return _one_line(encoded.texts[word.span[0]][word.span[1] : word.span[2]])
    return text_of_tokens(encoded, word.positions)


def text_of_tokens(encoded: Encoded, positions: Sequence[int]) -> str:
    """Tokens as they are read together, where the text is not known: a mark for "goes on" joins two."""
    readable = readable_tokens(encoded.tokens, encoded.special)
    parts = [
        ("" if n == 0 or encoded.tokens[p].startswith("##") else " ") + readable[p].strip()
        for n, p in enumerate(positions)
    ]
    return "".join(parts)


def _place(item: Any, encoded: Encoded) -> Place:
    if isinstance(item, Word):
        return _of_word(item, encoded)
    if isinstance(item, str):
        return _of_span(_only_place(item, encoded), item, encoded)
    if isinstance(item, tuple):
        return _of_span(_span(item, encoded), item, encoded)
    index, count = index_of(item), len(encoded)
    if index is None:
        raise InputError(f"at={_said(item)}: {FORMS}")
    if not -count <= index < count:
        raise InputError(f"at={index} is beyond the input, which has {count} tokens: use 0 to {count - 1}")
    return Place((index % count,))


def _of_word(word: Word, encoded: Encoded) -> Place:
    index, text = index_of(word.index), index_of(word.text)
    if index is None or text is None:
        raise InputError(f"at={shown(word)}: use whole numbers, as Word(3), or Word(3, text=1) of a pair")
    texts = max(len(encoded.texts), 1)
    if not 0 <= text < texts:
        known = f"there are {texts}, counted from 0" if encoded.texts else "of an encoding, words are counted on"
        raise InputError(f"at={shown(word)} names the text {text}: {known}")
    words = _numbered_words(encoded, text)
    if index in words:
        return Place(words[index].positions)
    count = max(words, default=-1) + 1
    if 0 <= index < count:
        raise InputError(f"at=Word({index}) has no token: the tokenizer keeps nothing of that word")
    raise InputError(f"at=Word({index}) is beyond the text, which has {count} words: use 0 to {count - 1}")


def _numbered_words(encoded: Encoded, text: int) -> dict[int, TokenGroup]:
    """The words of one text by their numbers; of words that were split before, some may have no token."""
    words = [one for one in words_of(encoded) if one.span is None or one.span[0] == text]
    if encoded.words is None:
        return dict(enumerate(words))
    pairs = zip(encoded.words, encoded.spans, strict=True)
    before = max((number + 1 for number, span in pairs if number is not None and span and span[0] < text), default=0)
    numbers = [encoded.words[one.positions[0]] for one in words]
    return {number - before: one for number, one in zip(numbers, words, strict=True) if number is not None}


def words_of(encoded: Encoded) -> list[TokenGroup]:
    """The words of the texts, without special tokens.

    Raises:
        InputError: if nobody knows which tokens belong together.
    """
    if encoded.words is None:
        if not encoded.texts:
            raise InputError(
                "the words of token ids are not known: give a text or a fast tokenizer's encoding, or name tokens by "
                "at=[3, 7]"
            )
        if not any(encoded.spans):
            raise InputError(f"the words cannot be told: {NO_PLACES}; name tokens by at=[3, 7]")
    return [group for group in word_groups(encoded) if not encoded.special[group.positions[0]]]


def _span(item: tuple[Any, ...], encoded: Encoded) -> Span:
    if not encoded.texts:
        raise InputError(f"at={_said(item)} counts characters, and only token ids were given: use a token's index")
    whole = len(item) in (2, 3) and all(hasattr(n, "__index__") and not isinstance(n, bool) for n in item)
    if not whole:
        raise InputError(f"at={_said(item)}: {FORMS}")
    numbers = tuple(map(operator.index, item))
    if len(numbers) == 2 and len(encoded.texts) > 1:
        raise InputError(
            f"at={_said(item)} does not say which text of the pair it counts in: give (text, start, end), with text 0 "
            "or 1"
        )
    segment, start, end = numbers if len(numbers) == 3 else (0, *numbers)
    if not 0 <= segment < len(encoded.texts):
        raise InputError(f"at={_said(item)} names the text {segment}: there are {len(encoded.texts)}, counted from 0")
    length = len(encoded.texts[segment])
    if not 0 <= start < end <= length:
        raise InputError(
            f"at={_said(item)} is beyond the text, which has {length} characters: use 0 <= start < end <= {length}"
        )
    return segment, start, end


def _only_place(string: str, encoded: Encoded) -> Span:
    if not encoded.texts:
        raise InputError(f"at={string!r} is looked for in the text, and only token ids were given: use a token's index")
    found: list[Span] = []
    for segment, text in enumerate(encoded.texts):
        start = text.find(string) if string else -1
        while start >= 0:
            found.append((segment, start, start + len(string)))
            start = text.find(string, start + 1)
    if not found:
        raise InputError(f"at={string!r} is not in the text: {FORMS}")
    if len(found) > 1:
        pair = len(encoded.texts) > 1
        listed = ", ".join(str(span if pair else span[1:]) for span in found[:_LISTED])
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        raise InputError(f"at={string!r} occurs {len(found)} times in the text: say which, as one of {listed}{more}")
    return found[0]


def _of_span(span: Span, item: Any, encoded: Encoded) -> Place:
    if not any(encoded.spans):
        raise InputError(f"at={_said(item)} cannot be found: {NO_PLACES}; use a token's index")
    segment, start, end = span
    tokens = [n for n, one in enumerate(encoded.spans) if one and one[0] == segment and one[1] < end and start < one[2]]
    if not tokens:
        cut = " that was read (the input was cut)" if "truncated_from" in encoded.about else ""
        raise InputError(f"at={_said(item)} has no token{cut}: there are {encoded.texts[segment][start:end]!r}")
    return Place(tuple(tokens))


def _ordinary(encoded: Encoded) -> str:
    known = [n for n, special in enumerate(encoded.special) if not special]
    return f"{known[0]} to {known[-1]}"


def _said(item: Any) -> str:
    return f"Word({item.index})" if isinstance(item, Word) else shown(item)


def _one_line(text: str) -> str:
    return " ".join(text.split())
