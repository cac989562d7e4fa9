"""A process of our own beside this one: started deaf to Ctrl-C, talked to by a pipe, ended when this one ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import SpawnProcess
from typing import Any

#: How the libraries that compute say that there is no memory for more, where that is a RuntimeError.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "could not create a primitive", "bad_alloc")


def is_short_of_memory(error: BaseException) -> bool:
    """Whether a process can go on no more since the system gives it no memory."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY)


class Child:
    """A new Python process that runs a function.

    Args:
        run: what it does, with its end of the pipe and then ``args``; of a module, so that it can be found there.
        *args: are pickled.

    Raises:
        Exception: what pickling raises, if an argument cannot be handed over.
    """

    def __init__(self, run: Callable[..., object], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        connection, other = context.Pipe()
        self.connection: Connection = connection
        self.process: SpawnProcess = context.Process(target=run, args=(other, *args), daemon=True)
        with _interrupts_blocked():
            self.process.start()
        other.close()  # so that the end of the process is the end of the connection

    def ending(self) -> str:
        """How it ended."""
        self.process.join(10)
        code = self.process.exitcode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def end(self) -> None:
        """Kill it: it may be in the middle of a long computation."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def begin_as_child() -> None:
    """What a process of ours does first: it leaves Ctrl-C, which reaches all of them, to its parent, and ends with
    it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot end its children, which would go on for it, or wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process that is begun here is deaf to Ctrl-C from its first instruction on, and says nothing of it."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # which begins with the first process, and unblocks the signal when it has begun
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
