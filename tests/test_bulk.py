"""Bulk runs: what is in their folders, whatever happened to the runs that filled them."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import evaluation_samples
import pyarrow.parquet
import pytest
import torch

from decompx_fast import DecompX, Failure
from decompx_fast.bulk import explain_dataset, load_results
from decompx_fast.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
N_TEXTS = 150
ROWS = 16  # of a part
OPTIONS = {"bias": "none", "rows_of_a_part": ROWS, "workers": 1, "progress": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return evaluation_samples.save_classifier(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return evaluation_samples.write_texts(tmp_path_factory.mktemp("data") / "texts.csv", N_TEXTS)


@pytest.fixture(scope="module")
def whole(model, data, tmp_path_factory) -> Path:
    """The folder of a run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "out"
    found = explain_dataset(data, model, out=out, **OPTIONS)
    assert (found.rows, found.explained, found.errors, found.workers_replaced) == (N_TEXTS, N_TEXTS, 0, 0)
    return out


def rows_of(out: Path) -> list[dict]:
    """All rows of all parts, but for how long they took."""
    paths = sorted((out / "parts").glob("part-*.parquet"))
    rows = [row for path in paths for row in pyarrow.parquet.read_table(path).drop_columns(["time_s"]).to_pylist()]
    assert [row["row"] for row in rows] == list(range(len(rows)))  # none lost, none twice, in order
    return rows


def command(data: Path | str, model: str, out: Path, *more: str) -> list[str]:
    asked = ["--out", str(out), "--model", model, "--bias", "none", "--rows-of-a-part", str(ROWS), "--workers", "1"]
    return [sys.executable, "-m", "decompx_fast.cli", "bulk", str(data), *asked, *more]


def test_rows_are_what_the_explainer_says(model, data, whole):
    texts = [line.split(",")[0] for line in data.read_text().splitlines()[1:]]
    alone = DecompX.from_pretrained(model).explain(texts, bias="none")
    found = list(load_results(whole))
    assert len(found) == len(alone) == N_TEXTS
    for number, (one, other) in enumerate(zip(found, alone, strict=True)):
        assert (one.tokens, one.texts, one.spans, one.labels) == (other.tokens, other.texts, other.spans, other.labels)
        assert (one.options, one.engine, one.task) == (other.options, other.engine, other.task)
        assert one.scores.dtype == other.scores.dtype
        # Batches of other sizes: sums in another order, in float32.
        torch.testing.assert_close(one.scores, other.scores, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-6)
        assert one.metadata["input"] == number and one.metadata["line"] == number + 2
    assert json.loads(rows_of(whole)[3]["columns"]) == {"label": "1"}


@pytest.mark.slow
def test_a_run_killed_at_random_moments_goes_on_where_it_was(model, data, whole, tmp_path):
    out, draw = tmp_path / "out", random.Random(0)
    n_parts = -(-N_TEXTS // ROWS)
    for wanted in (1, draw.randrange(2, n_parts - 1)):
        process = subprocess.Popen(command(data, model, out), cwd=ROOT, stderr=subprocess.DEVNULL)
        try:
            while len(list(out.glob("parts/part-*"))) < wanted and process.poll() is None:
                time.sleep(0.002)
            time.sleep(draw.random() * 0.02)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    before = {path: path.stat().st_mtime_ns for path in out.glob("parts/part-*")}
    assert 0 < len(before) < n_parts, "it was killed too late to tell"
    (out / "parts" / ".0123456789abcdef.tmp").write_bytes(b"half a part")
    found = explain_dataset(data, model, out=out, **OPTIONS)
    assert found.rows == N_TEXTS and found.explained < N_TEXTS
    assert {path: path.stat().st_mtime_ns for path in before} == before  # nothing done twice
    assert not list(out.glob("parts/.*"))
    assert rows_of(out) == rows_of(whole)
