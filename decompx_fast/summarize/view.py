"""A summary for people: in the terminal, as a page, and as plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import InputError
from ..optional import import_optional
from ..result.display import AGAINST_RGB, FOR_RGB, escaped, hexadecimal, largest_magnitude, printable, score_format
from ..result.fonts import drawable
from ..result.templating import constants, template

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .summary import Contrast, Order, Summary, Word

Kind = Literal["bar", "beeswarm"]


def show(summary: Summary, n: int, *, by: Order, min_documents: int, console: Console | None) -> None:
    """Print the words for and against each target."""
    console = console or Console()
    head = f"{summary.texts:,} texts, {len(summary):,} words"
    console.print(Text(head, style="bold"))
    for note in notes(summary):
        console.print(Text(note, style="dim"))
    for target, group in summary.columns:
        words = both_signs(summary, n, target, group, by, min_documents)
        console.print(Text(), Text(escaped(printable(title(target, group))), style="bold"))
        console.print(_table(words))


def show_contrasts(contrasts: Sequence[Contrast], names: tuple[str, str], *, console: Console | None = None) -> None:
    """Print the words whose scores differ most between two groups or models."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Word", no_wrap=True)
    for name in ("Difference", "z", *names):
        table.add_column(Text(escaped(printable(name))), justify="right", no_wrap=True)
    number = score_format([value for one in contrasts for value in (one.difference, one.first.mean, one.second.mean)])
    for one in contrasts:
        style = hexadecimal(FOR_RGB if one.difference > 0 else AGAINST_RGB)
        cells = [number(one.difference), f"{one.z:+.1f}", number(one.first.mean), number(one.second.mean)]
        table.add_row(Text(escaped(printable(one.word))), Text(cells[0], style=style), *cells[1:])
    (console or Console()).print(table)


