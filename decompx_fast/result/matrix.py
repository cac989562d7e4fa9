"""Many columns at once, as the tokens of an output: sources against them, in the terminal and as tabs of a page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Group
from rich.style import Style
from rich.table import Table
from rich.text import Text

from .account import account
from .blocks import encoder_sources
from .display import (
    AGAINST_RGB,
    FOR_RGB,
    VISIBLE,
    colour_scale,
    hexadecimal,
    labels_with_blocks,
    score_format,
    shown_in,
    strength,
)

if TYPE_CHECKING:
    from .explanation import Explanation

#: Columns beside one another, and rows of the largest where there are more sources.
COLUMNS_BESIDE, ROWS = 6, 30

#: In the place of a score of exactly 0: the token comes after what the column is about.
UNREAD = "\u00b7"

_GREY = 96


def is_matrix(explanation: Explanation) -> bool:
    """Whether its columns are looked at together: the tokens of an output."""
    return explanation.task in ("text-generation", "text2text-generation") and len(explanation.targets) > 1


def matrix_view(explanation: Explanation, *, encoding: str = "utf-8") -> Group:
    """What the terminal shows of sources against the tokens of an output."""

    plain = partial(shown_in, encoding)
    unread = UNREAD if UNREAD.encode(encoding, "replace").decode(encoding) == UNREAD else "."

    total = account(explanation, 0)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    first = "Prompt" if encoder_sources(explanation) is None else "Input"
    for name, text in zip((first, "Output"), explanation.texts, strict=False):
        grid.add_row(name, Text(plain(text)))
    grid.add_row(total.status, Text(total.extent, style="" if total.is_sound else "bold"))
    tables: list[Table | Text] = []
    count = len(explanation.targets)
    for start in range(0, count, COLUMNS_BESIDE):
        tables += [Text(), _table(explanation, range(start, min(start + COLUMNS_BESIDE, count)), plain, unread)]
    left = len(explanation) - len(_rows(explanation))
    if left > 0:
        note = f"The {ROWS} {explanation.source_unit}s with the largest scores; the sums are those of all."
        tables.append(Text(note, style="dim"))
    return Group(grid, *tables)


def _rows(explanation: Explanation) -> list[int]:
    """The sources that are shown: all, or those with the largest score anywhere, in the order of the text."""
    if len(explanation) <= ROWS:
        return list(range(len(explanation)))
    return sorted(explanation.scores.abs().amax(1).topk(ROWS).indices.tolist())


def _table(explanation: Explanation, columns: range, plain: Callable[[str], str], unread: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", footer_style="bold", show_footer=True)
    totals = [account(explanation, column) for column in columns]
    scores = explanation.scores[:, list(columns)].double()
    numbers = [score_format([*values, total.value]) for values, total in zip(scores.T.tolist(), totals, strict=True)]
    largest = colour_scale(explanation, range(len(explanation.targets)))
    table.add_column("#", justify="right", style="dim", no_wrap=True, footer="")
    table.add_column(explanation.source_unit.capitalize(), no_wrap=True, overflow="ellipsis", footer="Model")
    for column, total, number in zip(columns, totals, numbers, strict=True):
        name = Text(plain(explanation.targets[column]), overflow="ellipsis", no_wrap=True)
        table.add_column(name, justify="right", no_wrap=True, footer=number(total.value))
    labels = labels_with_blocks(explanation)
    for k in _rows(explanation):
        style = "dim" if explanation.special[k] else ""
        cells = [
            Text(number(score) if score else unread, style=_style(score, largest))
            for score, number in zip(scores[k].tolist(), numbers, strict=True)
        ]
        table.add_row(str(k), Text(plain(labels[k]), style=style), *cells)
    return table


def _style(score: float, largest: float) -> Style:
    """Of a cell: what is weak is grey, and the sign is a line too."""
    share = strength(score, largest)
    if share < VISIBLE:
        return Style(dim=True)
    rgb = FOR_RGB if score > 0 else AGAINST_RGB
    emphasis = Style(bold=score > 0, underline=score < 0)
    if share < 0.2:
        return Style(color=hexadecimal(rgb)) + emphasis
    paper = [round(_GREY + (part - _GREY) * share) for part in rgb]
    return Style(color="#ffffff", bgcolor=hexadecimal(paper)) + emphasis
