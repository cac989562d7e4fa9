"""Services for tests: one in a thread with a stub for its processes, one as the command that users run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import warm
from serve_stub import stub

from decompx_fast.serve.app import create_app
from decompx_fast.serve.run import listening, server_of
from decompx_fast.serve.settings import Limits, Settings

ROOT = Path(__file__).resolve().parent.parent

#: A busy machine may take so long for what takes a moment.
PATIENCE_S = 60


def until(true: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
    """Wait for something; fails if it does not come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = true()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


@contextmanager
def served(
    *, workers: int = 1, limits: dict[str, Any] | None = None, work: Callable[..., object] = stub, **settings: Any
) -> Iterator[httpx.Client]:
    """A client of a service whose processes are stubs."""
    models = settings.pop("models", {"demo": {"workers": workers}})
    asked = Settings(models=models, port=0, limits=Limits(**(limits or {})), **settings)
    failures: list[Exception] = []
    server = server_of(asked, create_app(asked, failed=failures.append, work=work))
    with warm.workers(), listening(asked) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False) as client:
                until(lambda: failures or _is_ready(client), "the service is ready")
                client.failures = failures
                yield client
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
    assert not thread.is_alive()


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/v2/health/ready").status_code == 200
    except httpx.TransportError:
        return False


class Command:
    """``decompx-fast serve`` as a process of its own, which is warm.

    Args:
        *arguments: of the command.
        **variables: of its environment.
    """

    def __init__(self, *arguments: str, **variables: str) -> None:
        command = [sys.executable, "-m", "decompx_fast", "serve", "--port", "0", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.process = warm.popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.lines.append(line)
            if line.startswith("{"):
                self.events.append(json.loads(line))

    def event(self, name: str, count: int = 1) -> dict[str, Any]:
        """The ``count``-th event of that name, waited for."""

        def found() -> dict[str, Any] | None:
            named = [event for event in self.events if event["event"] == name]
            if len(named) >= count:
                return named[count - 1]
            assert self.process.poll() is None or name == "ended", "".join(self.lines)
            return None

        return until(found, f"event {name}", 3 * PATIENCE_S)

    def client(self, **arguments: Any) -> httpx.Client:
        """A client of it."""
        url = f"http://127.0.0.1:{self.event('listening')['port']}"
        return httpx.Client(base_url=url, timeout=3 * PATIENCE_S, trust_env=False, **arguments)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit code after a signal."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(3 * PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code


def ask(client: httpx.Client, *texts: str, **more) -> httpx.Response:
    return client.post("/v1/explain", json={"texts": list(texts), **more})


def error_of(answer: httpx.Response) -> dict:
    found = answer.json()
    assert set(found) == {"error"} and set(found["error"]) == {"type", "message", "argument"}, found
    assert "Traceback" not in answer.text
    return found["error"]


def metric(client: httpx.Client, line: str) -> float:
    """The value of one line of the metrics."""
    found = [one for one in client.get("/metrics").text.splitlines() if one.startswith(line + " ")]
    assert found, line
    return float(found[0].rpartition(" ")[2])
