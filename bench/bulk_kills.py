"""A bulk run that is killed at random moments against one that nothing happens to: row for row, and what a kill costs.

    python bench/bulk_kills.py --rows 100000 --kills 5

The rows are the held-out snippets, repeated, each with an id, explained by the adjoint engine (``bias="none"``) in the
embedded model, or with ``--tiny`` in a random encoder of 2 layers, 32 wide, with its tokenizer. The parent and the
workers are killed in turn, with SIGKILL, after a random number of parts and a random part of a second; after the
parent, the same command is run again at once. In the end every column of every row is compared with those of the other
run, but for ``time_s``. With ``--ray`` both runs are on a cluster of two nodes here, and workers are its actors. Writes
``bench/results/bulk-kills.json`` (``bulk-kills-ray.json``), and its part of ``bench/results/bulk.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bulk import KILLS, RESULTS, children_of, machine, resident_mb, snippets, write_page

SEED = 0
ROWS_OF_A_PART = 512


def write_rows(path: Path, rows: int) -> None:
    """Snippets, repeated, with ids."""
    texts = islice(cycle(snippets(None)), rows)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"key": f"row-{n}", "text": text}) + "\n" for n, text in enumerate(texts))


def save_model(folder: Path, tiny: bool) -> None:
    """The embedded model, or a small one with its tokenizer."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from decompx_fast import DecompX

    explainer = DecompX.demo()
    model = explainer.model
    if tiny:
        torch.manual_seed(SEED)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        model = BertForSequenceClassification(BertConfig(vocab_size=model.config.vocab_size, **sizes)).eval()
    model.save_pretrained(folder)
    explainer.tokenizer.save_pretrained(folder)


class Run:
    """The command, run again when it was killed, with what is seen of it from outside.

    Args:
        command: what is run.
        out: the folder of the results.
    """

    def __init__(self, command: list[str], out: Path) -> None:
        self._command = command
        self._parts = out / "parts"
        self.peaks = {"parent": 0.0, "worker": 0.0}
        self.begin()

    def begin(self) -> None:
        self._process = subprocess.Popen(self._command)

    def parts(self) -> int:
        return sum(name.startswith("part-") for name in os.listdir(self._parts)) if self._parts.is_dir() else 0

    def workers(self) -> list[int]:
        """The processes that explain: of Ray, those of actors that have loaded the model."""
        if "--ray" in self._command:
            return [n for n in _processes() if _name_of(n).startswith("ray::MapWorker")]
        return [n for n in children_of(self._process.pid) if resident_mb(n) > 100]

    def watch(self, parts: int | None = None) -> int:
        """Look on until there are so many parts, or the command ends; gives how many there are."""
        while self._process.poll() is None and (parts is None or self.parts() < parts):
            self.peaks["parent"] = max(self.peaks["parent"], resident_mb(self._process.pid))
            self.peaks["worker"] = max([self.peaks["worker"], *map(resident_mb, self.workers())])
            time.sleep(0.05)
        if self._process.poll():
            raise SystemExit(f"the command ended with exit code {self._process.returncode}")
        return self.parts()

    def kill(self, what: str) -> dict[str, Any]:
        """Kill the parent or a worker, and wait for the next part.

        Returns:
            Seconds from the kill to it, and how many parts there were.
        """
        before, victims = self.parts(), self.workers()
        start = time.perf_counter()
        if what == "parent" or not victims:
            what = "parent"
            self._process.kill()
            self._process.wait()
            before = self.parts()
            self.begin()
        else:
            os.kill(random.choice(victims), signal.SIGKILL)
        self.watch(before + 1)
        return {"what": what, "parts_before": before, "seconds_to_the_next_part": time.perf_counter() - start}


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _name_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def rows_of(out: Path) -> Iterator[dict[str, Any]]:
    """All rows of all parts, in order, but for how long they took."""
    import pyarrow.parquet

    for path in sorted((out / "parts").glob("part-*.parquet")):
        yield from pyarrow.parquet.read_table(path).drop_columns(["time_s"]).to_pylist()


def compare(one: Path, other: Path, rows: int) -> dict[str, Any]:
    """How the rows of two runs differ."""
    count = different = 0
    for first, second in zip(chain(rows_of(one), [None]), chain(rows_of(other), [None]), strict=True):
        if first is None or second is None:
            break
        if first["row"] != count or first["id"] != f"row-{count}":
            raise SystemExit(f"row {count} is missing, or there twice: {first['row']} with the id {first['id']}")
        count += 1
        different += first != second
    return {"rows": count, "all_there": count == rows, "different": different}


@contextmanager
def cluster(asked: bool) -> Iterator[list[str]]:
    """What of the command line says where to compute: two nodes of Ray with one worker each, or processes."""
    if not asked:
        yield ["--workers", "2"]
        return
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # as processes of the other run
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        nodes.add_node(num_cpus=1)
        yield ["--ray", nodes.address]
    finally:
        nodes.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="a small encoder in the place of the embedded one")
    parser.add_argument("--ray", action="store_true")
    asked = parser.parse_args()
    random.seed(SEED)
    with TemporaryDirectory() as folder, cluster(asked.ray) as where:
        data, model, one, other = (Path(folder, name) for name in ("rows.jsonl", "model", "killed", "whole"))
        write_rows(data, asked.rows)
        save_model(model, asked.tiny)
        options = ["--model", str(model), "--id-column", "key", "--bias", "none"]
        options += ["--rows-of-a-part", str(ROWS_OF_A_PART), *where]
        command = [sys.executable, "-m", "decompx_fast", "bulk", str(data), *options]
        found: dict[str, Any] = {**vars(asked), "rows_of_a_part": ROWS_OF_A_PART, **machine(), "kills": []}

        n_parts = -(-asked.rows // ROWS_OF_A_PART)
        moments = sorted(random.sample(range(1, n_parts - 4), asked.kills))
        start = time.perf_counter()
        run = Run([*command, "--out", str(one)], one)
        for n, moment in enumerate(moments):
            run.watch(moment)
            time.sleep(random.random())
            found["kills"].append(run.kill("worker" if asked.ray or n % 2 else "parent"))
            print(json.dumps(found["kills"][-1]), flush=True)
        run.watch()
        found["killed"] = {"seconds": time.perf_counter() - start, "peak_mb": run.peaks}

        start = time.perf_counter()
        run = Run([*command, "--out", str(other)], other)
        run.watch()
        found["whole"] = {"seconds": time.perf_counter() - start, "peak_mb": run.peaks}
        found["compared"] = compare(one, other, asked.rows)
    name = list(KILLS.values())[asked.ray]
    (RESULTS / name).write_text(json.dumps(found, indent=1) + "\n")
    write_page()
    print(json.dumps(found, indent=1))
    if found["compared"]["different"] or not found["compared"]["all_there"]:
        raise SystemExit("the runs differ")


if __name__ == "__main__":
    main()
