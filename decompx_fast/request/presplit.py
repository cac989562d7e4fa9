"""Words that were split before they were given: which token is of which, and where they are in the joined text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ..result.words import Span


def numbered(words: Sequence[int | None], segments: Sequence[int | None]) -> tuple[int | None, ...]:
    """The words of both texts, counted on from the first to the second."""
    first = max((w + 1 for w, s in zip(words, segments, strict=True) if w is not None and s == 0), default=0)
    return tuple(None if w is None else w + (first if s else 0) for w, s in zip(words, segments, strict=True))


def places_of_words(
    encoding: Any, special: Sequence[bool], parts: Sequence[Sequence[str]]
) -> tuple[tuple[int | None, ...], tuple[Span | None, ...]]:
    """The word of each token, and where it is in the texts, of which a tokenizer tells the place in the word."""
    starts = [[0, *accumulate(len(word) + 1 for word in words)] for words in parts]
    words, segments, offsets = encoding.word_ids(0), encoding.sequence_ids(0), encoding["offset_mapping"]
    spans: list[Span | None] = []
    for n, (word, segment, is_special) in enumerate(zip(words, segments, special, strict=True)):
        if word is None or segment is None or is_special:
            spans.append(None)
            continue
        begin, size = starts[segment][word], len(parts[segment][word])
        start, end = (min(int(place), size) for place in offsets[n])
        if start and (n == 0 or (words[n - 1], segments[n - 1]) != (word, segment)):
            # Some byte-level tokenizers count the space that they put before a word as a character of it.
            goes_on = n + 1 < len(words) and (words[n + 1], segments[n + 1]) == (word, segment)
            start, end = 0, min(int(offsets[n + 1][0]), size) if goes_on else size
        spans.append((segment, begin + start, begin + end))
    return numbered(words, segments), tuple(spans)
