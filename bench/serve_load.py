"""A service under load: errors, latency, and its rate against that of the engine alone.

    python bench/serve_load.py --connections 16 --seconds 60

``decompx-fast serve`` with the embedded model runs as users run it, on the loopback, and clients that keep their
connections send one held-out snippet after another, each as soon as the answer before has come (``bias="equal"``, by
the adjoint engine). The clients are threads of this process, and take their part of the processor. "Alone" is
``explain_iter`` over the same texts, in as many processes of one thread as the service has: reading 1,024 texts ahead,
of which the equally long ones are computed together, and reading as few as so many connections can have under way.
Then more connections than the queue has room for: how many are answered with 429, and that all others are answered.
Writes ``bench/results/serve.md``.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bulk import READ_AHEAD, RESULTS, alone, snippets

#: A rule that the adjoint engine answers, and whose scores add up to the logits.
BIAS = "equal"

#: Nothing takes longer than this here: what does is an error.
TIMEOUT_S = 60


@contextmanager
def service(workers: int, queue: int, path: str | None = None) -> Iterator[int]:
    """The port of a service that has loaded its model: the embedded one, or that of a folder."""
    with TemporaryDirectory() as folder:
        config = Path(folder, "serve.toml")
        model = "" if path is None else f"path = {json.dumps(path)}\n"
        config.write_text(f"port = 0\n[limits]\nqueue = {queue}\n[models.demo]\nworkers = {workers}\n{model}")
        command = [sys.executable, "-m", "decompx_fast", "serve", "--config", str(config)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        log = Path(folder, "log")
        with log.open("w") as err, subprocess.Popen(command, stderr=err, env=environment) as process:
            try:
                events: list[dict[str, Any]] = []
                while sum(event["event"] == "worker_ready" for event in events) < workers:
                    if process.poll() is not None:
                        raise SystemExit(log.read_text())
                    time.sleep(0.2)
                    lines = log.read_text().splitlines(keepends=True)
                    events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]
                yield next(event["port"] for event in events if event["event"] == "listening")
            finally:
                process.terminate()


class Client(threading.Thread):
    """One connection, which asks until its time is over."""

    def __init__(self, port: int, texts: Iterator[str], lock: threading.Lock, end: float) -> None:
        super().__init__(daemon=True)
        self._port, self._texts, self._lock, self._end = port, texts, lock, end
        self.statuses: Counter[str] = Counter()
        self.times: list[float] = []
        self.largest_gap = 0.0

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        while time.perf_counter() < self._end:
            with self._lock:
                text = next(self._texts)
            body = json.dumps({"texts": [text], "options": {"bias": BIAS}})
            begun = time.perf_counter()
            try:
                connection.request("POST", "/v1/explain", body, {"content-type": "application/json"})
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.statuses[type(error).__name__] += 1
                connection.close()
                continue
            self.statuses[str(answer.status)] += 1
            if answer.status == 200:
                self.times.append(time.perf_counter() - begun)
                (found,) = json.loads(content)["explanations"]
                assert found["texts"] == [text]
                self.largest_gap = max(self.largest_gap, found["completeness_error"])
            else:
                time.sleep(0.05)  # far less than it is told: the service shall stand that, too


def load(port: int, texts: list[str], connections: int, seconds: float) -> dict[str, Any]:
    """What became of the requests of so many connections."""
    shared, lock, begun = cycle(texts), threading.Lock(), time.perf_counter()
    clients = [Client(port, shared, lock, begun + seconds) for _ in range(connections)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    took = time.perf_counter() - begun
    times = sorted(one for client in clients for one in client.times)
    return {
        "statuses": dict(sum((client.statuses for client in clients), Counter())),
        "texts_a_second": len(times) / took,
        "p50_ms": times[len(times) // 2] * 1e3,
        "p99_ms": times[min(len(times) - 1, int(len(times) * 0.99))] * 1e3,
        "largest_gap": max(client.largest_gap for client in clients),
    }


def page(asked: argparse.Namespace, found: dict[str, Any]) -> str:
    """The results as Markdown."""
    rate = found["load"]["texts_a_second"]
    rows = [
        ("requests by status", ", ".join(f"{n:,} of {s}" for s, n in found["load"]["statuses"].items())),
        ("p50", f"{found['load']['p50_ms']:,.0f} ms"),
        ("p99", f"{found['load']['p99_ms']:,.0f} ms"),
        ("texts a second", f"{rate:,.1f}"),
        (
            f"the engine alone, {asked.connections} texts ahead",
            f"{found['alone_few']:,.1f} a second; the service has {rate / found['alone_few']:.0%} of it",
        ),
        (
            f"the engine alone, {READ_AHEAD:,} texts ahead",
            f"{found['alone']:,.1f} a second; the service has {rate / found['alone']:.0%} of it",
        ),
        (
            f"overload: {asked.overload} connections, room for {asked.queue}",
            ", ".join(f"{n:,} of {s}" for s, n in found["overload"]["statuses"].items())
            + f"; p99 of those answered {found['overload']['p99_ms']:,.0f} ms",
        ),
        ("largest completeness error", f"{max(one['largest_gap'] for one in (found['load'], found['overload'])):.1e}"),
    ]
    lines = [
        "# The service under load",
        "",
        f"`python bench/serve_load.py --connections {asked.connections} --seconds {asked.seconds:g} --workers "
        f"{asked.workers}`: {platform.processor() or platform.machine()}, {os.cpu_count()} cores, of which the clients "
        f"take their part; load average before it {found['load_average']:.1f}. The embedded model, one snippet a "
        f'request, `bias="{BIAS}"`.',
        "",
        "| what | measured |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--overload", type=int, default=64, help="connections of the second part")
    parser.add_argument("--queue", type=int, default=32, help="texts that may wait")
    parser.add_argument("--rows", type=int, default=2048, help="texts that the engine explains alone")
    asked = parser.parse_args()
    texts = snippets(None)
    found: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    with service(asked.workers, asked.queue) as port:
        load(port, texts, asked.connections, min(5.0, asked.seconds))  # warm
        found["load"] = load(port, texts, asked.connections, asked.seconds)
        found["overload"] = load(port, texts, asked.overload, asked.seconds / 3)
    rows = list(islice(cycle(texts), asked.rows))
    found["alone"] = alone(rows, asked.workers, bias=BIAS)["rows_a_second"]
    few = max(1, asked.connections // asked.workers)
    found["alone_few"] = alone(rows, asked.workers, few, BIAS)["rows_a_second"]
    written = page(asked, found)
    (RESULTS / "serve.md").write_text(written)
    print(written)


if __name__ == "__main__":
    main()
