"""How long ``decompx-fast summarize`` takes over many results, and how much memory: rows as a bulk run writes them.

    python bench/summarize_many.py [--rows N ...] [--work DIR] [--out bench/results/summarize.json]

The words are those of the held-out reviews, drawn at random, with a share of words that occur once; scores are random
numbers, which cost what real ones do. Nothing is explained.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from decompx_fast import DecompX, Explanation
from decompx_fast.bulk.parts import Parts, record_of
from decompx_fast.bulk.units import Item, Span

ROOT = Path(__file__).resolve().parent.parent
REVIEWS = ROOT / "tests" / "data" / "movie-snippets-heldout.tsv"

ROWS_OF_A_PART = 1024
WORDS_OF_A_TEXT = (8, 40)


def texts(count: int) -> Iterator[str]:
    """Texts of words as they are in reviews, each tenth with a word of its own."""
    lines = REVIEWS.read_text(encoding="utf-8").splitlines()[1:]
    words = [word for line in lines for word in line.rpartition("\t")[2].split()]
    draw = random.Random(0)
    for n in range(count):
        chosen = draw.choices(words, k=draw.randint(*WORDS_OF_A_TEXT))
        yield " ".join([*chosen, f"title{n}"] if n % 10 == 0 else chosen)


def explanation(tokenizer: Any, text: str) -> Explanation:
    """Of a text, with random scores of two classes that add up to the logits."""
    read = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    special = tuple(map(bool, read["special_tokens_mask"]))
    scores = torch.randn(len(special), 2) / 8
    labels = ("NEGATIVE", "POSITIVE")
    return Explanation(
        tokens=tuple(tokenizer.convert_ids_to_tokens(read["input_ids"])),
        token_ids=tuple(read["input_ids"]),
        spans=tuple(None if s else (0, *place) for s, place in zip(special, read["offset_mapping"], strict=True)),
        texts=(text,),
        special=special,
        scores=scores,
        targets=labels,
        target_ids=(0, 1),
        target_logits=scores.sum(0),
        logits=scores.sum(0),
        labels=labels,
        problem_type="single_label",
        completeness_error=1e-7,
        bias_token=None,
        options={"bias": "absdot"},
        engine="forward",
        time_s=0.01,
        metadata={"model": "demo"},
    )


def write(folder: Path, rows: int) -> None:
    """A folder of results, as :func:`decompx_fast.bulk.explain_dataset` leaves it."""
    (folder / "parts").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"output": "parquet", "options": {"bias": "absdot"}}))
    parts, tokenizer = Parts(folder / "parts", "parquet", {}), DecompX.demo().tokenizer
    records: list[dict[str, Any]] = []
    for n, text in enumerate(texts(rows)):
        item = Item(n, "reviews.csv", "line", n + 2, str(n), json.dumps({"stars": str(n % 5)}), text)
        records.append(record_of(item, explanation(tokenizer, text)))
        if len(records) == ROWS_OF_A_PART or n == rows - 1:
            parts.write(Span(n + 1 - len(records), len(records), f"{n:016x}"), records)
            records = []


def measure(folder: Path, rows: int) -> dict[str, Any]:
    """Seconds, those of the processor too, and peak memory of the command, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "decompx_fast",
        "summarize",
        str(folder),
        "--quiet",
        "--html",
        str(folder / "page"),
    ]
    start = time.perf_counter()
    process = subprocess.Popen([*command, "--json", str(folder / "found.json"), "--min-documents", "5"], cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"summarize ended with {status}")
    found = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    size = sum(path.stat().st_size for path in (folder / "parts").iterdir())
    return {
        "rows": rows,
        "texts": found["texts"],
        "time_s": round(seconds, 1),
        "processor_s": round(usage.ru_utime + usage.ru_stime, 1),
        "rows_per_s": round(rows / seconds),
        "peak_mib": usage.ru_maxrss >> 10,
        "results_mib": size >> 20,
        "page_kb": (folder / "page").stat().st_size // 1000,
    }


def main() -> None:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--work", type=Path, help="results are kept there, and used again")
    parser.add_argument("--out", type=Path, help="JSON, and a table beside it")
    given = parser.parse_args()
    work = given.work or Path(tempfile.mkdtemp())
    found = []
    for rows in given.rows:
        folder = work / f"results-{rows}"
        if not folder.exists():
            write(work / "writing", rows)
            (work / "writing").rename(folder)
        found.append(measure(folder, rows))
        print(found[-1], file=sys.stderr)
    if given.work is None:
        shutil.rmtree(work)
    if given.out is not None:
        about = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
        given.out.write_text(json.dumps({**about, "runs": found}, indent=1) + "\n", encoding="utf-8")
        given.out.with_suffix(".md").write_text(table(found), encoding="utf-8")


def table(found: list[dict[str, Any]]) -> str:
    """The measurements for people."""
    lines = [
        "# Summaries of many results",
        "",
        "`decompx-fast summarize` over folders of results (two classes, texts of 8 to 40 words), with a page and JSON.",
        "`python bench/summarize_many.py --out bench/results/summarize.json` writes this.",
        "",
        "Memory does not grow with rows, but with words (at most 100,000 are kept) and the texts shown of each. One",
        "thread computes: what is more than the processor's time is what else ran on the machine meanwhile.",
        "",
        "| rows | results, MiB | time, s | of the processor, s | rows/s | peak memory, MiB | page, kB |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    names = ("rows", "results_mib", "time_s", "processor_s", "rows_per_s", "peak_mib", "page_kb")
    lines += ["| " + " | ".join(f"{one[name]:,}" for name in names) + " |" for one in found]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
