"""The rate of a bulk run against that of the engine alone, and the memory of its processes.

    python bench/bulk.py --rows 20000 --workers 2

The rows are the held-out snippets, repeated, each with its number before it; the model is the embedded one, by the
adjoint engine (``bias="none"``). The engine alone is ``explain_iter`` on one thread in this process, over the first
rows. Writes ``bench/results/bulk.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
ALONE_ROWS = 1024


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
    """Looks at the memory of this process and its children."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[int, float] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        own = os.getpid()
        while not self.ended.wait(1.0):
            children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
            for process in (own, *map(int, children)):
                self.peaks[process] = max(self.peaks.get(process, 0.0), resident_mb(process))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--texts", help="a file with a column 'text', in the place of the snippets")
    asked = parser.parse_args()
    from decompx_fast.bulk import explain_dataset

    watch = Watch()
    with TemporaryDirectory() as folder:
        texts = [f"{n} {text}" for n, text in enumerate(islice(cycle(snippets(asked.texts)), asked.rows))]
        data = Path(folder, "rows.jsonl")
        data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        watch.start()
        start = time.perf_counter()
        explain_dataset(data, out=Path(folder, "out"), bias="none", workers=asked.workers)
        seconds = time.perf_counter() - start
        watch.ended.set()
        written = sum(path.stat().st_size for path in Path(folder, "out", "parts").iterdir())
    alone = rate_alone(texts[:ALONE_ROWS])
    own = os.getpid()
    workers = [peak for process, peak in watch.peaks.items() if process != own]
    load = os.getloadavg()
    command = f"python bench/bulk.py --rows {asked.rows} --workers {asked.workers}"
    lines = [
        "# Bulk runs",
        "",
        f"`{command}` on {os.cpu_count()} cores, with a load average of {load[0]:.1f} over the last minute and "
        f"{load[2]:.1f} over the last 15.",
        "",
        "| what | value |",
        "| --- | --- |",
        f"| rows | {asked.rows:,} |",
        f"| seconds, with the loading of the model | {seconds:,.1f} |",
        f"| rows a second, with the loading | {asked.rows / seconds:,.1f} |",
        f"| rows a second of the engine alone, one thread, measured after it | {alone:,.1f} |",
        f"| peak memory of the parent, MiB | {watch.peaks[own]:,.0f} |",
        f"| peak memory of each worker, MiB | {', '.join(f'{peak:,.0f}' for peak in workers)} |",
        f"| bytes a row | {written / asked.rows:,.0f} |",
    ]
    (ROOT / "bench" / "results" / "bulk.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def rate_alone(texts: list[str]) -> float:
    """Rows a second of the engine."""
    import torch

    from decompx_fast import DecompX

    torch.set_num_threads(1)
    explainer = DecompX.demo()
    list(explainer.explain_iter(texts[:64], bias="none"))
    start = time.perf_counter()
    for _ in explainer.explain_iter(texts, bias="none", read_ahead=len(texts)):
        pass
    return len(texts) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
