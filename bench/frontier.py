"""What faithfulness costs: seconds a text beside AOPC, and the frontier, of the results that are committed.

    python bench/frontier.py

Reads ``bench/results/faithfulness/summary.json`` (528 texts), ``paths.json`` and, of ``sets.json``, the movie snippets
(DecompX along paths, searched, and others, on texts of their own). A method that only the later ones have is placed by
its difference to DecompX there, in AOPC, and by how many times DecompX's seconds it takes there, since machines were
not equally busy. Writes ``frontier.svg`` and ``frontier.md`` beside them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results" / "faithfulness"
REFERENCE = "decompx"


class Point(NamedTuple):
    """A method: its name, seconds a text and AOPC."""

    label: str
    seconds: float
    aopc: float


def points(whole: dict[str, Any], *others: dict[str, Any]) -> list[Point]:
    """Every method of all, the cheapest first; of several results of a method the first."""
    found = [
        Point(method["label"], whole["seconds_per_text"][name], method["estimates"]["aopc"]["mean"])
        for name, method in whole["methods"].items()
    ]
    seconds, aopc = whole["seconds_per_text"][REFERENCE], whole["methods"][REFERENCE]["estimates"]["aopc"]["mean"]
    known = set(whole["methods"])
    for other in others:
        for name, method in other["methods"].items():
            if name not in known:
                times = other["seconds_per_text"][name] / other["seconds_per_text"][REFERENCE]
                found.append(Point(method["label"], seconds * times, aopc + method["differences"]["aopc"]["mean"]))
        known |= set(other["methods"])
    return sorted(found, key=lambda point: point.seconds)


def frontier(found: list[Point]) -> list[Point]:
    """Those of which no cheaper one is as faithful; of points, the cheapest first."""
    kept: list[Point] = []
    for point in found:
        if not kept or point.aopc > kept[-1].aopc:
            kept.append(point)
    return kept


def draw(found: list[Point], best: list[Point]) -> Figure:
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.add_subplot()
    for point in found:
        ours = point.label.startswith("DecompX")
        axes.plot(point.seconds, point.aopc, "o" if ours else "s", color="C0" if ours else "C7", markersize=5)
        axes.annotate(point.label, point[1:], xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.step([p.seconds for p in best], [p.aopc for p in best], where="post", color="C0", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("seconds a text, on one thread")
    axes.set_ylabel("AOPC")
    return figure


def table(found: list[Point], best: list[Point]) -> str:
    rows = ["| method | seconds a text | AOPC | on the frontier |", "| --- | ---: | ---: | --- |"]
    for point in found:
        rows.append(f"| {point.label} | {point.seconds:.2g} | {point.aopc:.3f} | {'yes' if point in best else ''} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    whole, paths, sets = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("summary", "paths", "sets"))
    found = points(whole, paths, sets["movies"])
    best = frontier(found)
    with rc_context({"svg.hashsalt": "decompx_fast"}):
        draw(found, best).savefig(RESULTS / "frontier.svg", metadata={"Date": None})
    (RESULTS / "frontier.md").write_text(table(found, best))


if __name__ == "__main__":
    main()
