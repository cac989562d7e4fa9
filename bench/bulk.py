"""The rate of bulk runs against those of the engine alone and of one forward pass, and the memory of their processes.

    python bench/bulk.py --part rates         # on a machine that does nothing else
    python bench/bulk.py --part memory

The rows are the held-out snippets, repeated, each with its number before it; the model is the embedded one, by the
adjoint engine (``bias="none"``). Every process computes on one thread. "Alone" is ``explain_iter`` over the same rows,
in as many processes at once as the bulk run has workers; the forward pass is the model by itself, over batches of
equally long texts. Loading is not counted: a bulk run is timed from the first part of each worker to the last part. On
a machine that does other work too, compare the seconds of the processors and not those of the clock.

A million rows go through the same processes with an engine that gives the same explanation for all of a part's rows:
what is read, cut, handed round, written and counted is as ever, and memory has to stay what it is.

Writes its part of ``bench/results/bulk.json``, and from it and from what ``bulk_kills.py`` wrote the tables of
``bench/results/bulk.md``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import cycle, groupby, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from decompx_fast import DecompX
from decompx_fast.errors import counted

RESULTS = Path(__file__).resolve().parent / "results"
KILLS = {"processes of this machine": "bulk-kills.json", "a cluster of Ray": "bulk-kills-ray.json"}
READ_AHEAD = 1024  # as many as the rows of a part

_TICKS = os.sysconf("SC_CLK_TCK")


class SameForAll(DecompX):
    """Explains the first of some texts, and says that of all."""

    def explain_iter(self, texts: Iterable[Any], **arguments: Any) -> Iterator[Any]:
        texts = list(texts)
        found = super().explain_iter(iter(texts[:1]), **arguments)
        return (same for explanation in found for same in [explanation] * len(texts))


def snippets(file: str | None) -> list[str]:
    """Texts of a file with a column ``text``, or of the held-out data of the evaluation."""
    from decompx_fast.evaluation.snippets import heldout_snippets
    from decompx_fast.request.tables import format_of, read_rows

    if file is None:
        return [one.text for one in heldout_snippets()]
    return [row.values["text"] for row in read_rows(file, format_of(file))]


def resident_mb(process: int, what: str = "VmHWM") -> float:
    """Resident memory of a process: its peak, or what it is now (``VmRSS``)."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(what)), 0.0)


def processor_seconds(process: int) -> float:
    """What a process has computed so far."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def children_of(process: int) -> list[int]:
    """The processes that a process has started, in any of its threads."""
    try:
        files = list(Path(f"/proc/{process}/task").glob("*/children"))
        return [int(child) for file in files for child in file.read_text().split()]
    except OSError:
        return []


def machine() -> dict[str, Any]:
    """What was measured on."""
    import torch

    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "machine": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),  # that this process may use
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
    }


class Watch(threading.Thread):
    """Looks at this process and its children, and at when parts come.

    Attributes:
        peaks: of their memory, in MiB.
        came: of each part, the time, and the seconds that this process, less this thread, and its children have
            computed until then.
        resident: what this process had in memory at each part, in MiB.
    """

    def __init__(self, parts: Path) -> None:
        super().__init__(daemon=True)
        self._parts = parts
        self.peaks: dict[int, float] = {}
        self.came: list[tuple[float, float, float]] = []
        self.resident: list[float] = []
        self.ended = threading.Event()

    def run(self) -> None:
        own = os.getpid()
        while not self.ended.wait(0.02):
            names = os.listdir(self._parts) if self._parts.is_dir() else []
            new = sum(name.startswith("part-") for name in names) - len(self.came)
            children = children_of(own)
            if new:
                parent = processor_seconds(own) - time.thread_time()
                self.came += [(time.perf_counter(), parent, sum(map(processor_seconds, children)))] * new
                self.resident += [resident_mb(own, "VmRSS")] * new
            for process in (own, *children):
                self.peaks[process] = max(self.peaks.get(process, 0.0), resident_mb(process))


def bulk(texts: Iterable[str], workers: int, model: DecompX | None = None) -> dict[str, Any]:
    """A bulk run over some texts."""
    from decompx_fast.bulk import explain_dataset

    with TemporaryDirectory() as folder:
        data, out = Path(folder, "rows.jsonl"), Path(folder, "out")
        with open(data, "w") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        watch = Watch(out / "parts")
        watch.start()
        start = time.perf_counter()
        rows = explain_dataset(data, model, out=out, bias="none", workers=workers, progress=False).rows
        whole = time.perf_counter() - start
        watch.ended.set()
        watch.join()
        written = sum(path.stat().st_size for path in (out / "parts").iterdir())
    # Workers begin at about the same time: the first parts of each are not timed.
    timed = rows - READ_AHEAD * workers
    (begun, *computed_before), (ended, *computed) = watch.came[min(workers, len(watch.came)) - 1], watch.came[-1]
    parent_s, workers_s = (after - before for before, after in zip(computed_before, computed, strict=True))
    own = os.getpid()
    return {
        "rows": rows,
        "rows_a_second": timed / (ended - begun) if timed > 0 else None,
        "parent_ms_a_row": 1e3 * parent_s / timed if timed > 0 else None,
        "workers_ms_a_row": 1e3 * workers_s / timed if timed > 0 else None,
        "seconds_with_loading": whole,
        "bytes_a_row": written / rows,
        "parent_peak_mb": watch.peaks[own],
        "parent_mb": [watch.resident[round(part * (len(watch.resident) - 1) / 10)] for part in range(1, 11)],
        "worker_peak_mb": max(peak for process, peak in watch.peaks.items() if process != own),
    }


def _alone(texts: list[str], read_ahead: int, bias: Any, ready: Any, connection: Any) -> None:
    import torch

    torch.set_num_threads(1)
    explainer = DecompX.demo()
    list(explainer.explain_iter(texts[:64], bias=bias))
    ready.wait()
    start, computed = time.perf_counter(), time.process_time()
    for _ in explainer.explain_iter(texts, bias=bias, read_ahead=read_ahead):
        pass
    connection.send((len(texts) / (time.perf_counter() - start), time.process_time() - computed))


def alone(texts: list[str], processes: int, read_ahead: int = READ_AHEAD, bias: str = "none") -> dict[str, float]:
    """Rows a second of the engine, in several processes at once, each with an equal part of the texts, of which it
    reads so many ahead."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(processes)
    size, ends, running = len(texts) // processes, [], []
    for n in range(processes):
        connection, other = context.Pipe()
        own = texts[n * size : (n + 1) * size]
        running.append(context.Process(target=_alone, args=(own, read_ahead, bias, ready, other)))
        running[-1].start()
        ends.append(connection)
    found = [connection.recv() for connection in ends]
    for process in running:
        process.join()
    return {
        "rows_a_second": sum(rate for rate, _ in found),
        "ms_a_row": 1e3 * sum(seconds for _, seconds in found) / (size * processes),
    }


