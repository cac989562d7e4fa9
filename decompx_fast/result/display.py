"""What the terminal, HTML and plot views share: the pieces of a text, readable names, number formats."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .blocks import block_of, encoder_sources
from .kinds import DIFFERENCE, FOCUS
from .tokens import readable_tokens, visible_whitespace

if TYPE_CHECKING:
    from .explanation import Explanation
    from .words import Span

CLASSES_SHOWN = 5  # of a long list
PREDICTED_SHOWN = 20  # of many predicted labels
VISIBLE = 0.03  # share of the colour scale from which a source is coloured

# One green and one red for all views, of a lightness at which text in them is readable on black and on white, and white
# text on them (contrast 4.5 or more, WCAG AA). Wherever they are used, a sign or a line tells them apart, too.
FOR_RGB = (0, 134, 95)
AGAINST_RGB = (222, 50, 50)


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


class Outcome(NamedTuple):
    """One class, or one value of a regression, as it is shown: its name, its number, whether it is predicted."""

    name: str
    value: str
    is_predicted: bool


class Sourced(Protocol):
    """What has texts and sources in them: an explanation, or one side of a pair's."""

    @property
    def tokens(self) -> tuple[str, ...]: ...

    @property
    def spans(self) -> tuple[Span | None, ...]: ...

    @property
    def texts(self) -> tuple[str, ...]: ...

    @property
    def special(self) -> tuple[bool, ...]: ...

    def source_text(self, position: int) -> str: ...


def layout_text(explanation: Sourced) -> list[list[Piece]]:
    """The texts, each cut into pieces so that every source is in one piece and no character is lost.

    Sources that share characters (the bytes of one emoji) share a piece. What has no place in a text stands
    as a marker where it is in the order of sources.
    """
    labels, texts = source_labels(explanation), explanation.texts
    places = _in_order(explanation)
    last = {span[0]: n for n, (_, span) in enumerate(places) if span is not None}
    rows: dict[int, list[Piece]] = {}
    cursors = [0] * len(texts)
    open_pieces: dict[int, Piece] = {}  # the last piece of each text that may take more sources
    current, decoder = 0, encoder_sources(explanation)
    for n, (position, span) in enumerate(places):
        if position == decoder:  # what it starts with has no place in a text
            current = min((place[0] for _, place in places[n:] if place is not None), default=len(texts))
        if span is None:
            rows.setdefault(current, []).append(Piece(labels[position], (position,), is_marker=True))
            continue
        current, start, end = span
        row, text, cursor = rows.setdefault(current, []), texts[current], cursors[current]
        if cursor < start == end and text[start - 1].isspace():
            start -= 1  # a token for the space before it, whose tokenizer leaves spaces out of spans
        if start < cursor and current in open_pieces:
            piece = open_pieces[current]
            if position not in piece.positions:
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
        if n == last[current]:
            rest = text[cursors[current] :]
            row.extend([Piece(rest)] if rest else [])
    for index, text in enumerate(texts):
        if last and index not in last and text:  # without any span, nobody knows what was read
            rows.setdefault(index, []).append(Piece(text))
    return list(rows.values())


def _in_order(explanation: Sourced) -> list[tuple[int, Span | None]]:
    """The stretches of text that the sources are, each with its source, in the order of the text; a source without any
    where it is in the order of sources."""
    stretches: tuple[tuple[Span, ...], ...] | None = getattr(explanation, "stretches", None)
    if stretches is None:
        return [*enumerate(explanation.spans)]
    places: list[tuple[tuple[float, ...], bool, int, Span | None]] = []
    following: tuple[float, ...] = (math.inf,)
    for k in reversed(range(len(stretches))):
        following = stretches[k][0] if stretches[k] else following
        places += [(span, True, k, span) for span in stretches[k]] or [(following, False, k, None)]
    return [(k, span) for _, _, k, span in sorted(places, key=lambda place: place[:3])]


