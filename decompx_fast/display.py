"""What the terminal, HTML and plot views share: the pieces of a text, readable names, number formats."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .explanation import Explanation
    from .words import Span

CLASSES_SHOWN = 5  # of a long list
_WHITESPACE_MARKS = {" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}
_SPACE_MARKERS = ("\u0120", "\u2581")  # how byte-level BPE and SentencePiece write a leading space


@dataclass
class Piece:
    """A stretch of a text as it is shown.

    Args:
        text: its characters.
        positions: the sources it belongs to; none for text that the model did not read.
        is_marker: whether it stands for something that is not in the text, as ``[CLS]``.
    """

    text: str
    positions: tuple[int, ...] = ()
    is_marker: bool = False


def layout_text(explanation: Explanation) -> list[list[Piece]]:
    """The texts, each cut into pieces so that every source is in one piece and no character is lost.

    Sources that share characters (the bytes of one emoji) share a piece. What has no place in a text stands
    as a marker where it is in the order of sources.
    """
    labels = source_labels(explanation)
    spans, texts = explanation.spans, explanation.texts
    last = {span[0]: position for position, span in enumerate(spans) if span is not None}
    rows: dict[int, list[Piece]] = {}
    cursors = [0] * len(texts)
    open_pieces: dict[int, Piece] = {}  # the last piece of each text that may take more sources
    current = 0
    for position, span in enumerate(spans):
        if span is None:
            rows.setdefault(current, []).append(Piece(labels[position], (position,), is_marker=True))
            continue
        current, start, end = span
        row, text, cursor = rows.setdefault(current, []), texts[current], cursors[current]
        if cursor < start == end and text[start - 1].isspace():
            start -= 1  # a token for the space before it, whose tokenizer leaves spaces out of spans
        if start < cursor and current in open_pieces:
            piece = open_pieces[current]
            piece.positions += (position,)
            piece.text += text[cursor:end]
        else:
            if cursor < start:
                row.append(Piece(text[cursor:start]))
            if start == end:
                row.append(Piece(labels[position], (position,), is_marker=True))
            else:
                open_pieces[current] = Piece(text[start:end], (position,))
                row.append(open_pieces[current])
        cursors[current] = max(cursor, end)
        if position == last[current]:
            rest = text[cursors[current] :]
            row.extend([Piece(rest)] if rest else [])
    for index, text in enumerate(texts):
        if last and index not in last and text:  # without any span, nobody knows what was read
            rows.setdefault(index, []).append(Piece(text))
    return list(rows.values())


def source_labels(explanation: Explanation) -> list[str]:
    """A readable name of each source, on one line: its characters, or its token without markers."""
    shared = Counter(span for span in explanation.spans if span is not None)
    seen: Counter[Span] = Counter()
    labels = []
    for position, span in enumerate(explanation.spans):
        token = explanation.tokens[position]
        if explanation.special[position]:
            label = token
        elif span is None or span[1] == span[2]:
            label = _without_markers(token)
        else:
            label = explanation.source_text(position)
        label = " ".join(printable(label).split()) or _visible_whitespace(label)
        if span is not None and shared[span] > 1 and span[1] < span[2]:
            seen[span] += 1
            label += f" ({seen[span]}/{shared[span]})"
        labels.append(label)
    return labels


def printable(text: str) -> str:
    """The text without characters that steer a terminal, or that no encoding has; breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(_printable_character(char) for char in text)


def score_format(values: Iterable[float]) -> Callable[[float], str]:
    """How to write scores so that the largest has four digits that count, always with a sign."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if largest == 0.0:
        return lambda value: f"{value:+.3f}"
    magnitude = math.floor(math.log10(largest))
    if not -5 <= magnitude <= 6:
        return lambda value: f"{value:+.3e}"
    decimals = max(0, 3 - magnitude)
    return lambda value: f"{value:+.{decimals}f}"


def strength(value: float, largest: float) -> float:
    """``|value| / largest`` from 0 to 1; 0 where that is not a number."""
    if not largest or not math.isfinite(value):
        return 0.0
    return min(1.0, abs(value) / largest)


def largest_magnitude(values: Iterable[float]) -> float:
    """The largest finite ``|value|``; 0 if there is none."""
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0)


def outcomes(explanation: Explanation) -> list[tuple[str, str]]:
    """What the model says: the predicted classes first, with probabilities, or the values of a regression."""
    probabilities = explanation.probabilities
    if probabilities is None:
        number = score_format(explanation.logits.tolist())
        return [
            (name, number(value)) for name, value in zip(explanation.labels, explanation.logits.tolist(), strict=True)
        ]
    values = probabilities.tolist()
    order = sorted(range(len(values)), key=lambda index: -values[index])
    rows = [(explanation.labels[index], _percent(values[index])) for index in order[:CLASSES_SHOWN]]
    if explanation.predicted == ():
        rows.insert(0, ("none", "of the labels is above 50%"))
    if len(order) > CLASSES_SHOWN:
        rows.append((f"{len(order) - CLASSES_SHOWN} more", "below"))
    return rows


def _percent(probability: float) -> str:
    """With one decimal; what rounds to 0 or 100 without being it says so."""
    if 0.0 < probability < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= probability < 1.0 else f"{probability:.1%}"


def value_name(explanation: Explanation, column: int) -> str:
    is_logit = explanation.target_ids[column] is not None and explanation.problem_type != "regression"
    return "logit" if is_logit else "value"


def target_totals(explanation: Explanation, column: int) -> tuple[str, str, str | None]:
    """The model's value, the sum of the sources, and the bias token if there is one, written alike."""
    value = float(explanation.target_logits[column])
    source_sum = float(explanation.scores[:, column].double().sum())
    bias = None if explanation.bias_token is None else float(explanation.bias_token[column])
    number = score_format([value, source_sum, bias or 0.0])
    return number(value), number(source_sum), None if bias is None else number(bias)


def completeness(explanation: Explanation) -> tuple[str, str]:
    """Whether the scores add up, in words."""
    error, scale = (
        explanation.completeness_error,
        max(1.0, largest_magnitude(explanation.target_logits.tolist())),
    )
    measured = explanation.score_error
    each = "" if measured is None else f"; each score to within {measured:.1e}"
    if error <= 1e-2 * scale:
        return "Complete", f"to within {error:.1e} of the model's value{each}"
    return "Incomplete", f"by {error:.3g}: the sum is not the model's value{each}"


def _without_markers(token: str) -> str:
    if token.startswith("##") and len(token) > 2:
        return token[2:]
    if token == "\u010a":  # how byte-level BPE writes a line break
        return "\n"
    for marker in _SPACE_MARKERS:
        if token.startswith(marker):
            return token[1:] or " "
    return token


def _visible_whitespace(text: str) -> str:
    return "".join(_WHITESPACE_MARKS.get(char, _WHITESPACE_MARKS[" "]) for char in text) or "(empty)"


def _printable_character(char: str) -> str:
    if char in "\n\t":
        return char
    if char == "\r":
        return ""
    category = unicodedata.category(char)
    if category == "Cc":
        return chr(0x2400 + ord(char)) if ord(char) < 0x20 else "\u2421" if char == "\x7f" else "\ufffd"
    return "\ufffd" if category == "Cs" else char