def forward_pass(texts: list[str], batch: int = 64) -> dict[str, float]:
    """The model by itself, on one thread."""
    import torch

    torch.set_num_threads(1)
    explainer = DecompX.demo()
    ids = sorted((explainer.tokenizer(text)["input_ids"] for text in texts), key=len)
    with torch.inference_mode():
        explainer.model(torch.tensor(ids[:1]))
        start, computed = time.perf_counter(), time.process_time()
        for _, same in groupby(ids, len):
            group = list(same)
            for first in range(0, len(group), batch):
                explainer.model(torch.tensor(group[first : first + batch]))
        seconds = time.perf_counter() - start
        return {
            "rows_a_second": len(ids) / seconds,
            "ms_a_row": 1e3 * (time.process_time() - computed) / len(ids),
        }


def rates_table(found: dict[str, Any]) -> str:
    """How fast bulk runs are, as Markdown."""
    lines = [
        f"`python bench/bulk.py --part rates`: {found['rows']:,} rows, {_place(found)}; load average before it "
        f"{found['load']:.1f}. Processor time is that of the parent and the workers together.",
        "",
        "| workers | bulk, rows a second | the engine alone | bulk / alone | bulk, ms of the processors a row "
        "| the engine alone | alone / bulk | of it the parent | forward pass, rows a second, one thread | ms a row |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    forward = found["forward_pass"]
    for workers, run in found["runs"].items():
        (rate, own), one = (run[name]["rows_a_second"] for name in ("bulk", "alone")), run["bulk"]
        cost = one["parent_ms_a_row"] + one["workers_ms_a_row"]
        lines.append(
            f"| {workers} | {rate:,.1f} | {own:,.1f} | {rate / own:.0%} | {cost:.2f} | {run['alone']['ms_a_row']:.2f} "
            f"| {run['alone']['ms_a_row'] / cost:.0%} | {one['parent_ms_a_row']:.3f} "
            f"| {forward['rows_a_second']:,.1f} | {forward['ms_a_row']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def memory_table(found: dict[str, Any]) -> str:
    """What processes have in memory, as Markdown."""
    lines = [
        f"`python bench/bulk.py --part memory`, {_place(found)}. In MiB, resident; the model's weights and PyTorch are "
        "in it.",
        "",
        "| rows | engine | workers | parent, peak | parent after each tenth of parts | worker, peak | bytes a row |",
        "| ---: | --- | ---: | ---: | --- | ---: | ---: |",
    ]
    for run in found["runs"]:
        lines.append(
            f"| {run['rows']:,} | {run['engine']} | {run['workers']} | {run['parent_peak_mb']:,.0f} "
            f"| {' '.join(f'{mb:.0f}' for mb in run['parent_mb'])} | {run['worker_peak_mb']:,.0f} "
            f"| {run['bytes_a_row']:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def _place(found: dict[str, Any]) -> str:
    """What was measured on."""
    return f"{found['machine']}, {counted(found['cores'], 'core')}, PyTorch {found['torch']}"


def kills_table(where: str, found: dict[str, Any]) -> str:
    """The results of ``bulk_kills.py`` as Markdown."""
    model = "a random encoder of 2 layers, 32 wide" if found["tiny"] else "the embedded model"
    compared, kills = found["compared"], found["kills"]
    parents = ", parent " + " and ".join(f"{found[run]['peak_mb']['parent']:,.0f} MiB" for run in ("killed", "whole"))
    workers = ", worker " + " and ".join(f"{found[run]['peak_mb']['worker']:,.0f} MiB" for run in ("killed", "whole"))
    lines = [
        f"{found['rows']:,} rows on {where}, 2 workers on {counted(found['cores'], 'core')}, {model}, parts of "
        f"{found['rows_of_a_part']}: killed {counted(len(kills), 'time')}, "
        f"{found['killed']['seconds']:,.0f} s in all; without a kill {found['whole']['seconds']:,.0f} s, "
        f"{found['rows'] / found['whole']['seconds']:,.1f} rows a second with loading; load average before it "
        f"{found['load']:.1f}. {compared['rows']:,} rows were compared, {compared['different']} of them different. "
        f"Peak memory of the run that was killed and of the other{parents}{workers}.",
        "",
        "| killed | after parts | s until the next part |",
        "| --- | ---: | ---: |",
        *(f"| {one['what']} | {one['parts_before']} | {one['seconds_to_the_next_part']:.1f} |" for one in kills),
    ]
    return "\n".join(lines) + "\n"


def write_page() -> None:
    """``bulk.md``, from the results that there are."""
    own, parts = results(), ["# Bulk runs\n"]
    for name, table in (("rates", rates_table), ("memory", memory_table)):
        parts += [f"## {name.capitalize()}\n", table(own[name])] if name in own else []
    kills = [(where, RESULTS / name) for where, name in KILLS.items() if (RESULTS / name).exists()]
    if kills:
        parts.append("## Runs that are killed\n\n`python bench/bulk_kills.py`\n")
        parts += [kills_table(where, json.loads(path.read_text())) for where, path in kills]
    parts.append("Faults of other kinds, and how long until work went on: `bench/results/faults.md`.\n")
    (RESULTS / "bulk.md").write_text("\n".join(parts))


def results() -> dict[str, Any]:
    """What this script has found so far, by its parts."""
    own = RESULTS / "bulk.json"
    return dict(json.loads(own.read_text())) if own.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", choices=["rates", "memory"], required=True)
    parser.add_argument("--rows", type=int, default=12_288)
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--many-rows", type=int, default=1_000_000, help="of the run that is there for its memory")
    parser.add_argument("--texts", help="a file with a column 'text', in the place of the snippets")
    asked = parser.parse_args()
    if asked.rows < READ_AHEAD * (max(asked.workers) + 1):
        parser.error(f"--rows: at least {READ_AHEAD * (max(asked.workers) + 1)}, so that there are parts to be timed")
    given, most = snippets(asked.texts), max(asked.workers)

    def texts(rows: int) -> Iterator[str]:
        return (f"{n} {text}" for n, text in enumerate(islice(cycle(given), rows)))

    found: dict[str, Any] = {"rows": asked.rows, **machine()}
    if asked.part == "rates":
        rows = list(texts(asked.rows))
        found["forward_pass"], found["runs"] = forward_pass(rows[:READ_AHEAD]), {}
        for workers in asked.workers:
            found["runs"][str(workers)] = {"bulk": bulk(rows, workers), "alone": alone(rows, workers)}
            print(json.dumps(found), flush=True)
    else:
        engine = "the same explanation for all rows of a part"
        found["runs"] = [{"engine": engine, "workers": most, **bulk(texts(asked.many_rows), most, SameForAll.demo())}]
        real = results().get("rates", {"runs": {}})["runs"]
        found["runs"] += [{"engine": "adjoint", "workers": int(n), **run["bulk"]} for n, run in real.items()]
    (RESULTS / "bulk.json").write_text(json.dumps({**results(), asked.part: found}, indent=1) + "\n")
    write_page()
    print((RESULTS / "bulk.md").read_text())


if __name__ == "__main__":
    main()