def source_labels(explanation: Sourced) -> list[str]:
    """A readable name of each source, on one line: its characters, or its token without markers."""
    shared = Counter(span for span in explanation.spans if span is not None)
    seen: Counter[Span] = Counter()
    labels = []
    readable = readable_tokens(explanation.tokens, explanation.special)
    stretches = getattr(explanation, "stretches", None)
    for position, span in enumerate(explanation.spans):
        in_several = span is None and bool(stretches and stretches[position])  # named by its text
        if explanation.special[position] or not in_several and (span is None or span[1] == span[2]):
            label = readable[position]
        else:
            label = explanation.source_text(position)
        label = " ".join(printable(label).split()) or visible_whitespace(label)
        if span is not None and shared[span] > 1 and span[1] < span[2]:
            seen[span] += 1
            label += f" ({seen[span]}/{shared[span]})"
        labels.append(label)
    return labels


def labels_with_blocks(explanation: Sourced) -> list[str]:
    """The same, and the block that a source is in where there are two."""
    labels = source_labels(explanation)
    blocks = (block_of(explanation, [k]) for k in range(len(labels)))
    return [label if block is None else f"{block}: {label}" for label, block in zip(labels, blocks, strict=True)]


def printable(text: str) -> str:
    """The text without characters that steer a terminal, or that no encoding has; breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(_printable_character(char) for char in text)


#: Characters that nobody sees but that turn, break or hide what stands around them in a terminal: marks of direction,
#: separators of lines, blanks of no width. Joiners stay, which letters and emoji need.
_STEERING = frozenset(
    map(
        chr,
        (0x061C, 0x180E, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
        + (0xFFF9, 0xFFFA, 0xFFFB),
    )
)


def escaped(text: str) -> str:
    """The text with characters that steer its direction or cannot be seen written by number, as ``\\u202e``."""
    if text.isprintable():
        return text
    return "".join(f"\\u{ord(char):04x}" if char in _STEERING else char for char in text)


def shown_in(encoding: str, text: str) -> str:
    """The text as a terminal of an encoding shows it: what steers it, cannot be seen or encoded is an escape."""
    return escaped(printable(text)).encode(encoding, "backslashreplace").decode(encoding)


def score_format(values: Iterable[float]) -> Callable[[float], str]:
    """How to write scores so that the largest has four digits that count, always with a sign: what reads as zero, +."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    magnitude = math.floor(math.log10(largest)) if largest else 0
    form = f"+.{max(0, 3 - magnitude)}f" if -5 <= magnitude <= 6 else "+.3e"

    def write(value: float) -> str:
        written = format(value, form)
        return written if float(written) else format(0.0, form)

    return write


def strength(value: float, largest: float) -> float:
    """``|value| / largest`` from 0 to 1; 0 where that is not a number."""
    if not largest or not math.isfinite(value):
        return 0.0
    return min(1.0, abs(value) / largest)


def plural(unit: str) -> str:
    """Several of a unit."""
    return f"{unit}es" if unit.endswith("ch") else f"{unit}s"


def largest_magnitude(values: Iterable[float]) -> float:
    """The largest finite ``|value|``; 0 if there is none."""
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0)


def colour_scale(explanation: Explanation, columns: Sequence[int]) -> float:
    """The ``|score|`` that gets the full colour: the largest in these columns of a source that is not special.

    Special tokens may hold far more than any word; what goes beyond the scale is shown like its end. So may the first
    token that a language model reads, which is where its heads look when there is nothing to look for (Xiao et al.,
    ICLR 2024, attention sinks). The largest of all where there is nothing else.
    """
    scores = explanation.scores[:, list(columns)]
    ordinary = scores[[k not in sinks(explanation) for k in range(len(explanation))]]
    return largest_magnitude(ordinary.flatten().tolist()) or largest_magnitude(scores.flatten().tolist())


def sinks(explanation: Explanation) -> set[int]:
    """The sources that do not set the scale of colours: special tokens, and a language model's first."""
    first = {0} if explanation.task == "text-generation" else set()
    return first | {k for k, special in enumerate(explanation.special) if special}


def sinks_named(explanation: Explanation) -> str:
    """The same in words."""
    is_language_model = explanation.task == "text-generation"
    return f"the first {explanation.source_unit} and special tokens" if is_language_model else "special tokens"


