"""Explanations for people: in the terminal, as HTML, and as a plot."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import jinja2
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from .display import (
    CLASSES_SHOWN,
    Piece,
    completeness,
    largest_magnitude,
    layout_text,
    outcomes,
    printable,
    score_format,
    source_labels,
    strength,
    target_totals,
    value_name,
)
from .errors import InputError
from .failure import Failure
from .optional import import_optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .explanation import Explanation

Target: TypeAlias = str | SupportsIndex | None

# One green and one red for all views; told apart by their lightness too, and by sign wherever they are used.
FOR_RGB = (0, 150, 90)
AGAINST_RGB = (214, 48, 49)

MAX_TABLE_ROWS = 40  # more sources than this: only the largest are listed in the terminal
ROWS_OF_LONG_TABLE = 20
_STRONG = 0.2  # share of the largest score from which the terminal adds a background, and bold or underline
_GREY = 96
_VISIBLE = 0.03  # share of the largest score from which the text is coloured
_MAX_ALPHA = 0.6  # of the background in HTML, so that text stays readable on light and dark


# --- terminal ---


def show(
    explanation: Explanation,
    target: Target = None,
    *,
    console: Console | None = None,
    width: int | None = None,
) -> None:
    """Print the terminal view.

    Args:
        explanation: what to show.
        target: as for ``Explanation.column``.
        console: where to print; standard output if None.
        width: in columns; the terminal's if None.
    """
    console = console or Console(width=width)
    console.print(terminal_view(explanation, target, encoding=console.encoding), width=width)


def terminal_view(explanation: Explanation, target: Target = None, *, encoding: str = "utf-8") -> Group:
    """What :func:`show` prints, to be used in a layout of one's own.

    Args:
        explanation: what to show.
        target: as for ``Explanation.column``.
        encoding: characters that it lacks are written as escapes.
    """
    column = explanation.column(target)
    view = _Terminal(explanation, column, encoding)
    return Group(view.heading(), Text(), *view.texts(), Text(), view.legend(), Text(), *view.table())


@contextmanager
def progress_bar(total: int | None, *, console: Console | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while texts are explained; it goes away at the end.

    Args:
        total: how many texts; None if not known.
        console: where to draw; standard error if None.

    Yields:
        A function to call with how many texts have been finished since its last call.
    """
    columns = (
        TextColumn("Explaining"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console or Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


class _Terminal:
    """The parts of the terminal view of one target."""

    def __init__(self, explanation: Explanation, column: int, encoding: str) -> None:
        self.explanation = explanation
        self.column = column
        self.encoding = encoding
        self.scores: list[float] = explanation.scores[:, column].tolist()
        self.largest = largest_magnitude(self.scores)
        self.number = score_format(self.scores)

    def plain(self, text: str) -> str:
        """Only characters that the terminal shows and can encode."""
        return printable(text).encode(self.encoding, "backslashreplace").decode(self.encoding)

    def heading(self) -> Table:
        explanation, column = self.explanation, self.column
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row("Predicted", self.prediction())
        value, source_sum, bias = target_totals(explanation, column)
        explained = f"{explanation.targets[column]}: {value_name(explanation, column)} {value}"
        grid.add_row("Explained", Text(self.plain(explained)))
        bias_part = "" if bias is None else f" and bias token {bias}"
        grid.add_row("Sum", f"{explanation.source_unit}s {source_sum}{bias_part}")
        status, extent = completeness(explanation)
        grid.add_row(status, Text(extent, style="bold" if status == "Incomplete" else ""))
        others = [name for index, name in enumerate(explanation.targets) if index != column]
        if others:
            shown = ", ".join(others[:CLASSES_SHOWN]) + (", ..." if len(others) > CLASSES_SHOWN else "")
            grid.add_row("Other targets", Text(self.plain(shown), style="dim"))
        return grid

    def prediction(self) -> Text:
        text = Text()
        for index, (name, value) in enumerate(outcomes(self.explanation)):
            if index:
                text.append(", ")
            text.append(self.plain(name), style="bold" if index == 0 else "dim")
            text.append(f" {value}", style="" if index == 0 else "dim")
        return text

    def texts(self) -> list[Text]:
        """The texts, each source coloured by its score."""
        rows = []
        for pieces in layout_text(self.explanation):
            text = Text(overflow="fold")
            for index, piece in enumerate(pieces):
                text.append(self.plain(piece.text), style=self.piece_style(piece))
                following = pieces[index + 1] if index + 1 < len(pieces) else None
                if following is not None and (piece.is_marker or following.is_marker):
                    text.append(" ")
            rows.append(text)
        return rows

    def piece_style(self, piece: Piece) -> Style:
        if not piece.positions:
            return Style(dim=bool(piece.text.strip()))
        score = sum(self.scores[position] for position in piece.positions)
        share = strength(score, self.largest)
        if share < _VISIBLE:
            return Style(dim=piece.is_marker)
        rgb = FOR_RGB if score > 0 else AGAINST_RGB
        emphasis = Style(bold=score > 0, underline=score < 0) if share >= _STRONG else Style()
        if piece.is_marker:
            return Style(color=_hex(rgb), dim=True) + emphasis
        if share < _STRONG:
            return Style(color=_hex(rgb))
        # From grey to the full colour, under white: readable whether the terminal is light or dark.
        paper = [round(_GREY + (part - _GREY) * share) for part in rgb]
        return Style(color="#ffffff", bgcolor=_hex(paper)) + emphasis

    def legend(self) -> Text:
        name = self.plain(self.explanation.targets[self.column])
        text = Text("green, bold", style=Style(color=_hex(FOR_RGB), bold=True))
        text.append(f" for {name}   ", style="not bold default")
        text.append("red, underlined", style=Style(color=_hex(AGAINST_RGB), underline=True, bold=False))
        text.append(f" against {name}", style="not bold default")
        return text

    def table(self) -> list[Table | Text]:
        labels = source_labels(self.explanation)
        positions = list(range(len(labels)))
        if len(labels) > MAX_TABLE_ROWS:
            positions = sorted(sorted(positions, key=lambda k: -abs(self.scores[k]))[:ROWS_OF_LONG_TABLE])
        table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
        table.add_column("#", justify="right", style="dim", no_wrap=True)
        table.add_column(self.explanation.source_unit.capitalize(), ratio=2, no_wrap=True, overflow="ellipsis")
        table.add_column("Score", justify="right", no_wrap=True)
        table.add_column(_BothSides(), ratio=3, no_wrap=True)
        for k in positions:
            style = "dim" if self.explanation.special[k] else ""
            bar = _Bar(self.scores[k], self.largest)
            table.add_row(str(k), Text(self.plain(labels[k]), style=style), self.number(self.scores[k]), bar)
        if len(positions) == len(labels):
            return [table]
        rest = math.fsum(self.scores[k] for k in set(range(len(labels))) - set(positions))
        note = (
            f"The {len(positions)} largest of {len(labels)} {self.explanation.source_unit}s, in the order of "
            f"the text; the other {len(labels) - len(positions)} add up to {self.number(rest)}."
        )
        return [table, Text(note, style="dim")]


class _BothSides:
    """A cell with something on either side of an axis in its middle."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        half = max(1, (options.max_width - 1) // 2)
        left, right, style = self.sides(half, options.ascii_only)
        yield Segment(left[-half:].rjust(half), style)
        yield Segment("|" if options.ascii_only else "│", Style(dim=True))
        yield Segment(right[:half].ljust(half), style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(9, options.max_width), options.max_width)

    def sides(self, half: int, ascii_only: bool) -> tuple[str, str, Style]:
        """What stands left and right, at most ``half`` cells each, and its style."""
        left, right = ("against ", " for") if half >= len("against ") else ("- ", " +")
        return left, right, Style(bold=True)


class _Bar(_BothSides):
    """A bar to the right for a positive score, to the left for a negative one."""

    def __init__(self, score: float, largest: float) -> None:
        self.score = score
        self.share = strength(score, largest)

    def sides(self, half: int, ascii_only: bool) -> tuple[str, str, Style]:
        cells, odd = divmod(round(self.share * half * 2), 2)
        bar = ("#" if ascii_only else "█") * cells
        if self.score < 0:
            return ("▐" if odd and not ascii_only else "") + bar, "", Style(color=_hex(AGAINST_RGB))
        return "", bar + ("▌" if odd and not ascii_only else ""), Style(color=_hex(FOR_RGB))


def _hex(rgb: Sequence[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in rgb)


# --- HTML ---


def render_fragment(explanation: Explanation, target: Target = None) -> str:
    """HTML to be placed in a page or notebook: no scripts, nothing to be loaded, styles for itself alone.

    Args:
        explanation: what to show.
        target: which one colours the text; as for ``Explanation.column``.
    """
    return _template("fragment.html.jinja").render(_constants() | {"view": _html_view(explanation, target)})


def render_page(
    explanations: Sequence[Explanation], *, target: Target = None, title: str = "DecompX explanation"
) -> str:
    """An HTML document with one or several explanations, complete in itself.

    Args:
        explanations: what to show, in this order.
        target: which one colours the texts; as for ``Explanation.column``.
        title: of the document.
    """
    return "".join(page_chunks((("", explanation) for explanation in explanations), target=target, title=title))


def page_chunks(
    entries: Iterable[tuple[str, Explanation | Failure]], *, target: Target = None, title: str = "DecompX explanation"
) -> Iterator[str]:
    """The same document in parts, made as they are asked for, so that no more than one explanation is held.

    Args:
        entries: the name of each input, which may be empty, and what came of it.
        target: as for :func:`render_page`.
        title: of the document.
    """
    views = (_page_view(place, outcome, target) for place, outcome in entries)
    return _template("page.html.jinja").generate(_constants() | {"views": views, "title": printable(title)})


def _page_view(place: str, outcome: Explanation | Failure, target: Target) -> dict[str, Any]:
    about = {"place": printable(place), "failure": None}
    if isinstance(outcome, Failure):
        return about | {"failure": printable(outcome.error)}
    return about | _html_view(outcome, target)


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name)


def _constants() -> dict[str, Any]:
    return {
        "for_rgb": " ".join(map(str, FOR_RGB)),
        "against_rgb": " ".join(map(str, AGAINST_RGB)),
        "max_alpha": _MAX_ALPHA,
    }


def _html_view(explanation: Explanation, target: Target) -> dict[str, Any]:
    """What the templates show of one explanation: strings and numbers only."""
    column = explanation.column(target)
    scores: list[float] = explanation.scores[:, column].tolist()
    largest = largest_magnitude(scores)
    number = score_format(scores)
    labels = source_labels(explanation)
    value, source_sum, bias = target_totals(explanation, column)
    status, extent = completeness(explanation)
    return {
        "outcomes": [(printable(name), outcome) for name, outcome in outcomes(explanation)],
        "target": printable(explanation.targets[column]),
        "value_name": value_name(explanation, column),
        "value": value,
        "source_sum": source_sum,
        "bias": bias,
        "status": status,
        "completeness": extent,
        "unit": explanation.source_unit,
        "count": len(explanation),
        "rows": [
            [_html_piece(piece, scores, labels, largest, number) for piece in pieces]
            for pieces in layout_text(explanation)
        ],
        "legend": [number(-largest), number(largest), number(min(scores)), number(max(scores))],
        "table": _html_table(explanation, labels),
        "made": _made_with(explanation),
    }


def _html_piece(
    piece: Piece, scores: list[float], labels: list[str], largest: float, number: Callable[[float], str]
) -> dict[str, Any]:
    score = math.fsum(scores[position] for position in piece.positions)
    share = strength(score, largest)
    details = ", ".join(f"{labels[k]} {number(scores[k])} (#{k})" for k in piece.positions)
    if len(piece.positions) > 1:
        details = f"{number(score)} = {details}"
    return {
        "text": printable(piece.text),
        "title": details or "not read by the model",
        "sign": "" if share < _VISIBLE else "for" if score > 0 else "against",
        "alpha": f"{share * _MAX_ALPHA:.3f}",
        "is_source": bool(piece.positions),
        "is_marker": piece.is_marker,
    }


def _html_table(explanation: Explanation, labels: list[str]) -> dict[str, Any]:
    """All scores of all targets, with the sums and the model's values below."""
    columns = explanation.scores.double().T.tolist()  # [c][k]
    values = explanation.target_logits.double().tolist()
    numbers = [score_format(column) for column in columns]
    scales = [largest_magnitude(column) for column in columns]
    rows = []
    for k, label in enumerate(labels):
        cells = [
            (
                number(column[k]),
                "for" if column[k] > 0 else "against",
                f"{strength(column[k], scale) * _MAX_ALPHA:.3f}",
            )
            for column, number, scale in zip(columns, numbers, scales, strict=True)
        ]
        rows.append({"position": k, "label": label, "special": explanation.special[k], "cells": cells})

    def footer(name: str, numbers_of_row: list[float]) -> tuple[str, list[str]]:
        return name, [number(value) for number, value in zip(numbers, numbers_of_row, strict=True)]

    feet = [footer(f"Sum of {explanation.source_unit}s", explanation.scores.double().sum(0).tolist())]
    if explanation.bias_token is not None:
        feet.append(footer("Bias token", explanation.bias_token.tolist()))
    feet.append(footer("Model", values))
    return {"targets": [printable(name) for name in explanation.targets], "rows": rows, "feet": feet}


def _made_with(explanation: Explanation) -> list[tuple[str, str]]:
    """Engine, time, options and notes, by name."""
    rows = [("engine", explanation.engine), ("time", f"{explanation.time_s:.3g} s")]
    for source in (explanation.metadata, explanation.options):
        rows += [
            (name, value if isinstance(value, str) else json.dumps(value, default=str))
            for name, value in source.items()
        ]
    return [(printable(str(name)), printable(value)) for name, value in rows]


# --- plot ---


def plot(explanation: Explanation, ax: Axes | None = None, *, target: Target = None, top: int | None = None) -> Axes:
    """Draw the scores as horizontal bars.

    Args:
        explanation: what to draw.
        ax: where to draw; a new figure if None.
        target: as for ``Explanation.column``.
        top: only so many with the largest ``|score|``; all if None. They stay in the order of the text.

    Returns:
        The axes drawn on.

    Raises:
        MissingPackageError: if matplotlib is not installed.
        InputError: if ``top`` is below 1.
    """
    if top is not None and top < 1:
        raise InputError(f"top must be 1 or more, or None for all, got {top}.")
    column = explanation.column(target)
    scores: list[float] = explanation.scores[:, column].tolist()
    labels = source_labels(explanation)
    positions = sorted(sorted(range(len(scores)), key=lambda k: -abs(scores[k]))[:top])
    if ax is None:
        pyplot = import_optional("matplotlib.pyplot", "Explanation.plot()")
        _, ax = pyplot.subplots(figsize=(6.4, 1.2 + 0.24 * len(positions)), layout="constrained")
    places = range(len(positions))
    colours = [_hex(FOR_RGB if scores[k] > 0 else AGAINST_RGB) for k in positions]
    ax.barh(places, [scores[k] for k in positions], color=colours)
    ax.set_yticks(places, [labels[k] for k in positions], parse_math=False)
    ax.set_ylim(len(positions) - 0.4, -0.6)  # the first source at the top
    ax.axvline(0.0, color="0.5", linewidth=0.8)
    name = printable(explanation.targets[column])
    ax.set_xlabel(f"contribution to {name} ({value_name(explanation, column)})", parse_math=False)
    return ax
