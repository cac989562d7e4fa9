"""Where the words of a text are, and which tokens belong to which word, by character positions alone.

Each family of tokenizers marks words in its own way, with "##" or a special space, but all can say which
characters a token came from. So words are found in the source text, and a token belongs to the word that it
overlaps most.
"""

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

Span = tuple[int, int, int]
"""``(segment, start, end)``: characters ``start`` to ``end`` (excluded) of the text number ``segment``."""

NO_PLACES = (
    "this tokenizer does not say where its tokens are in the text, and they do not follow it closely enough to be "
    "found there (a fast tokenizer says it)"
)
"""Why the tokens of a known text have no spans."""

_Kind = Literal["space", "letter", "ideograph", "punctuation", "symbol", "extend"]

_ZERO_WIDTH_JOINER = "\u200d"
_ZERO_WIDTH_SPACE = "\u200b"
# Between two letters or digits these do not end a word: don't, well-made, col·lecció, צה״ל.
_INNER = frozenset("'\u2019\uff07-\u2010\u2011\xb7\u2027\u05f3\u05f4")
# Between two digits neither do these: 3.5, 1,000, and their full-width and Arabic forms.
_INNER_NUMBER = frozenset(".,\uff0e\uff0c\u066b\u066c")
# Code points written one per word, as there are no spaces between words: ideographs and kana.
_IDEOGRAPHS = (
    (0x3005, 0x3007),  # iteration mark, closing mark, zero
    (0x3041, 0x3096),  # hiragana
    (0x309D, 0x309F),
    (0x30A1, 0x30FA),  # katakana
    (0x30FD, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # CJK extension A
    (0x4E00, 0x9FFF),  # CJK unified ideographs
    (0xF900, 0xFAFF),  # CJK compatibility ideographs
    (0xFF66, 0xFF6F),  # half-width katakana
    (0xFF71, 0xFF9D),
    (0x1AFF0, 0x1B16F),  # kana supplements
    (0x20000, 0x3FFFD),  # planes 2 and 3: CJK extensions
)
_IDEOGRAPH_STARTS = [start for start, _ in _IDEOGRAPHS]
_KANA_MARKS = frozenset("\u30fc\uff70\uff9e\uff9f")  # the long-vowel mark and the half-width voicing marks


class Segment(NamedTuple):
    """Characters ``start`` to ``end`` (excluded) of a text: one word, or one run of whitespace."""

    start: int
    end: int
    is_space: bool


@dataclass(frozen=True)
class TokenGroup:
    """Tokens that belong together, in their order; ``span`` is None where they have no place in a text."""

    positions: tuple[int, ...]
    span: Span | None


def segment_words(text: str) -> list[Segment]:
    """Cut a text into words and runs of whitespace, which together cover every character once.

    A word is a run of letters, digits and connectors such as ``_``; an apostrophe or hyphen between two of
    them, and a decimal point or comma between two digits, stay inside. An ideograph or a kana is a word by
    itself, a run of hangul is one word. A punctuation mark is a word, and so is a run of the same mark. An
    emoji is one word with all its joiners, skin tones and variation selectors; a flag is one word.

    Args:
        text: any string.

    Returns:
        Segments in the order of the text; the end of each is the start of the next.
    """
    segments: list[Segment] = []
    start = base = 0  # base: the last character that is not a mark, joiner or modifier
    flag_letters = 0  # regional indicators seen in a row; two make a flag
    kinds = [_kind(char) for char in text]
    for i, kind in enumerate(kinds):
        flag_letters = flag_letters + 1 if _is_flag_letter(text[i]) else 0 if kind != "extend" else flag_letters
        if i == 0:
            continue
        if _is_boundary(text, kinds, base, i, flag_letters):
            segments.append(Segment(start, i, kinds[base] == "space"))
            start = i
        if kind != "extend" or start == i:
            base = i
    if text:
        segments.append(Segment(start, len(text), kinds[base] == "space"))
    return segments


def group_by_word(spans: Sequence[Span | None], special: Sequence[bool], texts: Sequence[str]) -> list[TokenGroup]:
    """Say which tokens make up each word.

    A token belongs to the word that it overlaps most (the first of equals), and to whitespace only if it
    overlaps no word. A token of no width belongs to what stands at its position. A word that no token chose
    joins the word that the token over it went to, so that what is shown is what was explained: two ideographs
    that are one token are one word. Special tokens, and tokens without a span, stay alone.

    Args:
        spans: one per token; each within its text.
        special: one per token.
        texts: the texts that the spans point into.

    Returns:
        Groups ordered by their first token; every token is in exactly one.
    """
    segments = [segment_words(text) for text in texts]
    starts = [[segment.start for segment in row] for row in segments]
    members: dict[tuple[int, int], list[int]] = {}  # (text, segment) or (-1, token) -> tokens
    covered: dict[tuple[int, int], range] = {}
    for position, (span, is_special) in enumerate(zip(spans, special, strict=True)):
        key, touched = (-1, position), range(0)
        if span is not None and not is_special and segments[span[0]]:
            row = segments[span[0]]
            touched = _touched(row, starts[span[0]], span)
            key = span[0], max(touched, key=lambda index: _overlap(row[index], span))
        members.setdefault(key, []).append(position)
        before = covered.get(key, touched)
        covered[key] = range(min(before.start, touched.start), max(before.stop, touched.stop))
    taken = set(members)
    return [
        TokenGroup(tuple(positions), _word_span(key, covered[key], taken, segments) if key[0] >= 0 else spans[key[1]])
        for key, positions in members.items()
    ]


def group_by_number(words: Sequence[int | None], spans: Sequence[Span | None]) -> list[TokenGroup]:
    """The tokens of each word of a text that was split before.

    Args:
        words: the number of each token's word; ``None`` for a token that stays alone.
        spans: one per token.

    Returns:
        Groups ordered by their first token; every token is in exactly one.
    """
    members: dict[int, list[int]] = {}
    for position, word in enumerate(words):
        members.setdefault(-1 - position if word is None else word, []).append(position)
    return [TokenGroup(tuple(positions), joint_span(positions, spans)) for positions in members.values()]


def joint_span(positions: Sequence[int], spans: Sequence[Span | None]) -> Span | None:
    """The stretch of text from the first to the last token, if they follow one another in one text."""
    known = [spans[p] for p in positions]
    if any(span is None for span in known) or len({span[0] for span in known if span}) != 1:
        return None
    if max(positions) - min(positions) + 1 != len(positions):
        return None
    found = [span for span in known if span]
    return found[0][0], min(span[1] for span in found), max(span[2] for span in found)


def stretches(positions: Sequence[int], spans: Sequence[Span | None]) -> tuple[Span, ...]:
    """The stretches of text that tokens are: of those that follow one another in one text a single one.

    Args:
        positions: of the tokens, in their order; those without a place are in no stretch.
        spans: one for each token of the input.
    """
    found: list[Span] = []
    before = -2
    for position in positions:
        span = spans[position]
        if span is None:
            continue
        if position == before + 1 and span[0] == found[-1][0]:
            found[-1] = (span[0], min(found[-1][1], span[1]), max(found[-1][2], span[2]))
        else:
            found.append(span)
        before = position
    return tuple(found)


def _touched(row: list[Segment], starts: list[int], span: Span) -> range:
    """The segments that a span overlaps; for a span of no width, the one at its position."""
    _, start, end = span
    first = bisect_right(starts, start) - 1
    last = bisect_right(starts, max(start, end - 1)) - 1
    return range(first, last + 1)


def _overlap(segment: Segment, span: Span) -> tuple[bool, int]:
    """How much a token and a segment share; any word comes before any whitespace."""
    return not segment.is_space, min(segment.end, span[2]) - max(segment.start, span[1])


def _word_span(
    key: tuple[int, int], covered: range, taken: set[tuple[int, int]], segments: list[list[Segment]]
) -> Span:
    """The characters of a word, and of the neighbours that its tokens cover and that are not ``taken``."""
    text, index = key
    row = segments[text]
    first = last = index
    if not row[index].is_space:
        while first > covered.start and (text, first - 1) not in taken:
            first -= 1
        while last < covered.stop - 1 and (text, last + 1) not in taken:
            last += 1
        while row[first].is_space:
            first += 1
        while row[last].is_space:
            last -= 1
    taken.update((text, i) for i in range(first, last + 1))
    return text, row[first].start, row[last].end


def _is_boundary(text: str, kinds: list[_Kind], base: int, i: int, flag_letters: int) -> bool:
    """Whether a word ends before character ``i``, where ``base`` is the last one that carries a kind."""
    before, kind = kinds[base], kinds[i]
    if before == "space" or kind == "space":
        return before != kind
    if kind == "extend" or before == "extend":  # marks join what stands before them, at the start what follows
        return False
    if before == "letter" and kind == "letter":
        return False
    if before == "symbol" and kind == "symbol":
        joined = text[i - 1] == _ZERO_WIDTH_JOINER
        return not joined and not (_is_flag_letter(text[i]) and flag_letters % 2 == 0)
    if before == "punctuation" and kind == "punctuation":
        return text[base] != text[i]
    if kind == "punctuation":
        return not _is_inner(text, kinds, i)
    if before == "punctuation":
        return not _is_inner(text, kinds, base)
    return True


def _is_inner(text: str, kinds: list[_Kind], i: int) -> bool:
    """Whether the punctuation mark ``i`` stands inside a word, as in don't, well-made and 3.5."""
    before = i - 1
    while before > 0 and kinds[before] == "extend":
        before -= 1
    if before < 0 or i + 1 >= len(text) or kinds[before] != "letter" or kinds[i + 1] != "letter":
        return False
    return text[i] in _INNER or (text[i] in _INNER_NUMBER and text[before].isdigit() and text[i + 1].isdigit())


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


@lru_cache(maxsize=4096)
def _kind(char: str) -> _Kind:
    if char.isspace() or char == _ZERO_WIDTH_SPACE:
        return "space"
    code = ord(char)
    if char.isascii() and char.isalnum():
        return "letter"
    if char in _KANA_MARKS or 0x1F3FB <= code <= 0x1F3FF:  # skin tones
        return "extend"
    at = bisect_right(_IDEOGRAPH_STARTS, code) - 1
    if at >= 0 and code <= _IDEOGRAPHS[at][1]:
        return "ideograph"
    category = unicodedata.category(char)
    if category[0] in "LN" or category == "Pc":
        return "letter"
    if category[0] == "M" or category in ("Cf", "Cc"):
        return "extend"
    if category[0] == "P" or char.isascii():
        return "punctuation"
    return "symbol"
