"""A run: rows in, parts out, from where an earlier one was ended."""

from __future__ import annotations

import os
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from ..errors import OptionError, warn_user
from ..explainer import DecompX
from ..folder import RunFolder
from .inputs import Inputs
from .parts import Parts
from .pool import InThisProcess, Pool
from .progress import Progress
from .ray_pool import RayPool
from .units import UNIT_ROWS, Item, Unit, cut, number_rows
from .worker import Task

FORMAT = "decompx_fast.bulk, version 1"

OnError = Literal["skip", "stop"]
Output = Literal["parquet", "jsonl"]

#: Workers on the CPU where none are asked for: each holds the model.
_MOST_WORKERS = 4


@dataclass(frozen=True)
class Summary:
    """What a run has done.

    Attributes:
        folder: where the results are.
        rows: how many have a result now.
        explained: how many of them this run has computed.
        errors: how many of all have an error.
        workers_replaced: how many processes ended and had others take their places.
    """

    folder: Path
    rows: int
    explained: int
    errors: int
    workers_replaced: int


def explain_dataset(
    data: Any,
    model: str | os.PathLike[str] | DecompX | None = None,
    *,
    out: str | os.PathLike[str],
    format: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    id_column: str | None = None,
    output: Output = "parquet",
    on_error: OnError = "skip",
    retry_errors: bool = False,
    workers: int | None = None,
    rows_of_a_part: int = UNIT_ROWS,
    words: bool = False,
    device: str | None = None,
    task: str | None = None,
    progress: bool | None = None,
    ray: str | bool | None = None,
    **arguments: Any,
) -> Summary:
    """Explain all rows of files, into a folder of parts; what an earlier run has done is not done again.

    Processes load the model and explain, so a script has to start this below ``if __name__ == "__main__":``, or to ask
    for ``workers=0``.

    Args:
        data: a path or several: CSV, TSV, JSONL, Parquet or text files, folders and patterns of them, ``"-"`` for
            standard input; or rows, as mappings of columns. It may have grown since an earlier run.
        model: a folder, the id of a hub, or an explainer; ``None`` for the demo model.
        out: the folder of the results; one of another job is refused.
        format: of the files, where their names do not say it.
        text_column, pair_column, id_column: as for the command; all other columns are kept.
        output: ``"parquet"`` (zstd) or ``"jsonl"``, with the columns of :data:`decompx_fast.bulk.parts.COLUMNS`.
        on_error: what becomes of a row that cannot be explained: ``"skip"`` writes it with its error, ``"stop"`` ends
            the run; what is done is kept.
        retry_errors: also explain rows again for which an earlier run wrote an error.
        workers: processes; ``None``: one for each GPU, or each core but 4 at most, of one thread, so that numbers do
            not depend on how many there are. 0: none; a row that ends this process then ends the run.
        rows_of_a_part: at most; equally long ones among them are computed together.
        words: merge the tokens of each word.
        device: where to compute; ``None``: the GPUs, or else the CPU.
        task: which head to load, as for :meth:`DecompX.from_pretrained`.
        progress: whether to say how far it is on standard error; ``None``: yes.
        ray: let the workers of a cluster of Ray explain: its address; or ``True`` for the one that runs here or that
            ``RAY_ADDRESS`` names, or a new one on this machine. ``workers`` is then one for each of its GPUs, or CPUs,
            at most. The folder is the same, and written from here, so that a run may go on with or without.
        **arguments: of :meth:`DecompX.explain_iter`.

    Returns:
        What was done.

    Raises:
        OptionError: for an argument that cannot be used.
        InputError: for input that cannot be read or has changed, or a folder of another job.
        OutputError: if the results cannot be written, or another run is at work there.
        KeyboardInterrupt: after Ctrl-C, when what was begun is done; a second one does not wait for that.
    """
    _check(out, on_error, output)
    devices, count = _workers(model, device, workers, ray)
    size = _count("rows_of_a_part", rows_of_a_part, UNIT_ROWS)
    inputs = Inputs.find(data, format, without=out)
    asked = _task(model, out, output, arguments, devices, load=task, words=words, stop=on_error == "stop")
    columns = {"text": text_column, "pair": pair_column, "id": id_column}
    pool = _pool(asked, workers, count, ray)
    return _run(pool, output, inputs, Path(out), columns, size, progress, retry_errors)


def _check(out: str | os.PathLike[str], on_error: str, output: str) -> None:
    if on_error not in get_args(OnError) or output not in get_args(Output):
        raise OptionError(f"on_error={on_error!r}, output={output!r}: use 'skip' or 'stop', and 'parquet' or 'jsonl'")
    if not os.fspath(out):
        raise OptionError("out='' is no folder: name one for the results")


