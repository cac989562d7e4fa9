"""Where the tokens of a text are, for tokenizers that do not say: found by reading both side by side.

Text and tokens are compared without what tokenizers change: case, accents, width, white space, and the marks of word
pieces. Where a token does not follow in the text, there is no alignment: nothing is guessed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from ..result.tokens import BLANK, BYTE_OF_CHAR
from ..result.words import Span, segment_words

#: How tokenizers mark that a piece goes on, or ends a word.
_PREFIX = "##"
_SUFFIXES = ("@@", "</w>")

#: Categories of characters that tokenizers drop or change: controls, marks, white space.
_IGNORED = ("Cc", "Cf", "Mn", "Me", "Zs", "Zl", "Zp")


class _Unit(NamedTuple):
    """A character of a folded text, and the place of the one that it came from."""

    char: str
    place: int
    ignored: bool


def align(
    tokens: Sequence[str], special: Sequence[bool], unknown: Sequence[bool], texts: Sequence[str], *, cut: bool = False
) -> tuple[Span | None, ...] | None:
    """Find the characters of every token.

    Args:
        tokens: as the tokenizer writes them.
        special: whether the tokenizer added each; these separate the texts.
        unknown: whether each stands for something that is not in the vocabulary.
        texts: the text, or the pair.
        cut: whether the texts may go on after their last tokens.

    Returns:
        ``(segment, start, end)`` for each token that is not special, or ``None`` if the tokens do not follow the text.
    """
    runs = [
        [n for n, _ in run] for is_special, run in groupby(enumerate(special), lambda item: item[1]) if not is_special
    ]
    if len(runs) != len(texts):
        return None
    spans: list[Span | None] = [None] * len(tokens)
    for segment, (run, text) in enumerate(zip(runs, texts, strict=True)):
        words = [tokens[n] for n in run]
        places = _Reading(text, words, [unknown[n] for n in run], cut).places() or _by_bytes(words, text, cut)
        if places is None:
            return None
        for n, (start, end) in zip(run, places, strict=True):
            spans[n] = (segment, start, end)
    return tuple(spans)


class _Reading:
    """One text and the tokens that were made of it."""

    def __init__(self, text: str, tokens: Sequence[str], unknown: Sequence[bool], cut: bool) -> None:
        self.text = text
        self.units = _fold(text)
        self.forms = [_forms(token) for token in tokens]
        self.unknown = unknown
        self.cut = cut
        segments = [segment for segment in segment_words(text) if not segment.is_space]
        self.words = [(segment.start, segment.end) for segment in segments]

    def places(self) -> list[tuple[int, int]] | None:
        """``(start, end)`` for each token."""
        found: list[tuple[int, int]] = []
        cursor, waiting = 0, 0  # unknown tokens whose end only the next known one tells
        for is_unknown, run in groupby(range(len(self.forms)), lambda n: self.unknown[n]):
            members = list(run)
            if is_unknown:
                waiting = len(members)
                continue
            ends_text = members[-1] + 1 == len(self.forms) and not self.cut
            start, known = self._after_gap(cursor, waiting, members, ends_text)
            if known is None:
                return None
            found += self._share(cursor, start, waiting)
            found += [place for place, _ in known]
            cursor, waiting = known[-1][1], 0
        if waiting:
            if self._skip(cursor) == len(self.units):
                return None
            found += self._share(cursor, len(self.units), waiting)
        elif not self.cut and self._skip(cursor) < len(self.units):
            return None
        return found

    def _after_gap(
        self, cursor: int, waiting: int, members: Sequence[int], ends_text: bool
    ) -> tuple[int, list[tuple[tuple[int, int], int]] | None]:
        """Where known tokens go on after ``waiting`` unknown ones, and the place of each with the unit after it."""
        if not waiting:
            return cursor, self._match_all(cursor, members)
        best: tuple[int, int, list[tuple[tuple[int, int], int]]] | None = None
        for start in range(self._skip(cursor) + 1, len(self.units)):
            if self.units[start].ignored:
                continue
            known = self._match_all(start, members)
            if known is None or (ends_text and self._skip(known[-1][1]) < len(self.units)):
                continue
            rank = self._unlikely(cursor, start, waiting)
            if best is None or rank < best[0]:
                best = rank, start, known
            if rank == 0:
                break
        return (best[1], best[2]) if best else (cursor, None)

    def _unlikely(self, cursor: int, stop: int, waiting: int) -> int:
        """0 if the gap has as many words, or characters, as there are unknown tokens; 1 if it ends with a word."""
        places = self._gap(cursor, stop)
        if len(self._words_in(places)) == waiting:
            return 0
        at_end = any(end == places[1] for _, end in self.words)
        return 0 if places[1] - places[0] == waiting > 1 else 1 if at_end else 2

    def _share(self, cursor: int, stop: int, count: int) -> list[tuple[int, int]]:
        """The characters of a gap among unknown tokens: a word for each, a character for each, or all for all."""
        if not count:
            return []
        start, end = self._gap(cursor, stop)
        words = self._words_in((start, end))
        if len(words) == count or (self.cut and stop == len(self.units) and len(words) > count):
            return words[:count]
        if end - start == count:
            return [(place, place + 1) for place in range(start, end)]
        return [(start, end)] * count

    def _gap(self, cursor: int, stop: int) -> tuple[int, int]:
        """The characters between two units, without white space at either end."""
        first = self.units[self._skip(cursor)].place
        last = stop
        while self.units[last - 1].ignored:
            last -= 1
        return first, self.units[last - 1].place + 1

    def _words_in(self, places: tuple[int, int]) -> list[tuple[int, int]]:
        """The words of a gap, if it holds whole words only."""
        start, end = places
        words = [word for word in self.words if start <= word[0] and word[1] <= end]
        return words if words and words[0][0] == start and words[-1][1] == end else []

    def _match_all(self, cursor: int, members: Sequence[int]) -> list[tuple[tuple[int, int], int]] | None:
        found = []
        for n in members:
            place = next(filter(None, (self._match(cursor, form) for form in self.forms[n])), None)
            if place is None:
                return None
            found.append(place)
            cursor = place[1]
        return found

    def _match(self, cursor: int, form: Sequence[_Unit]) -> tuple[tuple[int, int], int] | None:
        """The characters of one token that follows at ``cursor``, and the unit after it."""
        units = self.units
        if all(unit.ignored for unit in form):
            return self._match_ignored(cursor, [unit.char for unit in form])
        first = self._skip(cursor)
        at = first
        for unit in form:
            if unit.ignored:
                continue
            at = self._skip(at)
            if at == len(units) or units[at].char != unit.char:
                return None
            at += 1
        return (units[first].place, units[at - 1].place + 1), at

    def _match_ignored(self, cursor: int, chars: Sequence[str]) -> tuple[tuple[int, int], int]:
        """A token of white space or marks alone: these characters, or none where the tokenizer added it."""
        units = self.units
        for start in range(cursor, self._skip(cursor)):
            stop = start + len(chars)
            if [unit.char for unit in units[start:stop]] == chars:
                return (units[start].place, units[stop - 1].place + 1), stop
        place = units[cursor].place if cursor < len(units) else len(self.text)
        return (place, place), cursor

    def _skip(self, cursor: int) -> int:
        while cursor < len(self.units) and self.units[cursor].ignored:
            cursor += 1
        return cursor


def _fold(text: str) -> list[_Unit]:
    """The characters without case, accents and width; white space is one kind of character."""
    units = []
    for place, char in enumerate(text):
        if char.isspace() or char == BLANK:
            units.append(_Unit(" ", place, True))
        elif unicodedata.category(char) in _IGNORED:
            units.append(_Unit(char, place, True))
        else:
            folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
            kept = [part for part in folded if unicodedata.category(part) not in _IGNORED]
            units += [_Unit(part, place, False) for part in kept] or [_Unit(char, place, True)]
    return units


def _forms(token: str) -> list[list[_Unit]]:
    """The token as it stands, then without the marks of a piece of a word."""
    forms = [token]
    if token.startswith(_PREFIX) and len(token) > len(_PREFIX):
        forms.append(token.removeprefix(_PREFIX))
    forms += [token.removesuffix(suffix) for suffix in _SUFFIXES if token.endswith(suffix) and token != suffix]
    return [_fold(form) for form in forms]


def _by_bytes(tokens: Sequence[str], text: str, cut: bool) -> list[tuple[int, int]] | None:
    """Places of tokens that are bytes, written as characters: by their numbers, or in the way of byte-level BPE."""
    data = text.encode()
    owner = [place for place, char in enumerate(text) for _ in char.encode()]
    for alphabet in ({chr(byte): byte for byte in range(256)}, BYTE_OF_CHAR):
        if not all(char in alphabet for token in tokens for char in token):
            continue
        parts = [bytes(alphabet[char] for char in token) for token in tokens]
        whole = b"".join(parts)
        blank = whole.startswith(b" ") and not data.startswith(b" ")  # a space that the tokenizer put before the text
        if not (data.startswith(whole[blank:]) if cut else data == whole[blank:]):
            continue
        places, stop = [], -int(blank)
        for part in parts:
            start, stop = max(stop, 0), stop + len(part)
            places.append((owner[start], owner[stop - 1] + 1) if stop > start else (0, 0))
        return places
    return None
