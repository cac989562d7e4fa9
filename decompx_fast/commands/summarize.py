"""The command ``decompx-fast summarize``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..result.explanation import Explanation
    from ..result.failure import Failure
    from ..summarize import Summary

ORDERS = ("sum", "mean", "magnitude", "count")


@click.command()
@click.argument("results", metavar="RESULTS")
@click.option("--target", "targets", multiple=True, metavar="CLASS", help="Only this target, by name; repeatable.")
@click.option(
    "--by",
    type=click.Choice(("predicted", "correct", "column")),
    help="Groups that are told apart: the predicted class; whether it is the label; the value of --column.",
)
@click.option("--column", metavar="NAME", help="A column of the bulk run's input: the label, or what groups rows.")
@click.option("--contrast", nargs=2, metavar="GROUP GROUP", help="Also the words that differ most between two groups.")
@click.option(
    "--against", metavar="RESULTS", help="Also the words that differ most from those of another run, of another model."
)
@click.option("--order", type=click.Choice(ORDERS), default="sum", show_default=True, help="What matters most.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="Words shown.")
@click.option(
    "--min-documents", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Of each word."
)
@click.option("--case", is_flag=True, help="Words that differ in case are different words.")
@click.option("--special", is_flag=True, help="Special tokens are words.")
@click.option("--html", metavar="OUT", help="Write a page: the words, and the texts of each.")
@click.option("--json", "json_", metavar="OUT", help="Write JSON; '-': standard output.")
@click.option("--plot", metavar="OUT", help="Draw the words of the last target, or the only --target: PNG, SVG or PDF.")
@click.option("--quiet", is_flag=True, help="Print no tables.")
def summarize(
    results: str,
    targets: tuple[str, ...],
    by: str | None,
    column: str | None,
    contrast: tuple[str, str] | None,
    against: str | None,
    order: Any,
    top: int,
    min_documents: int,
    case: bool,
    special: bool,
    html: str | None,
    json_: str | None,
    plot: str | None,
    quiet: bool,
) -> None:
    """Say which words speak for and against each target in RESULTS, the folder of a bulk run.

    \b
    Reads the parts one after the other, so that memory does not grow with their
    number; a run that is not complete is read as far as it is.
    """
    from ..summarize import contrast as of_two
    from ..summarize.view import show_contrasts

    if (column is None) != (by not in ("correct", "column")):
        need = "--by correct (the column of labels) and --by column"
        raise click.UsageError(f"--column NAME goes with {need}: give both, or neither")
    options = {"targets": targets or None, "lower": not case, "special": special}
    found = _summary(results, by, column, options)
    other = None if against is None else _summary(against, by, column, options)
    words = {"by": order, "min_documents": min_documents}
    compared = []  # the contrasts, and what they are between
    least = max(2, min_documents)
    for target in found.targets:
        if contrast:
            compared.append((found.contrasts(*contrast, target, n=top, min_documents=least), contrast, target))
        if other is not None and against is not None:
            compared.append((of_two(found, other, target, n=top, min_documents=least), (results, against), target))
    if not quiet and json_ != "-":
        found.show(top, **words)
        for rows, names, target in compared:
            click.echo(f"\n{target}: {names[0]} less {names[1]}")
            show_contrasts(rows, names)
    if json_ is not None:
        data = found.to_dict(top, **words) | {"contrasts": [_as_dict(*one) for one in compared]}
        _write(json_, json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    if html is not None:
        _write(html, found.to_html(top, **words, full=True))
    if plot is not None:
        _draw(found, plot, n=2 * top, **words)


def _summary(results: str, by: str | None, column: str | None, options: dict[str, Any]) -> Summary:
    from ..summarize import summarize as add_up

    group: Any = by
    if by in ("correct", "column"):
        assert column is not None
        group = _correct(column) if by == "correct" else _value_of(column)
    return add_up(_read(results), by=group, **options)


def _read(results: str) -> Iterator[Explanation | Failure]:
    from ..bulk import load_results

    yield from load_results(results)


def _value_of(column: str) -> Callable[[Explanation], str | None]:
    """What a row of the input had in a column.

    Raises:
        InputError: where it had no such column.
    """
    from ..errors import InputError

    def value(one: Explanation) -> str | None:
        columns = one.metadata.get("columns") or {}
        if column not in columns:
            there = ", ".join(map(repr, columns)) or "none but those that were read as text, pair and id"
            raise InputError(
                f"--column {column!r}: row {one.metadata.get('input')} has no such column; there are {there}"
            )
        return None if columns[column] in (None, "") else str(columns[column])

    return value


def _correct(column: str) -> Callable[[Explanation], str | None]:
    """Whether the label in a column, a class's name or index, is the one that was predicted."""
    value = _value_of(column)

    def correct(one: Explanation) -> str | None:
        label = value(one)
        if label is None or not isinstance(one.predicted, int):
            return None
        if label in one.labels:
            return "right" if one.labels.index(label) == one.predicted else "wrong"
        if label.isdecimal() and int(label) < len(one.labels):
            return "right" if int(label) == one.predicted else "wrong"
        from ..errors import InputError

        raise InputError(
            f"--column {column!r}: the label {label!r} of row {one.metadata.get('input')} is no class of the model, by "
            f"name or index: there are {', '.join(map(repr, one.labels))}"
        )

    return correct


def _as_dict(rows: list[Any], names: tuple[str, str], target: str) -> dict[str, Any]:
    words = [
        {
            "word": one.word,
            "difference": one.difference,
            "z": one.z if abs(one.z) != float("inf") else None,
            "first": vars(one.first),
            "second": vars(one.second),
        }
        for one in rows
    ]
    return {"target": target, "first": names[0], "second": names[1], "words": words}


def _write(out: str, text: str) -> None:
    from ..result.file import atomic_write

    if out == "-":
        click.echo(text, nl=False)
    else:
        atomic_write(out, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))


def _draw(found: Summary, out: str, **words: Any) -> None:
    from ..errors import OutputError
    from ..optional import import_optional

    pyplot = import_optional("matplotlib.pyplot", "--plot")
    pyplot.switch_backend("agg")
    figure: Any = found.plot(**words).figure
    try:
        figure.savefig(out)
    except (OSError, ValueError) as error:
        raise OutputError(f"--plot {out!r} cannot be written: {error}") from error
    finally:
        pyplot.close(figure)