def _task(
    model: Any,
    out: str | os.PathLike[str],
    output: str,
    arguments: dict[str, Any],
    devices: tuple[str, ...],
    *,
    load: str | None,
    words: bool,
    stop: bool,
) -> Task:
    """What the workers are told."""
    return Task(
        model=model if model is None or isinstance(model, DecompX) else os.fspath(model),
        load={} if load is None else {"task": load},
        arguments={name: value for name, value in arguments.items() if value is not None},
        words=words,
        stop=stop,
        folder=str(Path(out) / "parts"),
        format=output,
        devices=devices,
    )


def _pool(asked: Task, workers: int | None, count: int, ray: str | bool | None) -> Pool | InThisProcess | RayPool:
    """What computes: workers of a cluster, processes, or this one; ``count`` where ``workers`` says nothing."""
    if ray:
        return RayPool(asked, None if workers is None else count, ray if isinstance(ray, str) else None)
    return Pool(asked, count, _Notices()) if count else InThisProcess(asked, _Notices())


def _run(
    pool: Pool | InThisProcess | RayPool,
    output: str,
    inputs: Inputs,
    out: Path,
    columns: dict[str, str | None],
    size: int,
    progress: bool | None,
    retry: bool,
) -> Summary:
    """Open the folder of the results and do what is missing there."""
    try:
        settings = {"format": FORMAT, **pool.start(), "columns": columns, "rows_of_a_part": size, "output": output}
        folder = RunFolder(out, settings, results=f"parts/*.{output}")
        with folder.opened():
            parts = Parts(folder.folder / "parts", output, {})
            inputs = inputs.in_order_of(folder.folder)
            shown = Progress(progress, inputs.about() if progress is not False else None)
            return _work(pool, parts, number_rows(inputs.read(), columns), size, shown, retry)
    finally:
        pool.close()


def _work(
    pool: Pool | InThisProcess | RayPool, parts: Parts, items: Iterator[Item], size: int, shown: Progress, retry: bool
) -> Summary:
    """Do what is missing."""
    done = parts.spans()

    def units() -> Iterator[Unit]:
        for span, rows in cut(items, done, size):
            wrong = set(parts.errors(span)) if span.first in done else set()
            again = tuple(item for item in rows if item.number in wrong) if retry else ()
            if span.first not in done:
                yield Unit(span, rows)
            elif again:
                shown.add(span.count - len(again), errors=0, before=True)
                yield Unit(span, again)
            else:
                shown.add(span.count, errors=len(wrong), before=True)

    with _interrupts(pool, shown) as interrupted:
        try:
            for one in pool.run(units()):
                shown.add(len(one.unit.items), errors=one.errors)
        finally:
            shown.end()
        if interrupted():
            raise KeyboardInterrupt
    rows = shown.before + shown.now
    return Summary(parts.folder.parent, rows, shown.now, shown.errors, pool.replaced)


@contextmanager
def _interrupts(pool: Pool | InThisProcess | RayPool, shown: Progress) -> Iterator[Any]:
    """The first Ctrl-C lets the pool finish what it has begun; the next one is raised at once."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        pool.stopping = True
        shown.say("finishing the rows that were begun; Ctrl-C again does not wait for them")

    signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


class _Notices:
    """Warns of each kind of thing once: a million rows may each have the same to say."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, text: str) -> None:
        kind = re.sub(r"(line|row) \d+ of .*?(?=[:,;]| has | is |$)|[\d.]+(e[-+]?\d+)?%?", "#", text)
        if kind not in self._seen:
            self._seen.add(kind)
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warn_user(f"{text} (said once, whatever the number of rows)")


def _workers(
    model: Any, device: str | None, workers: int | None, ray: str | bool | None
) -> tuple[tuple[str, ...], int]:
    """Where the workers compute, in turn, and how many there are."""
    if not isinstance(ray, (str, bool, type(None))) or ray == "":
        raise OptionError(f"ray={ray!r}: give the address of a cluster, or True")
    if ray and workers == 0:
        raise OptionError("workers=0 computes in this process, and ray elsewhere: leave out one of them")
    # Ray's workers have other devices than this machine.
    devices = (() if device is None else (device,)) if ray else _devices(model, device)
    return devices, _count("workers", workers, len(devices) or min(os.cpu_count() or 1, _MOST_WORKERS), least=0)


def _devices(model: Any, device: str | None) -> tuple[str, ...]:
    """Where the workers compute, in turn."""
    if isinstance(model, DecompX):
        if device is not None:
            raise OptionError("device is for a model that is loaded here: move the loaded one yourself")
        return (str(model.device),) if model.device.type == "cuda" else ()
    if device is not None:
        return (device,)
    return tuple(f"cuda:{n}" for n in range(torch.cuda.device_count()))


def _count(name: str, value: int | None, default: int, *, least: int = 1) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}={value!r}: use a whole number from {least}")
    return value
