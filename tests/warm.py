"""Processes of tests that begin with PyTorch and a model's classes imported, which is most of what a process costs.

A fork server imports them once for all tests of a process of pytest. A program, or a worker of ours, is then a fork of
it: begun in a moment and not in seconds, with nothing from the tests but the modules. How programs and workers begin
for users is shown by the tests that take :mod:`subprocess`, and no :func:`workers`.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, reduction
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from decompx_fast import processes

#: Elsewhere a process that has imported PyTorch may be unable to go on after a fork.
AVAILABLE = sys.platform == "linux"

#: What most programs and workers of tests import; no module that is run as a program.
MODULES = (
    "decompx_fast.explainer",
    "decompx_fast.bulk",
    "decompx_fast.bulk.worker",
    "decompx_fast.linearize.linearization",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert",
)


class _Context:
    """What tests and :mod:`decompx_fast.processes` ask of a context of :mod:`multiprocessing`, by the fork server."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*MODULES])
        self.Pipe = self._context.Pipe

    def Process(
        self,
        *,
        target: Callable[..., object],
        args: tuple[Any, ...],
        daemon: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Any:
        known = dict(os.environ if environment is None else environment)
        return self._context.Process(target=_begin, args=(known, target, args), daemon=daemon)


def context() -> Any:
    """Of processes that are warm where that can be, and begin with nothing of this one's."""
    return _Context() if AVAILABLE else multiprocessing.get_context("spawn")


def _begin(environment: Mapping[str, str], run: Callable[..., object], args: tuple[Any, ...]) -> None:
    """In a fork: the server's environment is that of the time when it began."""
    os.environ.clear()
    os.environ.update(environment)
    forkserver._forkserver.ensure_running = lambda: None  # it runs: this process came from it
    run(*args)


@contextmanager
def workers() -> Iterator[None]:
    """Workers of this package that begin meanwhile are warm."""
    before = processes.multiprocessing
    if AVAILABLE:
        known = SimpleNamespace(get_context=lambda _: _Context(), parent_process=multiprocessing.parent_process)
        processes.multiprocessing = known
    try:
        yield
    finally:
        processes.multiprocessing = before


class _Stream:
    """A file descriptor that is handed to a fork."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _detached, (reduction.DupFd(self.number),)


def _detached(handed: Any) -> int:
    return handed.detach()


def _run(streams: Sequence[int], command: Sequence[str], folder: str | Path | None) -> None:
    """In a fork: ``python -m module ...`` or ``python -c code ...``."""
    for wanted, number in enumerate(streams):
        os.dup2(number, wanted)
        os.close(number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # which a server begun for workers holds back
    sys.stdin, sys.stdout = open(0, encoding="utf-8"), open(1, "w", encoding="utf-8")
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    if folder is not None:
        os.chdir(folder)
    sys.path[:0] = [""]
    sys.argv = [command[1], *command[2:]]
    with workers():
        if command[0] == "-m":
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})


class Program:
    """A warm program: as much of :class:`subprocess.Popen` as tests ask for.

    Args:
        command: ``[sys.executable, "-m" or "-c", ...]``, as :mod:`subprocess` takes it.
        cwd: where it runs.
        env: its environment; this one's by default.
        stdin: what it reads; nothing by default.
        stdout: where it writes; as for :mod:`subprocess`.
        stderr: likewise.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: IO[Any] | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        assert command[0] == sys.executable and command[1] in ("-m", "-c")
        self.stdout, out = _opened(stdout, 1)
        self.stderr, err = _opened(stderr, 2)
        nothing = os.open(os.devnull, os.O_RDONLY)
        streams = [_Stream(nothing if stdin is None else stdin.fileno()), _Stream(out), _Stream(err)]
        args = (streams, [str(one) for one in command[1:]], cwd)
        self._process = _Context().Process(target=_run, args=args, environment=env)
        self._process.start()
        for number in (nothing, out, err):
            os.close(number)
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a warm program", timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        """What it has written, once it has ended; no more than a pipe holds."""
        self.wait(timeout)
        return tuple(None if one is None else one.read() for one in (self.stdout, self.stderr))


def _opened(asked: int | None, own: int) -> tuple[IO[str] | None, int]:
    """Our end of a stream of a program, and its end."""
    if asked == subprocess.PIPE:
        reading, writing = os.pipe()
        return open(reading, encoding="utf-8"), writing
    return None, os.open(os.devnull, os.O_WRONLY) if asked == subprocess.DEVNULL else os.dup(own)


def popen(command: Sequence[str], **asked: Any) -> Any:
    """:class:`subprocess.Popen` with text, warm where that can be."""
    return Program(command, **asked) if AVAILABLE else subprocess.Popen(command, text=True, **asked)


def run(
    command: Sequence[str], *, input: str | None = None, check: bool = False, **asked: Any
) -> subprocess.CompletedProcess[str]:
    """:func:`subprocess.run` with its output captured as text, warm where that can be."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        file.write(input or "")
        file.flush()
        file.seek(0)
        process = popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **asked)
        out, err = process.communicate(timeout=300)
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done
