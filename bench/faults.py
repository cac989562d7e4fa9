"""Faults that are made on purpose in bulk runs, on Ray, and in the service: what was lost, and how long until work
went on.

    python bench/faults.py

The rows are the held-out snippets, repeated, each with an id, explained by the adjoint engine (``bias="none"``) in a
random encoder of 2 layers, 32 wide, in parts of 16 rows. Each fault is made in a run of its own after some parts; where
the run ends, the same command is given again at once. In the end every column of every row is compared with those of
a run that nothing happened to, but for ``time_s``. "Until work went on" is from the fault to the next part that is
written, the start of new processes included. The service is asked by 4 connections meanwhile, and work goes on with
the next answer of 200. Faults of a disk are made in a small file system (tmpfs), which only root can mount: without it
these are left out. Writes ``bench/results/faults.json``, and from it ``faults.md``; with ``--only`` some faults alone
are made again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bulk import RESULTS, children_of, machine, resident_mb, snippets
from bulk_kills import Run, cluster, compare, save_model, write_rows
from serve_load import Client, service

from decompx_fast.errors import counted

ROWS_OF_A_PART = 16
PARTS_BEFORE = 12
PATIENCE_S = 120
FULL_DISK_BYTES = 128 << 10


@dataclass
class Found:
    """A line of the table."""

    where: str
    fault: str
    how: str
    seconds: float
    lost: str
    then: str = "went on by itself"


@dataclass
class Bench:
    """What all faults have in common.

    Attributes:
        folder: of everything.
        rows: how many.
        only: the faults that are made; empty for all.
        found: the table so far.
    """

    folder: Path
    rows: int
    only: tuple[str, ...] = ()
    found: list[Found] = field(default_factory=list)

    def wants(self, where: str, fault: str) -> bool:
        return not self.only or f"{where}: {fault}" in self.only

    @property
    def model(self) -> str:
        return str(self.folder / "model")

    def command(self, out: Path, *where: str) -> list[str]:
        data, part = str(self.folder / "rows.jsonl"), str(ROWS_OF_A_PART)
        options = ["--model", self.model, "--id-column", "key", "--bias", "none", "--rows-of-a-part", part]
        return [sys.executable, "-m", "decompx_fast", "bulk", data, *options, *where, "--out", str(out)]

    def add(self, one: Found) -> None:
        self.found.append(one)
        print(one, flush=True)

    def lost(self, out: Path) -> str:
        """What differs from the run that nothing happened to."""
        told = compare(out, self.folder / "whole", self.rows)
        return "nothing" if told["all_there"] and not told["different"] else str(told)


def until(true: Callable[[], object], what: str) -> None:
    """Wait for something."""
    end = time.perf_counter() + PATIENCE_S
    while not true():
        if time.perf_counter() > end:
            raise SystemExit(f"not within {PATIENCE_S} s: {what}")
        time.sleep(0.01)


# Bulk runs ------------------------------------------------------------------------------------------------------------


class Struck(Run):
    """A run in which a fault is made."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def strike(self, fault: Callable[[Struck], object], between: Callable[[], object] = lambda: None) -> tuple:
        """Make a fault, and begin again where the run ends of it; ``between`` is what is done before.

        Returns:
            Seconds until the next part, and what the run did.
        """
        start = time.perf_counter()
        fault(self)
        then, before = "went on by itself", self.parts()
        while self.parts() <= before or self._ends_soon:
            code = self._process.poll()
            if code is not None:
                signalled = f"signal {-code}" if code < 0 else f"exit code {code}"
                then, before = f"ended after {time.perf_counter() - start:.1f} s ({signalled}), run again", self.parts()
                between()
                self._ends_soon = False
                self.begin()
            if time.perf_counter() - start > PATIENCE_S:
                raise SystemExit(f"no part came within {PATIENCE_S} s")
            time.sleep(0.01)
        return time.perf_counter() - start, then

    #: Whether the fault ends the run, which may write a part before.
    _ends_soon = False


def to_parent(number: int) -> Callable[[Struck], None]:
    def fault(run: Struck) -> None:
        run._ends_soon = True
        os.kill(run.pid, number)

    return fault


def to_worker(run: Struck) -> None:
    until(run.workers, "there is a worker")
    os.kill(run.workers()[0], signal.SIGKILL)


def out_of_memory(run: Struck) -> None:
    """A worker gets no more memory than it has."""
    until(run.workers, "there is a worker")
    worker = run.workers()[0]
    size = int(resident_mb(worker, "VmSize")) << 20
    resource.prlimit(worker, resource.RLIMIT_AS, (size, size))


def bulk_fault(bench: Bench, name: str, how: str, fault: Callable[[Struck], object]) -> None:
    if not bench.wants("bulk", name):
        return
    out = bench.folder / name.replace(" ", "-")
    run = Struck(bench.command(out, "--workers", "2"), out)
    run.watch(PARTS_BEFORE)
    seconds, then = run.strike(fault)
    run.watch()
    bench.add(Found("bulk", name, how, seconds, bench.lost(out), then))


