"""An explanation as horizontal bars, which add up to the model's value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.cells import cell_len

from ..errors import InputError
from ..optional import import_optional
from .account import account, are_norms
from .display import AGAINST_RGB, FOR_RGB, hexadecimal, labels_with_blocks, plural, printable
from .fonts import drawable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .explanation import Explanation
    from .kinds import Target

MAX_BARS = 40  # of sources, where the user asks for no number
LABEL_WIDTH = 32  # in cells, of which an ideograph takes two
LABEL_LINES = 3
_AXIS_LABEL_WIDTH = 44  # it is centred on the axes, which long labels push to the right
_INCHES_OF_LINE = 0.24
_INCHES_AROUND = 1.2


class _Bar(NamedTuple):
    """One bar; ``is_sum`` for what stands for several sources or none."""

    label: str
    value: float
    is_sum: bool


def check_axes(ax: Any) -> None:
    """Refuse what is not to be drawn on, such as the name of a target.

    Raises:
        InputError: saying what was meant.
    """
    if ax is not None and not hasattr(ax, "barh"):
        raise InputError(f"ax must be the Axes of matplotlib to draw on, got {ax!r}: a target is target={ax!r}.")


def plot(
    explanation: Explanation, ax: Axes | None = None, *, target: Target = None, top: int | None = MAX_BARS
) -> Axes:
    """Draw the scores as horizontal bars, and below them what else the model's value is made of.

    The bars add up to the model's value: sources that are not shown have one bar together, and so have the bias token
    and what an option left out.

    Args:
        explanation: what to draw.
        ax: where to draw; a new figure if None.
        target: as for ``Explanation.column``.
        top: only so many sources with the largest ``|score|``; all if None. They stay in the order of the text.

    Returns:
        The axes drawn on.

    Raises:
        MissingPackageError: if matplotlib is not installed.
        InputError: if ``top`` is below 1, or ``ax`` is not to be drawn on.
    """
    check_axes(ax)
    if top is not None and top < 1:
        raise InputError(f"top must be 1 or more, or None for all, got {top}.")
    pyplot = import_optional("matplotlib.pyplot", "Explanation.plot()") if ax is None else None
    column = explanation.column(target)
    bars = _bars(explanation, column, top)
    texts, families = drawable([*(bar.label for bar in bars), _axis_label(explanation, column)])
    labels = [wrap(text, LABEL_WIDTH, LABEL_LINES) for text in texts[:-1]]
    centres, lines = [], 0
    for label in labels:
        height = 1 + label.count("\n")
        centres.append(lines + (height - 1) / 2)
        lines += height
    if pyplot is not None:
        _, ax = pyplot.subplots(figsize=(6.4, _INCHES_AROUND + _INCHES_OF_LINE * lines), layout="constrained")
    assert ax is not None
    for centre, bar in zip(centres, bars, strict=True):
        colour = hexadecimal(FOR_RGB if bar.value > 0 else AGAINST_RGB)
        paper, hatch = ("white", "////") if bar.is_sum else (colour, None)
        ax.barh(centre, bar.value, facecolor=paper, edgecolor=colour, hatch=hatch)
    ax.set_yticks(centres, labels, parse_math=False, fontfamily=families)
    ax.set_ylim(lines - 0.4, -0.6)  # the first source at the top
    ax.axvline(0.0, color="0.5", linewidth=0.8)
    ax.set_xlabel(wrap(texts[-1], _AXIS_LABEL_WIDTH, LABEL_LINES + 1), parse_math=False, fontfamily=families)
    return ax


def _bars(explanation: Explanation, column: int, top: int | None) -> list[_Bar]:
    """The largest sources in the order of the text, then everything else that the value is made of."""
    scores: list[float] = explanation.scores[:, column].tolist()
    totals = account(explanation, column)
    shown = sorted(sorted(range(len(scores)), key=lambda k: -abs(scores[k]))[:top])
    labels = labels_with_blocks(explanation)
    bars = [_Bar(labels[k], scores[k], False) for k in shown]
    others = sorted(set(range(len(scores))) - set(shown))
    if others:
        unit = explanation.source_unit if len(others) == 1 else plural(explanation.source_unit)
        bars.append(_Bar(f"{len(others)} other {unit}", math.fsum(scores[k] for k in others), True))
    if totals.apart is not None:
        bars.append(_Bar(totals.apart_name, totals.apart, True))
    if totals.remainder_name:
        bars.append(_Bar(totals.remainder_name, totals.remainder, True))
    return bars


def _axis_label(explanation: Explanation, column: int) -> str:
    if are_norms(explanation):
        return "norm of the contribution (no class)"
    totals = account(explanation, column)
    name = printable(explanation.targets[column])
    return f"contribution to {name} ({totals.value_name} {totals.written()[0]})"


def wrap(text: str, width: int, lines: int) -> str:
    """The text in at most so many lines of so many cells, broken at spaces where there are any; the rest is elided."""
    rows: list[str] = []
    rest = text
    while rest and len(rows) < lines:
        fit = _fitting(rest, width)
        if fit < len(rest) and " " in rest[: fit + 1].strip():
            fit = rest.rindex(" ", 0, fit + 1)
        rows.append(rest[:fit].rstrip())
        rest = rest[fit:].lstrip()
    if rest:
        rows[-1] = rows[-1][: _fitting(rows[-1], width - 1)].rstrip() + "\u2026"
    return "\n".join(rows)


def _fitting(text: str, width: int) -> int:
    """How many characters fit into so many cells; at least one."""
    cells = 0
    for index, char in enumerate(text):
        cells += cell_len(char)
        if cells > width:
            return max(1, index)
    return len(text)