def focus_note(explanation: Explanation, column: int) -> str:
    """How many tokens stayed sources of their own, and how much of a target they hold; empty without a focus."""
    focus = explanation.metadata.get(FOCUS)
    if focus is None:
        return ""
    kept = f"{len(focus['kept'])} tokens by themselves"
    share = focus.get("share", {}).get(explanation.targets[column])
    return kept if share is None else f"{kept}, {percent(share)} of all |scores| without biases; the others in groups"


def outcomes(explanation: Explanation) -> list[Outcome]:
    """What the model says: all predicted classes, then the likeliest others, or the values of a regression; of a model
    that answers at positions the answer, the entities, or what fits at each place."""
    if explanation.problem_type == "positions":
        return _readings(explanation)
    probabilities = explanation.probabilities
    if probabilities is None:
        values = explanation.logits.tolist()
        number = score_format(values)
        return [Outcome(name, number(value), True) for name, value in zip(explanation.labels, values, strict=True)]
    values = probabilities.tolist()
    order = sorted(range(len(values)), key=lambda index: -values[index])
    predicted = predicted_classes(explanation)
    shown = order[: max(CLASSES_SHOWN, min(len(predicted), PREDICTED_SHOWN))]
    rows = [Outcome(explanation.labels[index], percent(values[index]), index in predicted) for index in shown]
    if not predicted:
        rows.insert(0, Outcome("none", "of the labels is above 50%", True))
    if len(order) > len(shown):
        also = sum(index in predicted for index in order[len(shown) :])
        rows.append(Outcome(f"{len(order) - len(shown)} more", f"below, {also} predicted" if also else "below", False))
    return rows


def outcomes_name(explanation: Explanation) -> str:
    """What :func:`outcomes` are: a model predicts them; a difference of two explanations is none's prediction."""
    return "Difference" if DIFFERENCE in explanation.metadata else "Predicted"


def _readings(explanation: Explanation) -> list[Outcome]:
    """What a model says that answers at positions."""
    answer = explanation.answer
    if answer is not None:
        rows = [Outcome(answer.text, percent(answer.score), answer.is_answered)]
        if answer.no_answer_score is not None:
            rows.append(Outcome("no answer", percent(answer.no_answer_score), not answer.is_answered))
        if "window" in explanation.metadata:
            number, count = (explanation.metadata[name] for name in ("window", "windows"))
            rows.append(Outcome("read in", f"window {number + 1} of {count}", False))
        return rows
    if explanation.entities is not None:
        rows = [Outcome(f"{one.word} ({one.entity_group})", percent(one.score), True) for one in explanation.entities]
        nothing = "entity is found"
    else:
        rows = [Outcome(f"{one.name} @ {one.place}", percent(one.score), True) for one in explanation.predictions or ()]
        nothing = "position was asked for what fits there"
    shown = rows[:PREDICTED_SHOWN] or [Outcome("no", nothing, True)]
    more = [Outcome(f"{len(rows) - len(shown)} more", "not shown", True)] if len(rows) > len(shown) else []
    return shown + more


def predicted_classes(explanation: Explanation) -> tuple[int, ...]:
    """Indices of the predicted classes: one, several, or none."""
    predicted = explanation.predicted
    return (predicted,) if isinstance(predicted, int) else predicted or ()


def hexadecimal(rgb: Sequence[int]) -> str:
    """A colour as ``#rrggbb``."""
    return "#" + "".join(f"{part:02x}" for part in rgb)


def percent(probability: float) -> str:
    """With one decimal; what rounds to 0 or 100 without being it says so."""
    if 0.0 < probability < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= probability < 1.0 else f"{probability:.1%}"


def _printable_character(char: str) -> str:
    if char in "\n\t":
        return char
    if char == "\r":
        return ""
    category = unicodedata.category(char)
    if category == "Cc":
        return chr(0x2400 + ord(char)) if ord(char) < 0x20 else "\u2421" if char == "\x7f" else "\ufffd"
    return "\ufffd" if category == "Cs" else char