def damaged_part(bench: Bench, name: str, how: str, damage: Callable[[Path], object]) -> None:
    """A part of a run that has ended is damaged, and the command given again."""
    if not bench.wants("bulk", name):
        return
    out = bench.folder / name.replace(" ", "-")
    command = bench.command(out, "--workers", "1")
    subprocess.run(["cp", "-r", str(bench.folder / "whole"), str(out)], check=True)
    part = sorted((out / "parts").iterdir())[3]
    size, then = part.stat().st_size, "made again"
    damage(part)
    start = time.perf_counter()
    process = subprocess.Popen(command)
    if part.exists():  # it is told by its name, and deleted
        if process.wait(PATIENCE_S) == 0:
            raise SystemExit(f"{name}: not told")
        then = f"refused by its name after {time.perf_counter() - start:.1f} s, deleted, run again"
        part.unlink()
        process = subprocess.Popen(command)
    until(lambda: part.exists() and part.stat().st_size >= 0.9 * size, "the part is there again")
    seconds = time.perf_counter() - start
    if process.wait(PATIENCE_S):
        raise SystemExit(f"{name}: exit code {process.returncode}")
    left = [path.name for path in (out / "parts").iterdir() if path.name.startswith(".")]
    bench.add(Found("bulk", name, how, seconds, bench.lost(out) + (f", {left} left" if left else ""), then))


def torn(part: Path) -> None:
    """As power that is lost before a rename: the half of a file under the name that it has until then."""
    part.with_name(f".{'0' * 16}.tmp").write_bytes(part.read_bytes()[:100])
    part.unlink()


@contextmanager
def small_disk(folder: Path, nbytes: int) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def full_disk(bench: Bench) -> None:
    disk = bench.folder / "disk"
    with small_disk(disk, FULL_DISK_BYTES):
        out = disk / "out"
        run = Struck(bench.command(out, "--workers", "2"), out)
        run._ends_soon = True
        larger = ["mount", "-o", "remount,size=64m", str(disk)]
        run._process.wait(PATIENCE_S)
        seconds, then = run.strike(lambda _: None, lambda: subprocess.run(larger, check=True))
        run.watch()
        how = f"a file system of {FULL_DISK_BYTES >> 10} KiB, then more room"
        bench.add(Found("bulk", "full disk", how, seconds, bench.lost(out), then))


