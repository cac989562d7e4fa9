"""A model that is served: its queue, and processes that are watched, given batches, and replaced when they end."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .. import errors
from ..errors import DecompXError
from ..processes import Child
from .messages import Load, Outcome, Wanted, Work
from .metrics import ModelMetrics
from .settings import Limits
from .suspects import ENDS, Suspects, digest_of
from .waiting import Waiter, WaitingTexts
from .worker import place_of

#: What nobody waits for any more may go on for so long; then its process is replaced.
ABANDONED_S = 5.0

#: A process that ends while it loads the model is started anew at once, and then after ever longer, up to this.
LONGEST_PAUSE_S = 30.0

#: So often a thread looks up from what it waits for.
_TICK_S = 0.1


_MARKED = (
    f"{ENDS} processes have ended while they computed this text and no other: perhaps it takes more memory than there "
    "is. It is not tried again for now: send a shorter one, or ask who runs the service"
)


class WorkerEnded(Exception):
    """The process that computed a text has ended, or was ended."""


class Backend:
    """Explains texts with one model, in processes of its own.

    Args:
        load: what each process loads.
        workers: how many processes.
        limits: of the service.
        metrics: are told what happens.
        log: is told what an operator should know, as ``log(event, **fields)``.
        failed: is told why the model cannot be loaded at all.
        work: what a process does; see :func:`decompx_fast.serve.worker.work`.
    """

    def __init__(
        self,
        load: Load,
        workers: int,
        limits: Limits,
        metrics: ModelMetrics,
        log: Callable[..., object],
        failed: Callable[[DecompXError], object],
        work: Callable[..., object],
    ) -> None:
        self.load = load
        self.about: Mapping[str, Any] = {}
        self._workers, self._limits, self._metrics, self._work = workers, limits, metrics, work
        self._log, self._failed = log, failed
        self.queue = WaitingTexts(
            limits.queue, limits.batch, limits.batch_characters, lambda count: metrics.dropped.inc(count)
        )
        metrics.waiting.set_function(lambda: len(self.queue))
        metrics.workers.set_function(lambda: self.ready_workers)
        self._suspects = Suspects()
        self._ready: set[int] = set()
        self._was_ready = False
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(n,), daemon=True) for n in range(workers)]

    @property
    def ready_workers(self) -> int:
        """How many processes have loaded the model."""
        return len(self._ready)

    def start(self) -> None:
        """Start the processes; returns at once."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the processes, and wait for that."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for waiter in self.queue.take_all():
            waiter.fail(WorkerEnded("the service ends"))

    async def explain(self, texts: Sequence[Wanted], arguments: Mapping[str, Any]) -> list[Outcome]:
        """The outcome of each text; to cancel this drops those that are not begun.

        Raises:
            QueueFull: if there is no room for all.
            TimeoutError: if not all are there in time.
            WorkerEnded: if a process ended that had begun one of them.
        """
        key = json.dumps(arguments, sort_keys=True)
        deadline = time.monotonic() + self._limits.timeout_s
        waiters = [self._waiter(text, key, arguments, deadline) for text in texts]
        self.queue.put([waiter for waiter in waiters if not waiter.future.done()])
        try:
            futures = [asyncio.wrap_future(waiter.future) for waiter in waiters]
            return await asyncio.wait_for(asyncio.gather(*futures), self._limits.timeout_s)
        except asyncio.TimeoutError:  # the built-in one only since Python 3.11
            raise TimeoutError from None
        finally:
            for waiter in waiters:
                waiter.future.cancel()

    def _waiter(self, wanted: Wanted, key: str, arguments: Mapping[str, Any], deadline: float) -> Waiter:
        """A text that waits; answered already if it is marked."""
        digest = digest_of(key, wanted.text)
        waiter = Waiter(wanted, key, arguments, deadline, digest, self._suspects.is_suspect(digest))
        if self._suspects.is_marked(digest):
            waiter.answer(self._counted(Outcome(error=_MARKED, error_type="WorkerEnded")))
        return waiter

    def _watch(self, number: int) -> None:
        """Keep one process, and give it work, until the service ends."""
        failed_starts = 0
        while not self._stopping.is_set():
            try:
                was_ready, how = self._live(number)
            except Exception as error:  # no process can be started now, or a fault of ours
                was_ready, how = False, f"unexpected {place_of(error)}"
            if self._stopping.is_set():
                return
            self._metrics.restarts.inc()
            self._log("worker_ended", model=self.load.name, worker=number, how=how, was_ready=was_ready)
            failed_starts = 0 if was_ready else failed_starts + 1
            if failed_starts > 1:
                self._stopping.wait(min(LONGEST_PAUSE_S, 2.0 ** (failed_starts - 2)))

    def _live(self, number: int) -> tuple[bool, str]:
        """The life of one process: whether it has loaded the model, and how it ended."""
        child = Child(self._work, self.load, number)
        try:
            if self._load(child):
                self._ready.add(number)
                self._was_ready = True
                self._log("worker_ready", model=self.load.name, worker=number, pid=child.process.pid)
                self._give(child)
        finally:
            was_ready = number in self._ready
            self._ready.discard(number)
            ended = not child.process.is_alive()
            child.end()
        return was_ready, child.ending() if ended else "it was ended, since nobody waited for what it computed"

    def _load(self, child: Child) -> bool:
        """Wait until a process has loaded the model; false if it ended before."""
        while not self._stopping.is_set():
            try:
                if not child.connection.poll(_TICK_S):
                    continue
                kind, *rest = child.connection.recv()
            except (EOFError, OSError):
                return False
            if kind == "ready":
                self.about = rest[0]
                return True
            if not self._was_ready:  # what could be loaded once may be there again
                self._failed(getattr(errors, rest[0], DecompXError)(rest[1]))
            return False
        return False

    def _give(self, child: Child) -> None:
        """Give a process one batch after another, until it ends."""
        while not self._stopping.is_set():
            batch = self.queue.take(_TICK_S)
            if not batch:
                if not child.process.is_alive():
                    return
                continue
            try:
                child.connection.send(Work(batch[0].arguments, tuple(waiter.wanted for waiter in batch)))
            except OSError:  # it had ended before: another process takes them
                self.queue.put_back(batch)
                return
            self._metrics.batches.observe(len(batch))
            begun = time.monotonic()
            if not self._collect(child, batch):
                return
            self.queue.took(len(batch), time.monotonic() - begun, self._workers)

    def _collect(self, child: Child, batch: list[Waiter]) -> bool:
        """Hand out the outcomes of a batch as they come; false if the process has ended, or has to be."""
        missing = dict(enumerate(batch))
        begun = ended = False
        abandoned: float | None = None
        try:
            while True:
                if child.connection.poll(_TICK_S):
                    kind, *rest = child.connection.recv()
                    if kind == "done":
                        return True
                    if kind == "failed":
                        ended = True
                        return False
                    if kind == "begun":
                        begun = True
                    else:
                        waiter = missing.pop(rest[0])
                        self._suspects.answered(waiter.digest)
                        waiter.answer(self._counted(rest[1]))
                elif any(not waiter.is_dropped for waiter in missing.values()):
                    abandoned = None
                else:
                    abandoned = abandoned or time.monotonic()
                    if time.monotonic() - abandoned > ABANDONED_S or self._stopping.is_set():
                        return False
        except (EOFError, OSError):
            ended = True
            return False
        finally:
            if begun and ended:
                self._suspect(missing.values())
            if begun:
                for waiter in missing.values():
                    waiter.fail(WorkerEnded("the process that computed this has ended"))
            else:  # it had ended before: another process takes them
                self.queue.put_back(batch)

    def _suspect(self, waiters: Iterable[Waiter]) -> None:
        """Remember whose process has ended."""
        for digest in self._suspects.ended([waiter.digest for waiter in waiters]):
            self._log("text_marked", model=self.load.name, digest=digest.hex())

    def _counted(self, outcome: Outcome) -> Outcome:
        if outcome.error:
            self._metrics.failures.inc()
            if outcome.error_type == "InternalError":
                self._log("unexpected_error", model=self.load.name, where=outcome.error)
        else:
            self._metrics.texts.inc()
            self._metrics.tokens.inc(outcome.tokens)
            self._metrics.completeness_error.observe(outcome.completeness_error)
        return outcome
