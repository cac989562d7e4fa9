"""Who computes the parts of an evaluation: this process, or several, which end with the run, however that ends."""

from __future__ import annotations

import traceback
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any

import torch

from ..errors import DecompXError
from ..processes import Child, begin_as_child
from .store import Record
from .work import EvaluationError, Item, Task, Worker


def compute_all(
    worker: Worker, items: Sequence[Item], workers: int
) -> Generator[tuple[Item, list[Record]], None, None]:
    """Compute parts, in one process or in several, and yield each as it is done.

    A chunk's parts follow each other in one process, which remembers what the model said about its changed texts; the
    longest chunks come first, so that no process is left alone with one. A part's numbers are the same in any process
    and order, since each computes on one thread, and :meth:`.classifier.Classifier.predict` does not mix inputs.

    Raises:
        EvaluationError: if a method fails, or a process dies.
    """
    by_chunk: dict[int, list[Item]] = {}
    for item in sorted(items, key=lambda item: -item[1]):
        by_chunk.setdefault(item[1], []).append(item)
    if workers > 1 and len(items) > 1:
        yield from _in_processes(worker.task, deque(by_chunk.values()), workers)
        return
    for item in (item for chunk in by_chunk.values() for item in chunk):
        with one_thread():
            records = worker.compute(item)
        yield item, records


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch computes on one thread: sums over more of them come in another order, and round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Member(Child):
    """A process, the parts that it was given, oldest first, and what is left of its chunk."""

    def __init__(self, task: Task) -> None:
        super().__init__(serve, task)
        self.given: deque[Item] = deque()
        self._left: deque[Item] = deque()

    def fill(self, chunks: deque[list[Item]], parts: int = 2) -> None:
        """Give it what it lacks of so many parts, one to do and one to go on with: of its own chunk, or the next."""
        while len(self.given) < parts and (self._left or chunks):
            if not self._left:
                self._left.extend(chunks.popleft())
            self.given.append(self._left.popleft())
            try:
                self.connection.send(self.given[-1])
            except OSError:
                return  # it has ended, which is seen when it is asked

    def answer(self) -> tuple[Item, list[Record]]:
        """Its oldest part, computed."""
        try:
            found: list[Record] | DecompXError = self.connection.recv()
        except (EOFError, OSError) as error:
            raise EvaluationError(
                f"a worker process ended ({self.ending()}) before its work was done: perhaps memory ran out. Run the "
                "same again, with fewer workers; what is finished is kept"
            ) from error
        if isinstance(found, DecompXError):
            raise found
        return self.given.popleft(), found


def _in_processes(task: Task, chunks: deque[list[Item]], workers: int) -> Iterator[tuple[Item, list[Record]]]:
    """The parts of each chunk in one process. What a process is at when the run ends early is lost: it may take
    minutes, and is computed again when the run goes on."""
    members: list[_Member] = []
    try:
        for _ in range(min(workers, len(chunks))):
            members.append(_Member(task))
            members[-1].fill(chunks, parts=1)
        for member in members:
            member.fill(chunks)
        while any(member.given for member in members):
            by_connection: dict[Any, _Member] = {member.connection: member for member in members if member.given}
            for connection in wait_for(list(by_connection)):
                done = by_connection[connection].answer()
                by_connection[connection].fill(chunks)
                yield done
    finally:
        for member in members:
            member.end()


def serve(connection: Connection, task: Task) -> None:
    """The life of a process: parts come, and their records go back, or the error that ends the run."""
    begin_as_child()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parent, which has read the same texts, has warned of all
            worker = Worker(task)
        while True:
            connection.send(worker.compute(connection.recv()))
    except EOFError:
        return
    except DecompXError as error:
        connection.send(error)
    except Exception as error:
        where = "".join(traceback.format_exception(error))
        connection.send(EvaluationError(f"unexpected {type(error).__name__} in a worker process: {error}\n\n{where}"))
