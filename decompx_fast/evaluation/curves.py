"""The curves of an evaluation: what masking more and more tokens does, a line for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..optional import import_optional
from ..result.file import atomic_write
from .metrics import DESIGNS, Metric

if TYPE_CHECKING:
    from .report import MethodResult

FORMATS = ("png", "svg")
_STYLES = ("-", "--", "-.", ":")
_COLOURS = 10  # of matplotlib's palette; then the next style of lines


def draw_curves(
    folder: Path, methods: Mapping[str, MethodResult], metrics: Sequence[Metric], accuracy: float | None
) -> None:
    """Write ``<metric>.png`` and ``<metric>.svg`` of every metric that is a curve.

    Args:
        folder: where.
        methods: the results.
        metrics: those that were measured.
        accuracy: of the model on the full texts, where accuracy begins.
    """
    figures = import_optional("matplotlib.figure", "the curves of an evaluation")
    for metric in metrics:
        lines = {one.label: one.curves[metric.name] for one in methods.values() if metric.name in one.curves}
        if not lines:
            continue
        count = len(next(iter(lines.values())))
        percents = DESIGNS[metric.design].percents if metric.design else tuple(range(1, count + 1))
        figure = figures.Figure(figsize=(9, 5.5), layout="constrained")
        axes = figure.add_subplot()
        for place, (label, values) in enumerate(lines.items()):
            style = _STYLES[place // _COLOURS % len(_STYLES)]
            axes.plot(percents, values, style, color=f"C{place % _COLOURS}", label=label, linewidth=1.4)
        if metric.needs_labels and accuracy is not None:
            axes.axhline(accuracy, color="grey", linewidth=0.8, label="full text")
        axes.set_xlabel(_axis(metric))
        axes.set_ylabel(metric.label)
        axes.set_xticks(percents)
        figure.legend(loc="outside right upper", fontsize="small", frameon=False)
        for ending in FORMATS:
            _save(figure, folder / f"{metric.name}.{ending}", ending)


def _save(figure: Any, path: Path, ending: str) -> None:
    """The same numbers give the same file: no date in it, and no random names."""
    matplotlib = import_optional("matplotlib", "the curves of an evaluation")
    metadata = {"Date": None} if ending == "svg" else None
    with matplotlib.rc_context({"svg.hashsalt": "decompx_fast"}):
        atomic_write(path, lambda temporary: figure.savefig(temporary, format=ending, dpi=150, metadata=metadata))


def _axis(metric: Metric) -> str:
    """What the levels of a metric are."""
    if not metric.design:
        return "layers, from the head down"
    design = DESIGNS[metric.design]
    done = {"mask": "masked", "pad": "replaced by padding", "remove": "removed"}[metric.deletion]
    return f"% of the tokens {done if design.action == 'delete' else 'kept'}, the {design.of} important first"
