"""What a worker does: it loads the model once, and turns units of rows into parts on disk."""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..errors import DecompXError, InputError, OptionError
from ..explainer import DecompX
from ..linearize.architectures import unwrap
from ..models.digest import model_sha256
from ..processes import begin_as_child, is_short_of_memory
from ..request.naming import name_inputs
from ..result.explanation import Explanation
from ..result.failure import OF_AN_INPUT, Failure
from .parts import Parts, Record, record_of
from .units import Item, Unit

#: Packages whose version may change a number.
_VERSIONED = ("torch", "transformers", "numpy")

#: Of the explainer's arguments, those that a run has no use for, and why.
_NOT_TAKEN = {
    **dict.fromkeys(("stages", "positions", "stage_output"), "parts have no column for it"),
    "ids": "rows are named by id_column",
    "is_split_into_words": "a row has its text in one column",
    "read_ahead": "the rows of a part are read together; say how many by rows_of_a_part",
}

Tell = Callable[..., object]


@dataclass(frozen=True)
class Task:
    """All that a worker needs.

    Attributes:
        model: a folder, the id of a hub, an explainer; ``None`` for the demo model.
        load: arguments of :meth:`DecompX.from_pretrained`.
        arguments: of :meth:`DecompX.explain_iter`.
        words: whether to merge the tokens of each word.
        stop: whether a row that cannot be explained ends the run.
        folder: where parts go; empty where none are written.
        format: of the parts.
        devices: where each worker computes, in turn; empty for where the model is.
    """

    model: str | DecompX | None
    load: Mapping[str, Any]
    arguments: Mapping[str, Any]
    words: bool
    stop: bool
    folder: str = ""
    format: str = "parquet"
    devices: tuple[str, ...] = ()

    def explainer(self, number: int) -> DecompX:
        """The model, loaded anew where it is not given loaded."""
        if isinstance(self.model, DecompX):
            return self.model
        device = self.devices[number % len(self.devices)] if self.devices else None
        if self.model is None:
            return DecompX.demo(device=device)
        return DecompX.from_pretrained(self.model, device=device, **self.load)


