"""The workers of a cluster of Ray, in the place of processes of this machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ..errors import BackendError, DecompXError, InputError
from ..optional import import_optional
from ..result.failure import OF_THE_SETTING, Failure
from .batches import Explainer
from .carried import writable
from .parts import Parts, Record, record_of, schema_of
from .pool import Done
from .units import Item, Unit
from .worker import Task, Worker

#: Units that are handed to Ray at once, for each worker: its store holds their rows and results, and for each such
#: portion the model is loaded anew.
_UNITS_OF_A_PORTION = 64

#: How often what has ended its actor is tried again, alone in the end.
_RETRIES = 1

_OF_THE_SETTING = {kind.__name__: kind for kind in OF_THE_SETTING}

_ENDED = "its actor ended while it was explained, and so did others: perhaps memory ran out"


class _Rows(Explainer):
    """Explains rows that the run has read, so that messages name their places, and gives whole records.

    Args:
        task: of the run.
    """

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(1)  # as in worker processes, so that numbers are the same
        self._worker = Worker(task)

    def __call__(self, batch: Any) -> Any:
        arrow = import_optional("pyarrow", "bulk on Ray", extra="ray")
        items = tuple(_item(values) for values in batch.to_pylist())
        try:
            records = self._worker.records(items)
        except Exception as error:
            if len(items) > 1:
                raise  # each is tried alone then
            records = [_failed(items[0], str(error), type(error).__name__)]
        return arrow.Table.from_pylist(records, schema=schema_of({}))


class RayPool:
    """Does units on a cluster, as :class:`decompx_fast.bulk.pool.Pool` does on a machine; parts are written here.

    Actors that end are replaced by Ray, and what they had is tried again. Units that end them twice are done row by
    row, and a row that then does so twice is marked.

    Args:
        task: what is to be done.
        workers: how many actors at most; ``None``: one for each GPU of the cluster, or each CPU.
        address: of a cluster; ``None``: the one that runs here or that ``RAY_ADDRESS`` names, or a new one here.
    """

    def __init__(self, task: Task, workers: int | None, address: str | None) -> None:
        self._task = replace(task, stop=False)  # an error there would only have the rows tried again
        self._stop = task.stop
        self._workers = workers
        self._address = address
        self._ray = import_optional("ray", "bulk on Ray", extra="ray")
        self._data = import_optional("ray.data", "bulk on Ray", extra="ray")
        self._parts = Parts(Path(task.folder), task.format, {})
        self._started = False
        self.replaced = 0
        self.stopping = False

    def start(self) -> dict[str, Any]:
        """Reach the cluster, and let one of its workers load the model.

        Returns:
            What it says of the settings.

        Raises:
            BackendError: if the cluster cannot be reached.
            DecompXError: if the model cannot be loaded, or an argument cannot be used.
        """
        ray = self._ray
        if not ray.is_initialized():
            try:
                ray.init(address=self._address, logging_level="warning")
            except (OSError, ValueError, RuntimeError) as error:  # Ray's errors of connection are the first
                raise BackendError(f"ray={self._address!r}: no cluster can be reached there ({error})") from error
            self._started = True
            logging.getLogger("ray.data").setLevel(logging.WARNING)  # the run says itself how far it is
        has = ray.cluster_resources()
        gpus = int(has.get("GPU", 0)) if not self._task.devices else 0
        if gpus:
            self._task = replace(self._task, devices=("cuda",))
        self._workers = self._workers or gpus or max(1, int(has.get("CPU", 1)))
        self._needs = {"num_cpus": 1, "num_gpus": 1 if gpus else 0}
        with self._ends():
            settings: dict[str, Any] = ray.get(ray.remote(**self._needs)(_settings).remote(self._task))
        self._parts = replace(self._parts, about=settings)
        return settings

    def run(self, units: Iterator[Unit]) -> Iterator[Done]:
        """Do all units, and say of each when it is done.

        Raises:
            DecompXError: what is wrong with the input, when all that was read before is done; for the first row that
                cannot be explained, if that ends the run.
        """
        problem: DecompXError | None = None
        while problem is None and not self.stopping:
            portion: list[Unit] = []
            try:
                for unit in islice(units, _UNITS_OF_A_PORTION * (self._workers or 1)):
                    portion.append(unit)
            except DecompXError as error:
                problem = error
            if not portion and problem is None:
                return
            yield from self._done(portion)
        if problem is not None:
            raise problem

    def _done(self, units: Sequence[Unit]) -> Iterator[Done]:
        """Do some units: first each as a whole, then row by row what has ended its actors."""
        missing = {unit.span.first: unit for unit in units}
        found: dict[int, dict[int, Record]] = {first: {} for first in missing}
        of_row = {item.number: unit.span.first for unit in units for item in unit.items}

        def take(records: list[Record]) -> Iterator[Done]:
            for record in records:
                self._check(record)
            for first in {of_row[record["row"]] for record in records}:
                found[first] |= {record["row"]: record for record in records if of_row[record["row"]] == first}
                unit = missing[first]
                if len(found[first]) == len(unit.items):
                    yield self._written(unit, found.pop(first))
                    del missing[first]

        unreadable = [item for unit in units for item in unit.items if item.text is None]
        yield from take([_failed(item, item.problem or "", "InputError") for item in unreadable])
        for whole in (True, False):
            rest = [[one for one in unit.items if one.number not in found[first]] for first, unit in missing.items()]
            pieces = rest if whole else [[item] for items in rest for item in items]
            for records in self._records(pieces, together=whole):
                yield from take(records)
                if self.stopping:
                    return
        lost = [item for first, unit in missing.items() for item in unit.items if item.number not in found[first]]
        yield from take([_failed(item, _ENDED, "WorkerEnded") for item in lost])

    def _records(self, pieces: list[list[Item]], *, together: bool) -> Iterator[list[Record]]:
        """What the cluster makes of some rows, as it is done; nothing of a piece that ends its actor each time.

        Args:
            pieces: rows that are explained at once.
            together: whether pieces may wait at an actor that has one, which then end with it as often as that does.
        """
        if not pieces:
            return
        arrow = import_optional("pyarrow", "bulk", extra="ray")
        tables = [self._ray.put(arrow.Table.from_pylist([_values(item) for item in piece])) for piece in pieces]
        rows = self._data.from_arrow_refs(tables)
        rows.context.max_errored_blocks = -1  # what is missing in the end is tried again
        rows.context.enable_progress_bars = False
        explained = rows.map_batches(
            _Rows,
            fn_constructor_args=(self._task,),
            batch_size=None,
            batch_format="pyarrow",
            compute=self._data.ActorPoolStrategy(
                min_size=1, max_size=self._workers, max_tasks_in_flight_per_actor=None if together else 1
            ),
            ray_remote_args_fn=lambda: {"max_task_retries": _RETRIES},
            **self._needs,
        )
        with self._ends():
            for table in explained.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                yield table.to_pylist()

    @contextmanager
    def _ends(self) -> Iterator[None]:
        """Raise what the cluster could not do as an error of ours."""
        try:
            yield
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, DecompXError):
                raise cause from error
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise BackendError(
                f"the cluster could not load the model, or not go on ({reason}): see its logs"
            ) from error

    def _check(self, record: Record) -> None:
        """Raise the error of a record where it is that of all rows, or ends the run."""
        if record["error_type"] in _OF_THE_SETTING:
            raise _OF_THE_SETTING[record["error_type"]](record["error"])
        if self._stop and record["error"] is not None:
            place = f"line {record['line']} of {record['file']}"
            raise InputError(record["error"] if place in record["error"] else f"{record['error']} ({place})")

    def _written(self, unit: Unit, new: dict[int, Record]) -> Done:
        """Write the part of a unit."""
        old: list[Record] = [] if unit.whole else self._parts.read(unit.span)
        records = [new.get(record["row"], record) for record in old] or [new[item.number] for item in unit.items]
        self._parts.write(unit.span, records)
        return Done(unit, sum(record["error"] is not None for record in records))

    def close(self) -> None:
        """Leave the cluster, or end it if it was begun here."""
        if self._started:
            self._ray.shutdown()


def _failed(item: Item, error: str, kind: str) -> Record:
    return record_of(item, Failure(item.number, error, kind))


def _settings(task: Task) -> dict[str, Any]:
    return Worker(task).settings()


def _values(item: Item) -> dict[str, Any]:
    """A row on its way to a worker."""
    texts = [item.text] if isinstance(item.text, str) else list(item.text or ())
    name = None if item.id is None else writable(item.id)
    values = {one.name: getattr(item, one.name) for one in fields(item)}
    return {**values, "file": writable(item.file), "id": name, "text": texts}


def _item(values: dict[str, Any]) -> Item:
    texts = values["text"]
    return Item(**{**values, "text": texts[0] if len(texts) == 1 else tuple(texts)})
