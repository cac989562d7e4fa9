"""The run of an evaluation: what is asked is checked, what is missing is computed, and the report is written."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import pickle
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from ..errors import InputError, OptionError, warn_user
from ..explainer import DecompX
from ..linearize.architectures import unwrap
from ..models.digest import model_sha256
from ..optional import import_optional
from ..request.encoded import Encoded
from ..request.versions import BASELINES, Baseline
from .classifier import Classifier
from .data import Dataset, read_dataset
from .masking import input_key
from .method import Method, all_methods, get_method
from .metrics import METRICS, SANITY, Metric, by_deletion, get_metric, perturbations
from .pool import compute_all, one_thread
from .report import REFERENCE, RESULTS, Evaluation, Setting, write_report
from .store import Store
from .work import CHUNK, Task, Worker

ALL = "all"
DEMO = "demo"

#: Packages whose version may change a number.
_VERSIONED = ("torch", "transformers", "numpy")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # of a method: its results are in a folder of that name

_PACKAGE = Path(__file__).resolve().parent.parent


def evaluate(
    data: str | os.PathLike[str],
    model: str | os.PathLike[str] | DecompX = DEMO,
    *,
    out: str | os.PathLike[str],
    methods: str | Sequence[str | Method] = ALL,
    metrics: str | Sequence[str] = ALL,
    deletion: str | Sequence[str] | None = None,
    sanity: int = 0,
    random_label_model: str | os.PathLike[str] | None = None,
    reference: str = REFERENCE,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    label_map: Mapping[Any, str | int] | None = None,
    limit: int | None = None,
    truncate: bool = False,
    seed: int = 0,
    device: str | None = None,
    workers: int = 1,
    progress: bool | None = None,
) -> Evaluation:
    """Measure how faithful attribution methods are to a model, and write tables and curves.

    A run that was ended in any way goes on where it was when it is started again with the same ``out``. It is refused
    if the data, the model, the seed or another setting that the numbers depend on has changed; other methods may be
    asked for, and the report then has both those and the ones that were finished before.

    Args:
        data: texts and labels, as :func:`decompx_fast.evaluation.data.read_dataset` reads them; ``"snippets"``: the
            held-out movie snippets.
        model: a folder, the id of a hub, ``"demo"``, or a loaded explainer.
        out: the folder of the results.
        methods: names, :class:`Method` objects of your own, or ``"all"``. Take another ``out`` when you have changed a
            method of your own: its code is not among the settings that are compared. With several workers they must
            be importable.
        metrics: names, or ``"all"``: all that the data allow (some need labels, some rationales, one 10 texts).
        deletion: ``"mask"``, ``"pad"``, ``"remove"``, or several of them: how all metrics delete tokens, side by side;
            ``None``: each as in its paper.
        sanity: make the sanity checks (shuffled weights, shifted embeddings, typing errors, noise) on so many texts,
            the first ones; they take some thirty times the time of the scores. A method that fails one is marked.
        random_label_model: the folder of a model of the same shape that learnt shuffled labels, for the sanity checks:
            whose scores are like its scores does not explain what was learnt.
        reference: the name of the method that the others are compared with, text by text; the report has no
            differences where it is not among the methods that are finished.
        text_column, pair_column, label_column, label_map, limit: as for ``read_dataset``.
        truncate: cut texts that are too long for the model, with a warning, instead of refusing them.
        seed: of ties, of random scores, of methods that draw, of folds and of the bootstrap.
        device: where to compute; ``None`` for the CPU.
        workers: how many processes compute side by side, on a thread and a copy of the model each. The numbers do not
            depend on it.
        progress: show a bar on standard error; ``None``: where that is a terminal.

    Returns:
        The estimates, as they were written.

    Raises:
        OptionError: for an unknown method or metric, or another wrong option.
        InputError: for data that cannot be read, a model that chooses no single class, or results of other settings
            in ``out``.
        MissingPackageError: if a package that a method or the report needs is not installed.
        EvaluationError: if a method fails; it names the texts.
    """
    chosen = _choose_methods(methods, workers)
    wanted = None if metrics == ALL else [get_metric(name) for name in _names(metrics, "metric")]
    ways = None if deletion is None else _check_deletions(deletion)
    if reference not in chosen and reference != REFERENCE:
        raise OptionError(f"reference={reference!r}: name one of the methods, {', '.join(chosen)}")
    _check_apart(data, Path(out))
    _check_numbers(workers=workers, seed=seed, sanity=sanity)
    if random_label_model is not None and not sanity:
        raise OptionError("random_label_model is for the sanity checks: say by sanity of how many texts")
    _check_packages()
    explainer = _load(model, device, workers)
    classifier = Classifier(explainer)
    dataset = read_dataset(
        data,
        explainer.labels,
        text_column=text_column,
        pair_column=pair_column,
        label_column=label_column,
        label_map=label_map,
        limit=limit,
    )
    name = None if model == DEMO else explainer.name
    task = Task(
        name,
        device,
        dataset.texts,
        dataset.labels,
        dataset.rationales,
        chosen,
        (),
        seed,
        truncate,
        sanity,
        None if random_label_model is None else os.fspath(random_label_model),
    )
    return _evaluate(classifier, dataset, task, wanted, ways, reference, out=out, workers=workers, progress=progress)


def _evaluate(
    classifier: Classifier,
    dataset: Dataset,
    task: Task,
    wanted: Sequence[Metric] | None,
    ways: Sequence[Baseline] | None,
    reference: str,
    *,
    out: str | os.PathLike[str],
    workers: int,
    progress: bool | None,
) -> Evaluation:
    """Compute what is missing of a task whose perturbations the metrics say, and write the report."""
    explainer = classifier.explainer
    encoded = classifier.encode(dataset.texts, truncate=task.truncate, places=dataset.places)
    groups = _equal_inputs(encoded, dataset)
    metrics = _check_metrics(wanted, dataset, len(np.unique(groups)))
    metrics = list(metrics if ways is None else by_deletion(metrics, ways))
    metrics += [
        check
        for name, check in SANITY.items()
        if task.sanity and (task.random_label_model or name != "label-randomization")
    ]
    task = replace(task, perturbations=tuple(perturbations(metrics, pairs=dataset.is_pairs)))
    worker = Worker(task, explainer, encoded)
    with Store(out, _settings(worker, dataset)).opened() as store, one_thread():
        _compute_missing(store, worker, workers, progress)
        setting = Setting(explainer.name or type(explainer.model).__name__, dataset, task.seed, groups, reference)
        labels = _labels(store, task.methods, len(worker.chunks))
        return write_report(store, setting, labels, metrics, len(worker.chunks))


def _compute_missing(store: Store, worker: Worker, workers: int, progress: bool | None) -> None:
    """Every part of every method that is not in the store yet."""
    items = [(name, chunk) for name in worker.task.methods for chunk in range(len(worker.chunks))]
    missing = [item for item in items if not store.has(*item)]
    bar = _progress_bar(progress, len(items) - len(missing), len(items))
    # Closed, so that its processes end also where it is the writing of a part that is interrupted.
    with bar as advance, contextlib.closing(compute_all(worker, missing, workers)) as parts:
        for (name, chunk), records in parts:
            store.write(name, chunk, records)
            advance(name)


def _labels(store: Store, chosen: Mapping[str, Method | None], n_chunks: int) -> dict[str, str]:
    """What the report calls the methods: those that were asked for, then others that were finished before."""
    known = store.remember_labels({name: (own or get_method(name)).label for name, own in chosen.items()})
    others = [name for name in store.finished(n_chunks) if name not in chosen]
    return {name: known.get(name, name) for name in (*chosen, *others)}


def _choose_methods(methods: str | Sequence[str | Method], workers: int) -> dict[str, Method | None]:
    """By name; a method of the user's own, or ``None`` for a built-in one."""
    known = all_methods()
    if methods == ALL:
        chosen: dict[str, Method | None] = dict.fromkeys(known)
    else:
        chosen = {}
        for entry in [methods] if isinstance(methods, Method) else _names(methods, "method"):
            name = entry.name if isinstance(entry, Method) else get_method(entry).name
            if name in chosen or (isinstance(entry, Method) and name in known and entry is not known[name]):
                raise OptionError(f"methods: {name!r} is there twice: give each method once, by a name of its own")
            if not _NAME.fullmatch(name):
                raise OptionError(f"methods: {name!r} cannot be that of a folder: use letters, digits and hyphens")
            chosen[name] = entry if isinstance(entry, Method) and name not in known else None
    if workers > 1:
        for name, own in chosen.items():
            _check_importable(name, own)
    for name, own in chosen.items():
        for package in (own or known[name]).needs:
            import_optional(package, f"the method {name!r}")
    return chosen