class Worker:
    """Explains units and writes their parts.

    Args:
        task: what is asked.
        number: of the worker, from 0.

    Raises:
        DecompXError: if the model cannot be loaded, or an argument cannot be used.
    """

    def __init__(self, task: Task, number: int = 0) -> None:
        for name in task.arguments.keys() & _NOT_TAKEN.keys():
            raise OptionError(f"{name}={task.arguments[name]!r}: {_NOT_TAKEN[name]}: leave it out")
        self.task = task
        self.explainer = task.explainer(number)
        self._arguments = dict(task.arguments)
        if "targets" in task.arguments:
            self._arguments["targets"] = _by_index(task.arguments["targets"], self.explainer.labels)
        self.explainer.explain_iter(iter(()), **self._arguments)  # checks them
        about = {**self.settings(), "options": self._options()}
        self.parts = Parts(Path(task.folder), task.format, about)

    def settings(self) -> dict[str, Any]:
        """All that the numbers depend on, but for the input."""
        arguments = {name: value for name, value in self.task.arguments.items() if value is not None}
        explainer = self.explainer
        return {
            "model": explainer.name or type(unwrap(explainer.model)).__name__,
            "model_sha256": model_sha256(unwrap(explainer.model)),
            "task": explainer.task,
            "engine": explainer.engine,
            "dtype": str(explainer.dtype),
            "batch_size": explainer.batch_size,
            "device": explainer.device.type,
            "options": self._options(),
            "arguments": {name: repr(value) for name, value in sorted(arguments.items())},
            "words": self.task.words,
            "decompx_fast": __version__,
            **{name: importlib.metadata.version(name) for name in _VERSIONED},
        }

    def _options(self) -> dict[str, Any]:
        config = self.explainer.config
        known = config.to_dict()
        return config.replace(**{n: v for n, v in self.task.arguments.items() if n in known}).to_dict()

    def compute(self, unit: Unit, tell: Tell) -> int:
        """Explain a unit and write its part.

        Args:
            unit: what to explain.
            tell: is called with ``("row", number)`` before each row of a careful unit, and ``("warning", text)``.

        Returns:
            How many rows of the part have an error.

        Raises:
            InputError: for the first row that cannot be explained, if that ends the run.
            OutputError: if the part cannot be written.
        """
        with self._warnings(unit, tell):
            found = dict(self._careful(unit, tell) if unit.careful else self._explained(unit.items))
        new = {item.number: record_of(item, self._named(item, found[item.number])) for item in unit.items}
        old: list[Record] = [] if unit.whole else self.parts.read(unit.span)
        records = [new.get(record["row"], record) for record in old] or list(new.values())
        self.parts.write(unit.span, records)
        return sum(record["error"] is not None for record in records)

    def records(self, items: tuple[Item, ...], *, alone: bool = False) -> list[Record]:
        """What became of each row, without writing a part.

        Args:
            items: the rows.
            alone: as for :func:`decompx_fast.bulk.parts.record_of`.

        Raises:
            InputError: for the first row that cannot be explained, if that ends the run.
        """
        found = dict(self._explained(items))
        return [record_of(item, self._named(item, found[item.number]), alone=alone) for item in items]

    def _explained(self, items: tuple[Item, ...]) -> Iterator[tuple[int, Explanation | Failure]]:
        """The outcome of each, by number; those of equal length are computed together."""
        readable = [item for item in items if item.text is not None]
        for item in items:
            if item.text is None:
                yield item.number, Failure(item.number, item.problem or "", "InputError")
        if not readable:
            return
        asked = {**self._arguments, "on_error": "skip", "progress": False, "read_ahead": len(readable)}
        outcomes = self.explainer.explain_iter([item.text for item in readable], **asked)
        for item, outcome in zip(readable, outcomes, strict=True):
            yield item.number, self._finished(outcome)

    def _careful(self, unit: Unit, tell: Tell) -> Iterator[tuple[int, Explanation | Failure]]:
        """The same one by one, and without those that are marked."""
        for item in unit.items:
            if item.number in unit.marked:
                yield item.number, Failure(item.number, unit.marked[item.number], "WorkerEnded")
                continue
            tell("row", item.number)
            yield from self._explained((item,))
        tell("row", None)

    def _finished(self, outcome: Explanation | Failure) -> Explanation | Failure:
        if isinstance(outcome, Failure) or not self.task.words:
            return outcome
        try:
            return outcome.words()
        except OF_AN_INPUT as error:
            return Failure.of(0, error)

    def _named(self, item: Item, outcome: Explanation | Failure) -> Explanation | Failure:
        """The outcome with an error that names its row, or the end of the run where errors are that."""
        if not isinstance(outcome, Failure):
            return outcome
        message = _named(outcome.error, [item])
        if self.task.stop:
            raise InputError(f"{message} ({item.place})" if item.place not in message else message)
        return replace(outcome, error=message)

    @contextmanager
    def _warnings(self, unit: Unit, tell: Tell) -> Iterator[None]:
        """Hand warnings on, with the rows that they are about."""
        readable = [item for item in unit.items if item.text is not None]

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, UserWarning):
                tell("warning", _named(str(message), readable, all_of_them=True))

        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = show
            yield


def _by_index(targets: Any, labels: tuple[str, ...]) -> Any:
    """Targets of a command line, which may be the indices of classes where no class has that name."""
    if not isinstance(targets, list):
        return targets
    written = (isinstance(one, str) and one.isdecimal() and labels and one not in labels for one in targets)
    return [int(one) if is_index else one for one, is_index in zip(targets, written, strict=True)]


def _named(message: str, items: list[Item], *, all_of_them: bool = False) -> str:
    """A message of the explainer with a row's own place."""
    return name_inputs(message, [item.place for item in items], all_of_them=all_of_them)


def serve(connection: Connection, task: Task, number: int) -> None:
    """The life of a worker process: units come, and what became of each goes back, until there are no more."""
    begin_as_child()
    if not any(device.startswith("cuda") for device in task.devices):
        torch.set_num_threads(1)  # sums over more of them come in another order, and round differently

    def tell(*message: Any) -> None:
        connection.send(message)

    try:
        worker = Worker(task, number)
        tell("ready", worker.settings() if number == 0 else None)
        while (unit := connection.recv()) is not None:
            tell("done", worker.compute(unit, tell))
    except EOFError:
        return
    except DecompXError as error:
        tell("failed", type(error).__name__, str(error))
    except Exception as error:
        if is_short_of_memory(error):
            os._exit(1)  # as if the system had ended it: another takes over
        tell("failed", "DecompXError", f"unexpected {type(error).__name__} in a worker: {error}")