def bulk(bench: Bench) -> None:
    at = f"at {PARTS_BEFORE} parts"
    bulk_fault(bench, "the run is killed", f"SIGKILL to the parent {at}", to_parent(signal.SIGKILL))
    bulk_fault(bench, "a worker is killed", f"SIGKILL to a worker {at}", to_worker)
    bulk_fault(bench, "a worker without memory", f"RLIMIT_AS of a worker set to what it has, {at}", out_of_memory)
    bulk_fault(bench, "SIGTERM", f"to the parent {at}", to_parent(signal.SIGTERM))
    bulk_fault(bench, "Ctrl-C", f"SIGINT to the parent {at}", to_parent(signal.SIGINT))
    if hasattr(os, "geteuid") and os.geteuid() == 0 and bench.wants("bulk", "full disk"):
        full_disk(bench)
    half = "a part cut to its half in a whole run"
    damaged_part(bench, "a truncated part", half, lambda part: os.truncate(part, part.stat().st_size // 2))
    damaged_part(bench, "an empty part", "a part cut to nothing", lambda part: os.truncate(part, 0))
    damaged_part(bench, "a torn rename", "half a part under its temporary name alone", torn)


def on_ray(bench: Bench) -> None:
    faults = (
        ("an actor is killed", "SIGKILL to an actor", to_worker),
        ("the run is killed", "SIGKILL to the driver", to_parent(signal.SIGKILL)),
    )
    faults = [one for one in faults if bench.wants("Ray", one[0])]
    with cluster(bool(faults)) as where:
        for name, how, fault in faults:
            out = bench.folder / f"ray-{name.replace(' ', '-')}"
            run = Struck(bench.command(out, *where), out)
            run.watch(PARTS_BEFORE)
            seconds, then = run.strike(fault)
            run.watch()
            bench.add(Found("Ray", name, f"{how} at {PARTS_BEFORE} parts", seconds, bench.lost(out), then))


# The service ----------------------------------------------------------------------------------------------------------


def serve_fault(bench: Bench, name: str, how: str, fault: Callable[[int, list[int]], object]) -> None:
    """A fault while 4 connections ask; it is given the process of the service and those that compute."""
    if not bench.wants("service", name):
        return
    with service(2, 64, bench.model) as port:
        (parent,) = children_of(os.getpid())
        workers = [child for child in children_of(parent) if resident_mb(child) > 100]
        texts, lock, end = cycle(snippets(None)), threading.Lock(), time.perf_counter() + 6
        clients = [Client(port, texts, lock, end) for _ in range(4)]
        for client in clients:
            client.start()
        time.sleep(2)
        start, before = time.perf_counter(), sum(len(client.times) for client in clients)
        fault(parent, workers)
        until(lambda: sum(len(client.times) for client in clients) > before + 4, "there is an answer again")
        seconds = time.perf_counter() - start
        for client in clients:
            client.join()
        statuses = sum((client.statuses for client in clients), Counter())
    told = ", ".join(f"{count:,} answers of {status}" for status, count in sorted(statuses.items()))
    bench.add(Found("service", name, how, seconds, told))


def ended_service(bench: Bench, name: str, number: int) -> None:
    """The whole service is ended while 4 texts are computed; then another is begun."""
    if not bench.wants("service", name):
        return
    with suppress(SystemExit), service(2, 64, bench.model) as port:
        (parent,) = children_of(os.getpid())
        workers = children_of(parent)
        texts, lock, end = cycle(snippets(None)), threading.Lock(), time.perf_counter() + 3
        clients = [Client(port, texts, lock, end) for _ in range(4)]
        for client in clients:
            client.start()
        time.sleep(1)
        start = time.perf_counter()
        os.kill(parent, number)
        until(lambda: not any(resident_mb(one, "VmRSS") for one in workers), "all processes have ended")
        ended = time.perf_counter() - start
        for client in clients:
            client.join()
        statuses = sum((client.statuses for client in clients), Counter())
    begun = time.perf_counter()
    with service(2, 64, bench.model):
        seconds = time.perf_counter() - begun + ended
    kept = {status: count for status, count in statuses.items() if status.isdecimal()}
    cut = 4 if number == signal.SIGKILL else 0
    cut = min(cut, sum(statuses.values()) - sum(kept.values()))
    told = ", ".join(f"{count:,} answers of {status}" for status, count in kept.items())
    told += f"; {cut} connections that waited were cut" if cut else "; what had been asked was answered"
    then = f"all processes had ended after {ended:.1f} s, begun again"
    bench.add(Found("service", name, f"{signal.Signals(number).name} under load", seconds, told, then))


def served(bench: Bench) -> None:
    kill = signal.SIGKILL
    serve_fault(bench, "a process is killed", "SIGKILL to one of 2", lambda _, workers: os.kill(workers[0], kill))
    both = "SIGKILL to both"
    serve_fault(bench, "all processes are killed", both, lambda _, workers: [os.kill(one, kill) for one in workers])
    ended_service(bench, "the service is killed", signal.SIGKILL)
    ended_service(bench, "SIGTERM", signal.SIGTERM)


def page(kept: dict[str, Any]) -> str:
    """The table, as Markdown."""
    lines = [
        "# Faults",
        "",
        f"`python bench/faults.py`: {kept['rows']:,} rows in parts of {ROWS_OF_A_PART}, a random encoder of 2 layers, "
        f"32 wide, {kept['machine']}, {counted(kept['cores'], 'core')} that others used too (load average "
        f"{kept['load']:.1f}), PyTorch {kept['torch']}. What was lost is by comparison, number for number, with a run "
        "that nothing happened to; of the service it is what its 4 clients were told.",
        "",
        "| where | fault | how it was made | what was lost | what became of it | s until work went on |",
        "| --- | --- | --- | --- | --- | ---: |",
    ]
    for one in kept["found"]:
        row = Found(**one)
        lines.append(f"| {row.where} | {row.fault} | {row.how} | {row.lost} | {row.then} | {row.seconds:.1f} |")
    return "\n".join(lines) + "\n"


def keep(bench: Bench) -> None:
    """Write what was found, in the place of what was found before of the same faults."""
    file = RESULTS / "faults.json"
    before = json.loads(file.read_text())["found"] if file.exists() and bench.only else []
    new = {(one.where, one.fault): asdict(one) for one in bench.found}
    found = [new.pop((one["where"], one["fault"]), one) for one in before] + list(new.values())
    kept = {"rows": bench.rows, **machine(), "found": found}
    file.write_text(json.dumps(kept, indent=1) + "\n")
    (RESULTS / "faults.md").write_text(page(kept))
    print(page(kept))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=800)
    parser.add_argument("--only", nargs="+", default=[], metavar="WHERE: FAULT", help="as in the table")
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        bench = Bench(Path(folder), asked.rows, tuple(asked.only))
        write_rows(bench.folder / "rows.jsonl", asked.rows)
        save_model(Path(bench.model), tiny=True)
        if not all(one.startswith("service: ") for one in asked.only or [""]):
            subprocess.run(bench.command(bench.folder / "whole", "--workers", "2"), check=True)
        for make in (bulk, on_ray, served):
            make(bench)
    keep(bench)


if __name__ == "__main__":
    main()
