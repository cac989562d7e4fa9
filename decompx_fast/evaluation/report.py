"""The report of an evaluation: estimates with intervals, a Markdown table, the results of every text, and curves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..optional import import_optional
from ..result.file import atomic_write
from .bootstrap import CONFIDENCE, RESAMPLES, Estimate, bootstrap_means, estimate
from .curves import draw_curves
from .data import Dataset
from .method import all_methods
from .metrics import SANITY, Metric
from .outcomes import Outcomes
from .store import Store

#: The method that the others are compared with, text by text, where no other is named.
REFERENCE = "decompx"

ARROWS = {True: "↑", False: "↓"}

#: Behind a method that fails a sanity check, and behind the check that it fails.
MARK = " ✗"

#: The file of the results of every text.
RESULTS = "results.parquet"


@dataclass(frozen=True)
class Setting:
    """What the report says about the run.

    Attributes:
        model: its name.
        data: the texts.
        seed: of everything that is drawn.
        groups: ``[n]``, for each text the place of the first one that the model cannot tell from it.
        reference: the name of the method that the others are compared with.
    """

    model: str
    data: Dataset
    seed: int
    groups: NDArray[np.int64]
    reference: str = REFERENCE

    @property
    def n_repeated(self) -> int:
        """How many texts repeat an earlier one."""
        return len(self.groups) - len(np.unique(self.groups))


@dataclass(frozen=True)
class MethodResult:
    """What was measured of one method.

    Attributes:
        label: how tables show it.
        estimates: by the name of a metric.
        differences: by the name of a metric: this method less the reference on the same texts; empty if that method
            is not there, or is this one.
        curves: by the name of a metric that has one: its mean over texts at each level.
        seconds: for one text, scores alone.
    """

    label: str
    estimates: Mapping[str, Estimate]
    differences: Mapping[str, Estimate]
    curves: Mapping[str, list[float]]
    seconds: float

    def fails(self, checks: Sequence[Metric]) -> bool:
        """Whether the whole interval of one of these sanity checks is on the wrong side of what passes."""
        for check in checks:
            _, low, high = self.estimates[check.name]
            if check.passes is not None and (high < check.passes if check.higher_is_better else low > check.passes):
                return True
        return False


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        folder: where it was written.
        n_texts: how many texts.
        accuracy: of the model on the full texts; ``None`` without labels.
        metrics: those measured, in the order of the columns.
        methods: the results by name, in the order of the rows: the best first, by the first metric.
        setting: model, data and seed.
    """

    folder: Path
    n_texts: int
    accuracy: float | None
    metrics: tuple[Metric, ...]
    methods: Mapping[str, MethodResult]
    setting: Setting = field(repr=False)

    def table(self) -> str:
        """The estimates as a Markdown table, with intervals."""
        shown = [metric for metric in self.metrics if metric.name not in SANITY]
        head = ["Method", *(f"{metric.label} {ARROWS[metric.higher_is_better]}" for metric in shown)]
        rows = [
            [result.label + MARK * result.fails(self.sanity), *(_cell(result.estimates[one.name]) for one in shown)]
            for result in self.methods.values()
        ]
        return _markdown(head, rows)

    @property
    def sanity(self) -> list[Metric]:
        """The sanity checks among the metrics."""
        return [metric for metric in self.metrics if metric.name in SANITY]

    def sanity_table(self) -> str:
        """The sanity checks as a Markdown table; empty if none was made."""
        head = ["Method", *(f"{metric.label} {ARROWS[metric.higher_is_better]}" for metric in self.sanity)]
        rows = [
            [result.label, *(_cell(result.estimates[one.name]) + MARK * result.fails([one]) for one in self.sanity)]
            for result in self.methods.values()
        ]
        return _markdown(head, rows) if self.sanity else ""

    def difference_table(self) -> str:
        """What each method has more than the reference, as a Markdown table; empty if that is not there."""
        shown = [metric for metric in self.metrics if metric.name not in SANITY]
        rows = [
            [result.label, *(_cell(result.differences[metric.name], "+") for metric in shown)]
            for result in self.methods.values()
            if result.differences
        ]
        return _markdown(["Method", *(metric.label for metric in shown)], rows) if rows else ""

    def seconds_table(self) -> str:
        """Seconds per text of each method, the fastest first, as a Markdown table."""
        results = sorted(self.methods.values(), key=lambda result: result.seconds)
        return _markdown(["Method", "Seconds per text"], [[one.label, f"{one.seconds:.2g}"] for one in results])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain lists, strings and numbers."""
        return {
            "model": self.setting.model,
            "data": self.setting.data.name,
            "n_texts": self.n_texts,
            "n_repeated": self.setting.n_repeated,
            "seed": self.setting.seed,
            "accuracy": self.accuracy,
            "reference": self.setting.reference,
            "methods": {
                name: {
                    "label": result.label,
                    "estimates": {key: value._asdict() for key, value in result.estimates.items()},
                    "differences": {key: value._asdict() for key, value in result.differences.items()},
                    "curves": dict(result.curves),
                }
                for name, result in self.methods.items()
            },
            "seconds_per_text": {name: result.seconds for name, result in self.methods.items()},
        }


def write_report(
    store: Store, setting: Setting, labels: Mapping[str, str], metrics: Sequence[Metric], chunks: int
) -> Evaluation:
    """Write ``report.md``, ``summary.json``, ``results.parquet`` and the curves into the folder of a finished run.

    Args:
        store: the results.
        setting: what to say about the run.
        labels: of each method, how tables show it.
        metrics: those to report.
        chunks: how many parts a method has.
    """
    evaluation = _summarise(store, setting, labels, metrics, chunks)
    summary = json.dumps(_without_nan(evaluation.to_dict()), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    _write(store.folder / "summary.json", summary)
    draw_curves(evaluation.folder, evaluation.methods, metrics, evaluation.accuracy)
    _write(store.folder / "report.md", _page(evaluation))
    return evaluation


def _summarise(
    store: Store, setting: Setting, labels: Mapping[str, str], metrics: Sequence[Metric], chunks: int
) -> Evaluation:
    """Estimate every metric of every method, and write the results of every text on the way."""
    values: dict[str, NDArray[np.float64]] = {}  # [n, metrics]
    curves: dict[str, dict[str, list[float]]] = {}
    seconds: dict[str, float] = {}
    accuracy: float | None = None
    arrow = import_optional("pyarrow", "the evaluation of faithfulness")
    parquet = import_optional("pyarrow.parquet", "the evaluation of faithfulness")

    def read_all(temporary: str) -> None:
        nonlocal accuracy
        writer = None
        for name in labels:
            table = store.read(name, chunks)
            outcomes = _outcomes(table, setting)
            levels = {metric.name: metric.levels(outcomes) for metric in metrics}
            values[name] = np.stack([levels[metric.name].mean(1) for metric in metrics], 1)
            curves[name] = {key: _means(found).tolist() for key, found in levels.items() if found.shape[1] > 1}
            seconds[name] = float(np.mean(table["seconds"].to_numpy()))
            if outcomes.labels is not None:
                accuracy = float((table["predicted"].to_numpy() == outcomes.labels).mean())
            kept = table.drop_columns([column for column in table.column_names if column.endswith("_state")])
            kept = kept.add_column(0, "method", arrow.array([name] * len(kept)))
            for place, metric in enumerate(metrics):
                kept = kept.append_column(metric.name, arrow.array(values[name][:, place]))
            writer = writer or parquet.ParquetWriter(temporary, kept.schema)
            writer.write_table(kept.cast(writer.schema))
        if writer is not None:
            writer.close()

    atomic_write(store.folder / RESULTS, read_all)
    # Each on its own, so that a method's numbers do not depend on which others there are, to the last bit. The texts
    # that are drawn are the same for all.
    means = {  # [resamples, metrics]
        name: bootstrap_means(own, seed=setting.seed, groups=setting.groups) for name, own in values.items()
    }
    results, reference = {}, setting.reference
    for name, own in values.items():
        estimates, differences = {}, {}
        for column, metric in enumerate(metrics):
            estimates[metric.name] = estimate(own[:, column], means[name][:, column])
            if reference in values and name != reference:
                differences[metric.name] = estimate(
                    (own - values[reference])[:, column], (means[name] - means[reference])[:, column]
                )
        results[name] = MethodResult(labels[name], estimates, differences, curves[name], seconds[name])
    first, sign = metrics[0].name, -1 if metrics[0].higher_is_better else 1
    order = sorted(results, key=lambda name: sign * results[name].estimates[first].mean)
    ordered = {name: results[name] for name in order}
    return Evaluation(store.folder, len(setting.data), accuracy, tuple(metrics), ordered, setting)


def _outcomes(table: Any, setting: Setting) -> Outcomes:
    """The numbers of one method."""

    def column(name: str) -> NDArray[Any]:
        return table[name].to_numpy()

    def matrices(ending: str) -> dict[str, NDArray[Any]]:
        names = [name for name in table.column_names if name.endswith(ending)]
        return {name.removesuffix(ending): np.array(table[name].to_pylist()) for name in names}

    marks = table["rationale"].to_pylist() if "rationale" in table.column_names else None
    return Outcomes(
        labels=None if table["label"].null_count else column("label"),
        predicted=column("predicted"),
        probability=column("probability"),
        perturbed_probability=matrices("_probability"),
        perturbed_predicted=matrices("_predicted"),
        orders=table["order"].to_pylist(),
        states={name: states.astype(np.float32) for name, states in matrices("_state").items()},
        infidelity=matrices("_infidelity"),
        checks={name.removesuffix("_check"): _filled(table[name]) for name in table.column_names if "_check" in name},
        rationales=None if marks is None else [None if one is None else np.array(one) for one in marks],
        seed=setting.seed,
        groups=setting.groups,
    )


def _means(found: NDArray[np.float64]) -> NDArray[np.float64]:
    """``[levels]``, the means over the texts ``[n, levels]`` that have a value; NaN where none has."""
    counts = (~np.isnan(found)).sum(0)
    return np.where(counts > 0, np.nansum(found, 0) / np.maximum(counts, 1), np.nan)


def _without_nan(value: Any) -> Any:
    """With ``None`` for NaN, which JSON has not."""
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _filled(column: Any) -> NDArray[np.float64]:
    """Rows of equal length, NaN where there is none: ``[n, levels]``."""
    rows = column.to_pylist()
    width = max((len(row) for row in rows if row is not None), default=1)
    return np.array([[np.nan] * width if row is None else row for row in rows], dtype=np.float64)


def _page(evaluation: Evaluation) -> str:
    """The report as Markdown."""
    setting, parts = evaluation.setting, []
    right = "" if evaluation.accuracy is None else f" It is right about {evaluation.accuracy:.1%} of them."
    repeated = ""
    if setting.n_repeated:
        repeated = (
            f"{setting.n_repeated} of them repeat an earlier one, as the model reads them: equal texts are in one fold "
            "and are resampled together. "
        )
    parts.append("# Faithfulness of attribution methods\n")
    parts.append(
        f"Model: {setting.model}. Data: {setting.data.name}, {evaluation.n_texts} "
        f"{'pairs of texts' if setting.data.is_pairs else 'texts'}.{right} "
        f"Seed (of ties between equal scores, of random scores, folds and bootstrap): {setting.seed}. {repeated}"
        f"In brackets: {CONFIDENCE:.0%} intervals, by {RESAMPLES} bootstrap resamples of the texts. An arrow says "
        f"which way is more faithful. The best by {evaluation.metrics[0].label} first.\n"
    )
    parts.append(evaluation.table())
    differences = evaluation.difference_table()
    if differences:
        label = evaluation.methods[setting.reference].label
        parts.append(f"## Difference to {label}\n\nOn the same texts; an interval without 0 is a difference.\n")
        parts.append(differences)
    if evaluation.sanity:
        parts.append(f"## Sanity\n\n{MARK.strip()}: fails the check, with the whole interval.\n")
        parts.append(evaluation.sanity_table())
    parts.append("## Time\n\nOf the scores alone, on one thread of this machine.\n")
    parts.append(evaluation.seconds_table())
    parts.append("## Metrics\n")
    parts.append("\n".join(f"- {metric.label}: {metric.about}" for metric in evaluation.metrics) + "\n")
    parts.append("## Methods\n\nThe scores of a text are those of the class that the model predicts.\n")
    parts.append("".join(_definition(name, result.label) for name, result in evaluation.methods.items()))
    return "\n".join(parts)


def _definition(name: str, label: str) -> str:
    """What a method computes, as a line of a list."""
    known = all_methods().get(name)
    if known is None:
        return f"- {label} (`{name}`): a method of the user's own.\n"
    sign = "signed" if known.signed else "magnitudes"
    about = known.about[0].upper() + known.about[1:].removesuffix(".")
    return f"- {label} (`{name}`, {sign}): {about}.\n"


def _cell(value: Estimate, sign: str = "") -> str:
    if math.isnan(value.mean):
        return "–"
    return f"{value.mean:{sign}.3f} [{value.low:{sign}.3f}, {value.high:{sign}.3f}]"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _write(path: Path, text: str) -> None:
    atomic_write(path, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))
