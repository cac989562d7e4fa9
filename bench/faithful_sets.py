"""Faithfulness on several sets of rated sentences and on models of several shapes: the demo, three layers, pairs.

    python bench/faithful_sets.py --work FOLDER [--texts 50] [--only NAMES] [--page FILE]

The small models are trained here (``bench/small_models.py``). No text was there when a method or its settings were
chosen: movie snippets are those of the held-out part behind the 528 of ``report.md``, of the other sets the first of a
shuffled order. A run that ended early goes on where it was; the page is of all that is finished, in the order of
``RUNS``. ``--only`` without a name makes the page alone.
"""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import small_models

from decompx_fast.evaluation import METRICS, all_methods, evaluate
from decompx_fast.evaluation.bootstrap import Estimate, bootstrap_means, estimate
from decompx_fast.evaluation.snippets import heldout_snippets
from decompx_fast.result.file import atomic_write

METHODS = (
    "decompx-search,decompx-paths,decompx-paths-3,decompx,attn-lrp,integrated-gradients,lime,kernel-shap,occlusion,"
    "gradient-x-input"
)
SHOWN = "aopc,comprehensiveness,sufficiency,accuracy,log-odds"

#: In the movie snippets' held-out part, those before have been seen: methods were chosen by some of them.
UNSEEN = 528
SHORT = 10  # words of a text whose sanity is checked, which takes long
SEED = 0


@dataclass(frozen=True)
class Run:
    """A model and data: names, or of files in the folder of the work; and of how many texts the sanity checks are
    made, which are then all that is measured."""

    name: str
    model: str
    data: str
    about: str
    sanity: int = 0


HEAD = """# Faithfulness on several sets and models

{finished}. No text was there when a method or its settings were
chosen (`tried.md`): the movie snippets are those behind the 528 of `report.md`, of the other sets
they are the first of a shuffled order. Made by

```sh
python bench/faithful_sets.py --work FOLDER --page FILE
```

with the numbers of texts and methods of each table (`--texts`, `--only`, `--methods`), with seed {seed}, on one thread
beside other jobs, stopped now and then, by the wall, so that seconds compare within a table at best. In brackets: 95 %
intervals, by a bootstrap over texts. The best AOPC
first. Bold: ahead of every method of the other kind, DecompX or not, with the whole interval of the difference on the
same texts. `sets.json` has the numbers.
"""

AHEAD = """## What ours has more than the best of the others

The difference to the best method in that column that is not DecompX, named; bold where its whole interval is on the
side of ours. Sufficiency and accuracy are better when they are lower.
"""

RUNS = (
    Run("movies", "demo", "movies.csv", "movie snippets, the demo model"),
    Run("tweets", "demo", "tweet-snippets", "tweets, the demo model"),
    Run("products", "demo", "product-snippets", "product reviews, the demo model"),
    Run("editorials", "demo", "editorial-snippets", "sentences of editorials, the demo model"),
    Run("three-layers", "three-layers", "movies.csv", "movie snippets, three layers"),
    Run("two-reviews", "two-reviews", "two-reviews.csv", "pairs of movie snippets, three layers"),
    Run("sanity", "three-layers", "short.csv", "movie snippets of up to ten words, three layers", sanity=12),
)