def _check_importable(name: str, own: Method | None) -> None:
    """Workers are new processes, which must find a method of the user's own by importing it."""
    if own is None:
        return
    main = sys.modules["__main__"]
    here = getattr(own.score, "__module__", None) == "__main__" and not hasattr(main, "__file__")
    try:
        pickle.dumps(own)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        reason: object = error
    else:
        reason = "it was defined in an interactive session" if here else None
    if reason is not None:
        raise OptionError(
            f"methods: {name!r} cannot be sent to worker processes ({reason}): define its function at the top of a "
            "module that they can import, or use workers=1"
        )


def _check_apart(data: object, out: Path) -> None:
    """The data must not be a file that the report replaces."""
    if isinstance(data, (str, os.PathLike)) and Path(data).resolve() == (out / RESULTS).resolve():
        raise OptionError(f"data={os.fspath(data)!r} would be replaced by the results: choose another folder for out")


def _names(names: Any, kind: str) -> list[Any]:
    found = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    if not found or "" in found:
        raise OptionError(f"{kind}s={names!r}: name one {kind} at least, or use {ALL!r}")
    if len(set(found)) < len(found):
        raise OptionError(f"{kind}s={names!r}: give each {kind} once")
    return found


def _check_deletions(deletion: str | Sequence[str]) -> list[Baseline]:
    """The ways to delete tokens that were asked for."""
    named = deletion.split(",") if isinstance(deletion, str) else deletion
    ways = [way for name in named for way in BASELINES if way == name.strip()]
    if not ways or len(set(ways)) < len(named):
        raise OptionError(f"deletion={deletion!r}: use one or more of {', '.join(BASELINES)}, each once")
    return ways


