"""Explanations in the terminal: the text in colours, and a table with bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

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

from ..errors import InputError
from .account import account, are_norms
from .blocks import block_of
from .difference import difference
from .display import (
    AGAINST_RGB,
    CLASSES_SHOWN,
    FOR_RGB,
    VISIBLE,
    Piece,
    colour_scale,
    focus_note,
    hexadecimal,
    labels_with_blocks,
    layout_text,
    outcomes,
    outcomes_name,
    plural,
    score_format,
    shown_in,
    sinks_named,
    strength,
)
from .matrix import is_matrix, matrix_view

if TYPE_CHECKING:
    from .explanation import Explanation
    from .kinds import Target

MAX_TABLE_ROWS = 40  # more sources than this: only the largest are listed
ROWS_OF_LONG_TABLE = 20
BESIDE_WIDTH = 12  # of the name of a target above its scores
_STRONG = 0.2  # share of the colour scale from which there is a background, and bold for what is positive
_GREY = 96


def show(
    explanation: Explanation,
    target: Target = None,
    *,
    other: Target = None,
    console: Console | None = None,
    width: int | None = None,
) -> None:
    """Print the terminal view.

    Args:
        explanation: what to show.
        target: as for ``Explanation.column``.
        other: as for ``Explanation.show``.
        console: where to print; standard output if None.
        width: in columns; the terminal's if None.
    """
    console = console or Console(width=width)
    console.print(terminal_view(explanation, target, other=other, encoding=console.encoding), width=width)


def terminal_view(
    explanation: Explanation, target: Target = None, *, other: Target = None, encoding: str = "utf-8"
) -> Group:
    """What :func:`show` prints, to be used in a layout of one's own.

    Args:
        explanation: what to show.
        target: as for ``Explanation.column``.
        other: as for ``Explanation.show``.
        encoding: characters that it lacks are written as escapes.
    """
    if other is not None:
        view: _Terminal = _TwoTargets(explanation, target, other, encoding)
    elif target is None and is_matrix(explanation):
        return matrix_view(explanation, encoding=encoding)
    else:
        view = _Terminal(explanation, explanation.column(target), encoding)
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
        self.explanation = self.said = explanation
        self.column = column
        self.encoding = encoding
        self.scores: list[float] = explanation.scores[:, column].tolist()
        self.largest = colour_scale(explanation, [column])
        self.account = account(explanation, column)
        self.number = score_format(self.scores)
        self.beside: dict[str, list[float]] = {}  # other columns of the table, by their names

    def plain(self, text: str) -> str:
        """Only characters that the terminal shows and can encode."""
        return shown_in(self.encoding, text)

    def heading(self) -> Table:
        explanation, column = self.explanation, self.column
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(outcomes_name(self.said), self.prediction())
        value, source_sum, apart = self.account.written()
        explained = f"{explanation.targets[column]}: {self.account.value_name} {value}"
        grid.add_row("Explained", Text(self.plain(explained)))
        apart_part = "" if apart is None else f" and {apart}"
        grid.add_row("Sum", f"{plural(explanation.source_unit)} {source_sum}{apart_part}")
        grid.add_row(self.account.status, Text(self.account.extent, style="" if self.account.is_sound else "bold"))
        focus = focus_note(explanation, column)
        if focus:
            grid.add_row("Focus", focus)
        others = [name for index, name in enumerate(explanation.targets) if index != column]
        if others:
            shown = ", ".join(others[:CLASSES_SHOWN]) + (", ..." if len(others) > CLASSES_SHOWN else "")
            grid.add_row("Other targets", Text(self.plain(shown), style="dim"))
        return grid

    def prediction(self) -> Text:
        text = Text()
        for index, (name, value, is_predicted) in enumerate(outcomes(self.said)):
            if index:
                text.append(", ")
            text.append(self.plain(name), style="bold" if is_predicted else "dim")
            text.append(f" {value}", style="" if is_predicted else "dim")
        return text

    def texts(self) -> list[Text]:
        """The texts, each source coloured by its score; of a picture its patches, two cells each."""
        if self.explanation.picture is not None:
            return [patch_row(row, self.scores, self.largest) for row in self.explanation.picture.groups.tolist()]
        rows = []
        for pieces in layout_text(self.explanation):
            text = Text(overflow="fold")
            block = block_of(self.explanation, [k for piece in pieces for k in piece.positions])
            if block is not None:
                text.append(f"{block.capitalize()}  ", style="dim")
            for index, piece in enumerate(pieces):
                text.append(self.plain(piece.text), style=self.piece_style(piece))
                following = pieces[index + 1] if index + 1 < len(pieces) else None
                if following is not None and (piece.is_marker or following.is_marker):
                    text.append(" ")
            rows.append(text)
        return rows

    def piece_style(self, piece: Piece) -> Style:
        return piece_style(piece, self.scores, self.largest)

    def legend(self) -> Text:
        name = self.plain(self.explanation.targets[self.column])
        if are_norms(self.explanation):
            return _legend(" the longest")
        return _legend(f" for {name}   ", f" against {name}")

    def table(self) -> list[Table | Text]:
        labels = labels_with_blocks(self.explanation)
        positions = list(range(len(labels)))
        if len(labels) > MAX_TABLE_ROWS:
            positions = sorted(sorted(positions, key=lambda k: -abs(self.scores[k]))[:ROWS_OF_LONG_TABLE])
        table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
        table.add_column("#", justify="right", style="dim", no_wrap=True)
        table.add_column(self.explanation.source_unit.capitalize(), ratio=2, no_wrap=True, overflow="ellipsis")
        for name in self.beside:
            table.add_column(Text(self.plain(name)), justify="right", no_wrap=True, max_width=BESIDE_WIDTH)
        table.add_column("Score" if not self.beside else "Difference", justify="right", no_wrap=True)
        table.add_column("" if are_norms(self.explanation) else _BothSides(), ratio=3, no_wrap=True)
        for k in positions:
            style = "dim" if self.explanation.special[k] else ""
            beside = [self.number(scores[k]) for scores in self.beside.values()]
            bar = _Bar(self.scores[k], self.largest)
            table.add_row(str(k), Text(self.plain(labels[k]), style=style), *beside, self.number(self.scores[k]), bar)
        notes = [
            Text(note, style="dim") for note in (self.left_out_note(positions), self.scale_note(positions)) if note
        ]
        return [table, *notes]

    def left_out_note(self, positions: list[int]) -> str:
        """What a table of the largest does not show."""
        count, unit = len(self.scores), self.explanation.source_unit
        if len(positions) == count:
            return ""
        rest = math.fsum(self.scores[k] for k in set(range(count)) - set(positions))
        return (
            f"The {len(positions)} largest of {count} {plural(unit)}, in the order of the text; the other "
            f"{count - len(positions)} add up to {self.number(rest)}."
        )

    def scale_note(self, positions: list[int]) -> str:
        """Which bars are cut."""
        if all(abs(self.scores[k]) <= self.largest or not math.isfinite(self.scores[k]) for k in positions):
            return ""
        full = f"Bars and colours are full at {self.number(self.largest)}"
        return f"{full}, as {sinks_named(self.explanation)} do not set the scale."


def _legend(green: str, red: str | None = None) -> Text:
    """What the colours say."""
    text = Text("green, bold", style=Style(color=hexadecimal(FOR_RGB), bold=True))
    text.append(green, style="not bold default")
    if red is not None:
        text.append("red, underlined", style=Style(color=hexadecimal(AGAINST_RGB), underline=True, bold=False))
        text.append(red, style="not bold default")
    return text


class _TwoTargets(_Terminal):
    """Two targets beside each other: what is shown is the first less the second."""

    def __init__(self, explanation: Explanation, target: Target, other: Target, encoding: str) -> None:
        columns = explanation.column(target), explanation.column(other)
        self.names = [explanation.targets[column] for column in columns]
        if columns[0] == columns[1]:
            listed = ", ".join(map(repr, explanation.targets))
            raise InputError(f"other={other!r} is the target itself: name two of those that were explained, {listed}.")
        super().__init__(difference(explanation, explanation, target=target, other=other), 0, encoding)
        self.said = explanation  # of which the model's prediction is shown
        scores = [explanation.scores[:, column].tolist() for column in columns]
        self.beside = dict(zip(self.names, scores, strict=True))
        self.number = score_format([*self.scores, *scores[0], *scores[1]])

    def legend(self) -> Text:
        first, second = map(self.plain, self.names)
        return _legend(f" more for {first}   ", f" more for {second}")


def patch_row(sources: Sequence[int], scores: Sequence[float], largest: float) -> Text:
    """A row of patches, two cells each: their sign, on their colour.

    Args:
        sources: that the patches belong to.
        scores: of all sources.
        largest: the ``|score|`` of the full colour.
    """
    text = Text(no_wrap=True)
    for source in sources:
        share = strength(scores[source], largest)
        mark = "  " if share < VISIBLE else " +" if scores[source] > 0 else " -"
        text.append(mark, style=piece_style(Piece(mark, (source,)), scores, largest))
    return text


def piece_style(piece: Piece, scores: Sequence[float], largest: float) -> Style:
    """How a stretch of text is shown whose sources have these scores, of a scale that ends at ``largest``."""
    if not piece.positions:
        return Style(dim=bool(piece.text.strip()))
    score = sum(scores[position] for position in piece.positions)
    share = strength(score, largest)
    if share < VISIBLE:
        return Style(dim=piece.is_marker)
    rgb = FOR_RGB if score > 0 else AGAINST_RGB
    # The line tells the sign of what is weak, too, and where there is no colour.
    emphasis = Style(bold=score > 0 and share >= _STRONG, underline=score < 0)
    if piece.is_marker or share < _STRONG:
        return Style(color=hexadecimal(rgb)) + emphasis
    # From grey to the full colour, under white: readable whether the terminal is light or dark.
    paper = [round(_GREY + (part - _GREY) * share) for part in rgb]
    return Style(color="#ffffff", bgcolor=hexadecimal(paper)) + emphasis


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
        self.is_cut = math.isfinite(score) and abs(score) > largest

    def sides(self, half: int, ascii_only: bool) -> tuple[str, str, Style]:
        cells, odd = divmod(round(self.share * half * 2), 2)
        bar = ("#" if ascii_only else "█") * (cells - self.is_cut)
        ends = ("<", ">") if ascii_only else ("«", "»")
        if self.score < 0:
            half_cell = "▐" if odd and not ascii_only else ""
            return (ends[0] if self.is_cut else half_cell) + bar, "", Style(color=hexadecimal(AGAINST_RGB))
        half_cell = "▌" if odd and not ascii_only else ""
        return "", bar + (ends[1] if self.is_cut else half_cell), Style(color=hexadecimal(FOR_RGB))