def prepare(work: Path, run: Run) -> dict[str, Any]:
    """What :func:`evaluate` is asked; trains the models and writes the data of a run where they are not there."""
    asked: dict[str, Any] = {"data": run.data, "model": run.model, "sanity": run.sanity}
    if run.model in small_models.MODELS:
        asked["model"] = small_models.ready(run.model, work)
    if run.sanity:
        asked["random_label_model"] = small_models.ready("shuffled-labels", work)
    if run.data.endswith(".csv"):
        name = Path(run.data).stem
        task = small_models.MODELS[name].task if name in small_models.MODELS else small_models.sentiment
        unseen = heldout_snippets()[UNSEEN:]
        texts, labels = task([one for one in unseen if name != "short" or len(one.text.split()) <= SHORT])
        asked["data"] = work / run.data
        with open(asked["data"], "w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow([*("text", "second")[: len(texts[0])], "label"])
            rows.writerows((*parts, label) for parts, label in zip(texts, labels, strict=True))
        asked["pair_column"] = "second" if len(texts[0]) == 2 else None
    return asked


def measure(work: Path, run: Run, texts: int, methods: str, metrics: str) -> None:
    """Go on with a run."""
    options = {"methods": methods, "metrics": metrics, "limit": run.sanity or texts, "seed": SEED, "truncate": True}
    found = evaluate(out=work / run.name, progress=False, **options, **prepare(work, run))
    about = {"accuracy": found.accuracy, "texts": found.n_texts, "sanity": found.sanity_table()}
    text = json.dumps(about, indent=1) + "\n"
    atomic_write(work / run.name / "finished.json", lambda temporary: Path(temporary).write_text(text, "utf-8"))


# --- the page ------------------------------------------------------------------------------------------


class Table:
    """What a run has measured of each text: ``values[method][metric]`` ``[n]``, and seconds a text."""

    def __init__(self, folder: Path, metrics: list[str]) -> None:
        rows = pyarrow.parquet.read_table(folder / "results.parquet").to_pydict()
        methods, self.metrics = np.array(rows["method"]), metrics
        of_method = {name: methods == name for name in dict.fromkeys(rows["method"])}
        self.values = {
            name: {metric: np.array(rows[metric], dtype=float)[own] for metric in metrics}
            for name, own in of_method.items()
        }
        self.seconds = {name: float(np.array(rows["seconds"])[own].mean()) for name, own in of_method.items()}
        first = metrics[0]
        self.order = sorted(
            self.values, key=lambda name: self.mean(name, first), reverse=METRICS[first].higher_is_better
        )

    def mean(self, name: str, metric: str) -> float:
        return float(self.values[name][metric].mean())

    def estimate(self, metric: str, name: str, other: str | None = None) -> Estimate:
        """Of a method, or of what it has more than another on the same texts."""
        found = self.values[name][metric] - (0 if other is None else self.values[other][metric])
        return estimate(found, bootstrap_means(found[:, None], seed=SEED)[:, 0])

    def best(self, metric: str, ours: bool) -> str:
        """The method with the best mean, of ours or of the others."""
        kind = [name for name in self.values if is_ours(name) == ours]
        sign = 1 if METRICS[metric].higher_is_better else -1
        return max(kind, key=lambda name: sign * self.mean(name, metric))

    def is_ahead(self, metric: str, name: str) -> bool:
        """Whether a method is better than every one of the other kind, ours or not, with the whole interval."""
        others = [other for other in self.values if is_ours(other) != is_ours(name)]
        return all(is_better(metric, self.estimate(metric, name, other)) for other in others)

    def text(self) -> str:
        """As Markdown, the best by the first metric first."""
        arrows = {True: "↑", False: "↓"}
        heads = [f"{METRICS[one].label} {arrows[METRICS[one].higher_is_better]}" for one in self.metrics]
        lines = [f"| Method | {' | '.join(heads)} | Seconds a text |", "| --- |" + " ---: |" * (len(heads) + 1)]
        for name in self.order:
            cells = []
            for metric in self.metrics:
                mean, low, high = self.estimate(metric, name)
                shown = f"{mean:.3f} [{low:.3f}, {high:.3f}]"
                cells.append(f"**{shown}**" if self.is_ahead(metric, name) else shown)
            lines.append(f"| {all_methods()[name].label} | {' | '.join(cells)} | {self.seconds[name]:.2g} |")
        return "\n".join(lines) + "\n"


def is_ours(name: str) -> bool:
    return name.startswith("decompx")


def is_better(metric: str, difference: Estimate) -> bool:
    return difference.low > 0 if METRICS[metric].higher_is_better else difference.high < 0


def summary(tables: dict[str, Table], metrics: list[str], name: str) -> str:
    """What a method of ours has more than the best of the others, in each set."""
    lines = [
        f"| {all_methods()[name].label} | " + " | ".join(METRICS[one].label for one in metrics) + " |",
        "| --- |" + " --- |" * len(metrics),
    ]
    for run, table in tables.items():
        cells = []
        for metric in metrics:
            other = table.best(metric, ours=False)
            mean, low, high = found = table.estimate(metric, name, other)
            shown = f"{mean:+.3f} [{low:+.3f}, {high:+.3f}] to {all_methods()[other].label}"
            cells.append(f"**{shown}**" if is_better(metric, found) else shown)
        lines.append(f"| {run} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page(work: Path, metrics: list[str]) -> str:
    """All that is finished."""
    finished = [run for run in RUNS if (work / run.name / "finished.json").exists()]
    tables = {run.name: Table(work / run.name, metrics) for run in finished}
    ours = [name for name in METHODS.split(",") if is_ours(name) and all(name in one.values for one in tables.values())]
    sets = {name: table for name, table in tables.items() if name != "sanity"}
    about = "; ".join(run.about for run in finished) or "Nothing is finished"
    missing = "; ".join(run.about for run in RUNS if run not in finished)
    head = HEAD.format(seed=SEED, finished=about[0].upper() + about[1:])
    parts = [
        head,
        *([f"Not measured yet: {missing}.\n"] if missing else []),
        AHEAD,
        *(summary(sets, metrics[:3], name) for name in ours),
    ]
    for run in finished:
        about = json.loads((work / run.name / "finished.json").read_text("utf-8"))
        head = f"## {run.name}\n\n{run.about[0].upper()}{run.about[1:]}: {about['texts']} texts, "
        head += f"the model is right about {about['accuracy']:.0%}."
        trained = work / run.model / "accuracy.json"
        if trained.exists():
            said = json.loads(trained.read_text("utf-8"))
            head += (
                f" It was trained in {said['seconds']} s ({said['steps']} steps, {said['texts']} texts), and is right "
                f"about {said['development']:.1%} of {small_models.DEVELOPMENT} texts that it has not seen."
            )
        checked = "✗: fails the check, with the whole interval.\n"
        parts += [head + "\n", *([checked, about["sanity"]] if run.sanity else [tables[run.name].text()])]
    return "\n".join(parts)


def numbers(work: Path) -> dict[str, Any]:
    """What :func:`evaluate` summed up of all that is finished, curves aside."""
    found = {}
    for run in RUNS:
        if (work / run.name / "finished.json").exists():
            found[run.name] = json.loads((work / run.name / "summary.json").read_text("utf-8"))
            found[run.name]["model"] = run.model  # not where it was
            for method in found[run.name]["methods"].values():
                del method["curves"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder")
    parser.add_argument("--texts", type=int, default=50, help="of each set")
    parser.add_argument("--methods", default=METHODS, help="with commas between")
    parser.add_argument("--metrics", default=SHOWN, help="with commas between")
    parser.add_argument("--only", help="names of runs, with commas between; none: the page alone")
    parser.add_argument("--page", type=Path, help="where the tables are put together")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        if arguments.only is None or run.name in arguments.only.split(","):
            measure(arguments.work, run, arguments.texts, arguments.methods, arguments.metrics)
            print(f"{run.name} is finished", flush=True)
    if arguments.page:
        path = arguments.page.with_suffix(".json")
        path.write_text(json.dumps(numbers(arguments.work), indent=1) + "\n", encoding="utf-8")
        arguments.page.write_text(page(arguments.work, arguments.metrics.split(",")), encoding="utf-8")


if __name__ == "__main__":
    main()