def _table(words: Sequence[Word]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Word", no_wrap=True)
    for name in ("Mean", "Deviation", "Magnitude", "Texts", "Places", "Sum"):
        table.add_column(name, justify="right", no_wrap=True)
    number = score_format([word.mean for word in words])
    total = score_format([word.sum for word in words])
    for word in words:
        mean = Text(number(word.mean), style=hexadecimal(FOR_RGB if word.mean > 0 else AGAINST_RGB))
        spread = number(word.deviation)[1:] if word.documents > 1 else ""
        size = number(word.magnitude)[1:]
        counts = [f"{word.documents:,}", f"{word.count:,}", total(word.sum)]
        table.add_row(Text(escaped(printable(word.word))), mean, spread, size, *counts)
    return table


def both_signs(summary: Summary, n: int, target: str, group: str, by: Order, min_documents: int) -> list[Word]:
    """The words for a target, then those against it."""
    found: list[Word] = []
    for sign in ("positive", "negative"):
        found += summary.top(n, target, group=group, by=by, sign=sign, min_documents=min_documents)
    return found


def title(target: str, group: str) -> str:
    """The name of a column."""
    return f"{target}, of {group}" if group else target


def notes(summary: Summary) -> list[str]:
    """What is not in the summary, or not in its scores."""
    found = []
    if summary.left_out_by_design:
        what, gap = " and ".join(summary.left_out_by_design), summary.largest_completeness_error
        found.append(f"Scores leave out {what}, by design: up to {gap:.2g} of a target's value in a text.")
    if summary.failures:
        found.append(f"{summary.failures:,} inputs were not explained and are not in it.")
    if summary.ungrouped:
        found.append(f"{summary.ungrouped:,} explanations are in no group and not in it.")
    if summary.left_out[0]:
        words, places = summary.left_out
        found.append(f"{words:,} words with {places:,} places were left out, those of the fewest texts.")
    return found


def page(summary: Summary, n: int, *, by: Order, min_documents: int, full: bool) -> str:
    """The words of each target with their spread, and the texts of each word."""
    blocks = []
    for target, group in summary.columns:
        words = both_signs(summary, n, target, group, by, min_documents)
        scale = largest_magnitude([abs(word.mean) + word.deviation for word in words]) or 1.0
        number, total = score_format([word.mean for word in words]), score_format([word.sum for word in words])
        rows = []
        for word in words:
            examples = summary.examples_of(word.word, target, group=group)
            rows.append(
                {
                    "word": printable(word.word),
                    "is_for": word.mean > 0,
                    "mean": number(word.mean),
                    "deviation": number(word.deviation)[1:],
                    "documents": f"{word.documents:,}",
                    "count": f"{word.count:,}",
                    "sum": total(word.sum),
                    "bar": _interval(0.0, word.mean, scale),
                    "spread": _interval(word.mean - word.deviation, word.mean + word.deviation, scale),
                    "examples": [_example(example, number(example.score)) for example in examples],
                }
            )
        blocks.append({"name": printable(title(target, group)), "rows": rows, "scale": number(scale)[1:]})
    view = {
        "texts": f"{summary.texts:,}",
        "words": f"{len(summary):,}",
        "groups": [(printable(name), f"{count:,}") for name, count in summary.group_texts.items() if name],
        "gap": "" if summary.left_out_by_design else f"to within {summary.largest_completeness_error:.1e}",
        "notes": notes(summary),
        "blocks": blocks,
    }
    return template("summary.html.jinja").render(constants() | {"view": view, "full": full})


def _interval(low: float, high: float, scale: float) -> tuple[str, str]:
    """Where it begins and how long it is, in percent of a bar from ``-scale`` to ``scale``."""
    low, high = sorted((low, high))
    return f"{50 + 50 * low / scale:.2f}", f"{50 * (high - low) / scale:.2f}"


def _example(example: Any, number: str) -> dict[str, Any]:
    parts = {name: printable(getattr(example, name)) for name in ("before", "word", "after", "place")}
    return {**parts, "score": example.score, "number": number}


def plot(summary: Summary, ax: Axes | None, *, kind: Kind, words: Sequence[Word]) -> Axes:
    """Draw words as bars with their spread, or as points."""
    if kind not in get_args(Kind):
        raise InputError(f"kind must be 'bar' or 'beeswarm', got {kind!r}.")
    if not words:
        raise InputError("there is no such word to be drawn: ask for fewer documents, or another target.")
    pyplot = import_optional("matplotlib.pyplot", "Summary.plot()") if ax is None else None
    if pyplot is not None:
        _, ax = pyplot.subplots(figsize=(6.4, 1.2 + 0.28 * len(words)), layout="constrained")
    assert ax is not None
    label = f"contribution to {title(words[0].target, words[0].group)}"
    texts, families = drawable([*(f"{printable(word.word)} ({word.documents:,})" for word in words), printable(label)])
    for height, word in enumerate(words):
        colour = hexadecimal(FOR_RGB if word.mean > 0 else AGAINST_RGB)
        if kind == "bar":
            ax.barh(height, word.mean, facecolor=colour, edgecolor=colour)
            ax.errorbar(word.mean, height, xerr=word.deviation, color="0.4", linewidth=0.9, capsize=2)
        else:
            scores = summary._scores(word)
            ax.scatter(scores, height + _swarm(scores), s=7, color=colour, alpha=0.6, linewidths=0)
            ax.plot([word.mean] * 2, [height - 0.35, height + 0.35], color="0.4", linewidth=1.2)
    ax.set_yticks(range(len(words)), texts[:-1], parse_math=False, fontfamily=families)
    ax.set_ylim(len(words) - 0.4, -0.6)  # the first word at the top
    ax.axvline(0.0, color="0.5", linewidth=0.8)
    ax.set_xlabel(texts[-1], parse_math=False, fontfamily=families)
    return ax


def _swarm(scores: np.ndarray) -> np.ndarray:
    """How far each point is from its row, so that equal scores lie beside each other: ``[n]``, from -0.4 to 0.4."""
    if len(scores) < 2:
        return np.zeros(len(scores))
    bins = np.digitize(scores, np.linspace(scores.min(), scores.max(), 40))
    offsets = np.zeros(len(scores))
    for one in np.unique(bins):
        members = np.flatnonzero(bins == one)
        steps = np.arange(len(members))
        offsets[members] = (steps + 1) // 2 * np.where(steps % 2, 1, -1)
    return 0.4 * offsets / max(4.0, float(np.abs(offsets).max()))
