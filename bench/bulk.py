"""The rate of bulk runs against those of the engine alone and of one forward pass, and the memory of their processes.

    python bench/bulk.py --rows 4096

The rows are the held-out snippets, repeated, each with its number before it; the model is the embedded one, by the
adjoint engine (``bias="none"``). Every process computes on one thread. "Alone" is ``explain_iter`` over the same rows,
in as many processes at once as the bulk run has workers; the forward pass is the model by itself, over batches of
equally long texts. Loading is not counted: a bulk run is timed from its first part to its last one. Writes
``bench/results/bulk.json``, and the table of ``bench/results/bulk.md`` from it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import threading
import time
from itertools import cycle, groupby, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
FAULTS = "## Faults"
READ_AHEAD = 1024  # as many as the rows of a part


def snippets(file: str | None) -> list[str]:
    """Texts of a file with a column ``text``, or of the held-out data of the evaluation."""
    from decompx_fast.evaluation.snippets import heldout_snippets
    from decompx_fast.request.tables import format_of, read_rows

    if file is None:
        return [one.text for one in heldout_snippets()]
    return [row.values["text"] for row in read_rows(file, format_of(file))]


def resident_mb(process: int) -> float:
    """Peak resident memory of a process."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


class Watch(threading.Thread):
    """Looks at the memory of this process and its children, and at when parts come."""

    def __init__(self, parts: Path) -> None:
        super().__init__(daemon=True)
        self._parts = parts
        self.peaks: dict[int, float] = {}
        self.came: list[float] = []
        self.ended = threading.Event()

    def run(self) -> None:
        own = os.getpid()
        while not self.ended.wait(0.02):
            new = len(list(self._parts.glob("part-*"))) - len(self.came)
            self.came += [time.perf_counter()] * new
            children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
            for process in (own, *map(int, children)):
                self.peaks[process] = max(self.peaks.get(process, 0.0), resident_mb(process))


def bulk(texts: list[str], workers: int) -> dict[str, Any]:
    """A bulk run over some texts."""
    from decompx_fast.bulk import explain_dataset

    with TemporaryDirectory() as folder:
        data, out = Path(folder, "rows.jsonl"), Path(folder, "out")
        data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        watch = Watch(out / "parts")
        watch.start()
        start = time.perf_counter()
        explain_dataset(data, out=out, bias="none", workers=workers, progress=False)
        whole = time.perf_counter() - start
        watch.ended.set()
        watch.join()
        written = sum(path.stat().st_size for path in (out / "parts").iterdir())
    timed = len(texts) - READ_AHEAD * workers  # workers begin at about the same time: the first parts of each are not
    children = [peak for process, peak in watch.peaks.items() if process != os.getpid() and peak > 100]
    return {
        "rows_a_second": timed / (watch.came[-1] - watch.came[workers - 1]),
        "seconds_with_loading": whole,
        "bytes_a_row": written / len(texts),
        "parent_peak_mb": watch.peaks[os.getpid()],
        "worker_peak_mb": max(children),
    }


def _alone(texts: list[str], read_ahead: int, bias: Any, ready: Any, connection: Any) -> None:
    import torch

    from decompx_fast import DecompX

    torch.set_num_threads(1)
    explainer = DecompX.demo()
    list(explainer.explain_iter(texts[:64], bias=bias))
    ready.wait()
    start = time.perf_counter()
    for _ in explainer.explain_iter(texts, bias=bias, read_ahead=read_ahead):
        pass
    connection.send(len(texts) / (time.perf_counter() - start))


def alone(texts: list[str], processes: int, read_ahead: int = READ_AHEAD, bias: str = "none") -> float:
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
    found = sum(connection.recv() for connection in ends)
    for process in running:
        process.join()
    return found


def forward_pass(texts: list[str], batch: int = 64) -> float:
    """Rows a second of the model by itself, on one thread."""
    import torch

    from decompx_fast import DecompX

    torch.set_num_threads(1)
    explainer = DecompX.demo()
    ids = sorted((explainer.tokenizer(text)["input_ids"] for text in texts), key=len)
    with torch.inference_mode():
        explainer.model(torch.tensor(ids[:1]))
        start = time.perf_counter()
        for _, same in groupby(ids, len):
            group = list(same)
            for first in range(0, len(group), batch):
                explainer.model(torch.tensor(group[first : first + batch]))
        return len(ids) / (time.perf_counter() - start)


def table(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"`python bench/bulk.py --rows {found['rows']}`: {found['machine']}, {found['cores']} cores, PyTorch "
        f"{found['torch']}; load average before it {found['load']:.1f}.",
        "",
        "| workers | bulk, rows a second | the engine alone | bulk / alone | forward pass of the model, one thread "
        "| parent, MiB | worker, MiB | bytes a row |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for workers, run in found["runs"].items():
        rate, own = run["bulk"]["rows_a_second"], run["alone"]
        lines.append(
            f"| {workers} | {rate:,.1f} | {own:,.1f} | {rate / own:.0%} | {found['forward_pass']:,.1f} "
            f"| {run['bulk']['parent_peak_mb']:,.0f} | {run['bulk']['worker_peak_mb']:,.0f} "
            f"| {run['bulk']['bytes_a_row']:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--texts", help="a file with a column 'text', in the place of the snippets")
    asked = parser.parse_args()
    if asked.rows < READ_AHEAD * (max(asked.workers) + 1):
        parser.error(f"--rows: at least {READ_AHEAD * (max(asked.workers) + 1)}, so that there are parts to be timed")
    import torch

    texts = [f"{n} {text}" for n, text in enumerate(islice(cycle(snippets(asked.texts)), asked.rows))]
    found: dict[str, Any] = {
        "rows": asked.rows,
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "forward_pass": forward_pass(texts[:READ_AHEAD]),
        "runs": {},
    }
    for workers in asked.workers:
        found["runs"][str(workers)] = {"bulk": bulk(texts, workers), "alone": alone(texts, workers)}
        print(json.dumps(found), flush=True)
    (RESULTS / "bulk.json").write_text(json.dumps(found, indent=1) + "\n")
    page = RESULTS / "bulk.md"
    faults = page.read_text().partition(FAULTS)[2] if page.exists() else ""  # written by hand, and kept
    page.write_text(f"# Bulk runs\n\n{table(found)}" + (f"\n{FAULTS}{faults}" if faults else ""))
    print(table(found))


if __name__ == "__main__":
    main()
