"""The process round a command: signals that end it, a standard output that is closed or full, what is kept then."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import click


@dataclass
class Session:
    """What a command tells the end of the program, where errors are said.

    Attributes:
        kept: what is done and where it is, if the command is ended early.
    """

    kept: str = ""

    def keep(self, kept: str) -> None:
        """Say this with whatever ends the command."""
        self.kept = kept


pass_session = click.make_pass_decorator(Session, ensure=True)


#: What the system says where standard output cannot be written: every other file is named by an error of our own.
OUTPUT_ERRORS = {getattr(errno, name, None) for name in ("ENOSPC", "EIO", "EBADF", "EFBIG", "EDQUOT")}


class Ended(KeyboardInterrupt):
    """A signal that ends the program; raised, so that nothing half-done is left."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.name = signal.Signals(number).name


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise :class:`Ended` where a signal would end the program without a word; the next one does."""

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Ended(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    numbers = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]  # nohup ignores SIGHUP
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


class _ClosedOutput(io.TextIOBase):
    """Stands for a standard output that was closed before the program began."""

    encoding = "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


def open_standard_streams() -> None:
    """Where standard output was closed, say so when it is written; and give its number to no other file."""
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
        while (number := os.open(os.devnull, os.O_RDWR)) < 2:
            pass
        os.close(number)


def silence_output() -> None:
    """Nobody reads standard output: Python would complain once more when it flushes it at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
