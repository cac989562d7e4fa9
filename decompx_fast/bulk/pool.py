"""Worker processes: each has one unit at a time; one that ends is replaced, and its unit given to another."""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import wait as wait_for
from typing import Any

import torch

from .. import errors
from ..errors import DecompXError, OptionError
from ..processes import Child
from .units import Unit
from .worker import Task, Worker, serve

#: So many processes in a row may end while they load the model, and so many while they have one unit, beside those
#: that one of its rows has ended while it was watched.
_FAILED_STARTS = 3
_ENDS_OF_A_UNIT = 4

#: So many processes a row ends that is watched, until it is marked: the first may have been ended by something else.
_ENDS_OF_A_ROW = 2

_ENDED = "its worker process ended ({}) while it was explained, and so did others: perhaps memory ran out"


@dataclass(frozen=True)
class Done:
    """A unit whose part is written.

    Attributes:
        unit: which.
        errors: how many rows of the part have an error.
    """

    unit: Unit
    errors: int


class _Member(Child):
    """A process, and what it is doing."""

    def __init__(self, task: Task, number: int) -> None:
        try:
            super().__init__(serve, task, number)
        except (pickle.PicklingError, AttributeError, TypeError, NotImplementedError) as error:
            raise OptionError(
                f"model={type(task.model).__name__} cannot be handed to other processes ({error}): name its folder, or "
                "use workers=0"
            ) from error
        self.number = number
        self.ready = False
        self.unit: Unit | None = None
        self.row: int | None = None  # that it says it is at

    def give(self, unit: Unit) -> None:
        self.unit, self.row = unit, None
        try:
            self.connection.send(unit)
        except OSError:
            pass  # it has ended, which is seen when it is asked


class Pool:
    """Processes that do units.

    Args:
        task: what they are to do.
        workers: how many.
        warn: is told what they warn of.
    """

    def __init__(self, task: Task, workers: int, warn: Callable[[str], object]) -> None:
        self._task = task
        self._workers = workers
        self._warn = warn
        self._members: list[_Member] = []
        self._failed_starts = 0
        self._ends: Counter[int] = Counter()  # of units, by their first rows
        self._ends_of_rows: Counter[int] = Counter()
        self._waiting: deque[Unit] = deque()
        self._error: BaseException | None = None
        self.replaced = 0
        self.stopping = False

    def start(self) -> dict[str, Any]:
        """Start the first process, and wait until it has loaded the model.

        Returns:
            What it says of the settings.

        Raises:
            DecompXError: if the model cannot be loaded, or an argument cannot be used.
        """
        while True:
            if not self._members:
                self._members.append(_Member(self._task, 0))
            for message in self._messages(1.0):
                if message[0] == "ready":
                    settings: dict[str, Any] = message[1]
                    return settings
            if self._error is not None:
                raise self._error

    def run(self, units: Iterator[Unit]) -> Iterator[Done]:
        """Do all units, and say of each when it is done; no more are read than can be worked on.

        Raises:
            DecompXError: what a worker could not do, or what is wrong with the input, when all that was begun is done.
        """
        more = True
        while True:
            while more and not self._halted and len(self._waiting) < self._workers:
                try:
                    unit = next(units, None)
                except DecompXError as error:
                    self._error, unit = self._error or error, None
                more = unit is not None
                if unit is not None:
                    self._waiting.append(unit)
            self._fill()
            if not any(member.unit is not None for member in self._members) and (self._halted or not self._waiting):
                break
            for message in self._messages(1.0):
                if message[0] == "done":
                    yield Done(message[1], message[2])
        if self._error is not None:
            raise self._error

    @property
    def _halted(self) -> bool:
        return self.stopping or self._error is not None

    def _fill(self) -> None:
        """Give units to processes that have none, and start those that are missing."""
        if self._halted:
            return
        for member in self._members:
            if self._waiting and member.ready and member.unit is None:
                member.give(self._waiting.popleft())
        taken = {member.number for member in self._members}
        wanted = min(self._workers, len(self._waiting) + sum(member.unit is not None for member in self._members))
        free = (number for number in range(self._workers) if number not in taken)
        for number in islice(free, max(0, wanted - len(taken))):
            self._members.append(_Member(self._task, number))

    def _messages(self, seconds: float) -> Iterator[tuple[Any, ...]]:
        """What processes say within some time, as far as it is for the caller."""
        by_connection: dict[Any, _Member] = {member.connection: member for member in self._members}
        for connection in wait_for(list(by_connection), seconds):
            member = by_connection[connection]
            try:
                kind, *rest = member.connection.recv()
            except (EOFError, OSError):
                self._replace(member)
                continue
            if kind == "ready":
                member.ready, self._failed_starts = True, 0
                yield "ready", *rest
            elif kind == "row":
                member.row = rest[0]
            elif kind == "warning":
                self._warn(rest[0])
            elif kind == "done":
                unit, member.unit = member.unit, None
                yield "done", unit, rest[0]
            elif kind == "failed":
                member.unit = None
                self._members.remove(member)
                member.end()
                self._error = self._error or getattr(errors, rest[0], DecompXError)(rest[1])

    def _replace(self, member: _Member) -> None:
        """A process has ended: its unit waits for another, in its old place."""
        how = member.ending()
        member.end()
        self._members.remove(member)
        self.replaced += 1
        unit = member.unit
        if unit is None:
            self._failed_starts += not member.ready
            if self._failed_starts >= _FAILED_STARTS:
                self._error = self._error or DecompXError(
                    f"worker processes end while they load the model ({how}): perhaps memory ran out, then use fewer "
                    "workers; or a script starts this without `if __name__ == '__main__':`"
                )
            return
        if member.row is not None:
            self._ends_of_rows[member.row] += 1
            if self._ends_of_rows[member.row] >= _ENDS_OF_A_ROW:
                unit = unit.watched(member.row, _ENDED.format(how))
        else:
            self._ends[unit.span.first] += 1
            if self._ends[unit.span.first] > _ENDS_OF_A_UNIT:
                self._error = self._error or DecompXError(
                    f"worker processes end ({how}) with the rows from {unit.items[0].place} on, and none of them alone "
                    "is the reason: perhaps memory ran out. Use fewer workers"
                )
                return
            if self._ends[unit.span.first] > 1:
                unit = unit.watched()
        self._waiting.appendleft(unit)

    def close(self) -> None:
        """End all processes."""
        for member in self._members:
            member.end()
        self._members.clear()


class InThisProcess:
    """The same as :class:`Pool` without processes: what ends this one ends the run, whose parts stay.

    Args:
        task: what is to be done.
        warn: is told what there is to warn of.
    """

    def __init__(self, task: Task, warn: Callable[[str], object]) -> None:
        self._worker = Worker(task)
        self._warn = warn
        self.replaced = 0
        self.stopping = False

    def start(self) -> dict[str, Any]:
        """What the numbers depend on."""
        return self._worker.settings()

    def run(self, units: Iterator[Unit]) -> Iterator[Done]:
        """Do all units, one after another."""
        for unit in units:
            threads = torch.get_num_threads()
            said: list[str] = []
            torch.set_num_threads(1)  # as in worker processes, so that numbers are the same
            try:
                errors = self._worker.compute(unit, lambda kind, text, said=said: said.append(text))
            finally:
                torch.set_num_threads(threads)
                for text in said:  # not sooner: what warns meanwhile is what is handed on
                    self._warn(text)
            yield Done(unit, errors)
            if self.stopping:
                return

    def close(self) -> None:
        """There is nothing to end."""