def _check_numbers(*, workers: int, seed: int, sanity: int) -> None:
    for name, value, least in (("workers", workers, 1), ("seed", seed, 0), ("sanity", sanity, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise OptionError(f"{name}={value!r}: use a whole number from {least}")


def _check_packages() -> None:
    for name in ("pyarrow", "pyarrow.parquet", "matplotlib"):
        import_optional(name, "the evaluation of faithfulness")


def _equal_inputs(encoded: Sequence[Encoded], dataset: Dataset) -> NDArray[np.int64]:
    """For each text the place of the first one that the model cannot tell from it, with a warning if there are such."""
    first: dict[object, int] = {}
    groups = [first.setdefault(input_key(one.inputs), place) for place, one in enumerate(encoded)]
    repeated = [place for place, group in enumerate(groups) if place != group]
    if repeated:
        place = repeated[0]
        warn_user(
            f"{len(repeated)} of {len(groups)} texts repeat an earlier one as the model reads them ("
            f"{dataset.places[place]} is equal to {dataset.places[groups[place]]}): equal texts are put in one fold "
            "and resampled together"
        )
    return np.array(groups, dtype=np.int64)


def _check_metrics(wanted: Sequence[Metric] | None, dataset: Dataset, n_different: int) -> Sequence[Metric]:
    """Those that the data allow, or that were named, which the data must allow."""
    if wanted is None:
        labelled = dataset.labels is not None
        wanted = [
            metric
            for metric in METRICS.values()
            if (labelled or not metric.needs_labels)
            and (dataset.rationales is not None or not metric.needs_rationales)
            and n_different >= metric.least_texts
        ]
    for metric in wanted:
        if metric.needs_labels and dataset.labels is None:
            raise InputError(
                f"the metric {metric.name!r} needs labels, and {dataset.name} has no column 'label': say by "
                "label_column where they are, or leave the metric out"
            )
        if metric.needs_rationales and dataset.rationales is None:
            raise InputError(
                f"the metric {metric.name!r} needs rationales, and {dataset.name} has no column 'rationale' in which "
                "one is marked: add it, or leave the metric out"
            )
        if n_different < metric.least_texts:
            raise InputError(
                f"the metric {metric.name!r} needs at least {metric.least_texts} texts, and {dataset.name} gives "
                f"{n_different}{'' if n_different == len(dataset) else ' that differ'}: give more, or leave the "
                "metric out"
            )
    return wanted


def _load(model: str | os.PathLike[str] | DecompX, device: str | None, workers: int) -> DecompX:
    if isinstance(model, DecompX):
        if workers > 1:
            raise OptionError("workers load the model themselves: give its folder, not a loaded one, or workers=1")
        if device is not None:
            raise OptionError("device is for a model that is loaded here: move the loaded one yourself")
        return model
    if model == DEMO:
        return DecompX.demo(device=device)
    return DecompX.from_pretrained(model, device=device)


def _settings(worker: Worker, dataset: Dataset) -> dict[str, Any]:
    """All that a part's numbers depend on."""
    task, classifier = worker.task, worker.classifier
    return {
        "data": dataset.name,
        "data_sha256": dataset.sha256,
        "n_texts": len(dataset),
        "model_sha256": classifier.sha256(),
        "mask_token_id": classifier.mask_token_id,
        "device": classifier.device.type,
        "seed": task.seed,
        "truncate": task.truncate,
        "sanity": task.sanity,
        "random_label_sha256": None if worker.other is None else model_sha256(unwrap(worker.other)),
        "texts_in_a_part": CHUNK,
        "perturbations": {
            one.name: [one.deletion, one.design.action, one.design.of, list(one.design.percents)]
            for one in task.perturbations
        },
        "decompx_fast": __version__,
        "source_sha256": _source_sha256(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _VERSIONED},
    }


def _source_sha256() -> str:
    """A digest of this package's own code: results of a changed method are not mixed with older ones."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _progress_bar(progress: bool | None, done: int, total: int) -> Iterator[Callable[[str], object]]:
    """A bar on standard error that counts parts and names the method; it goes away at the end."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda name: None
        return
    from rich import progress as parts
    from rich.console import Console

    columns = (
        parts.TextColumn("{task.description}"),
        parts.BarColumn(),
        parts.MofNCompleteColumn(),
        parts.TimeElapsedColumn(),
        parts.TimeRemainingColumn(),
    )
    with parts.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task("Evaluating", total=total, completed=done)
        yield lambda name: bar.update(row, advance=1, description=name)
