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
import warm

import decompx_fast.calls.job
from decompx_fast import DecompX, Failure
from decompx_fast.bulk import explain_dataset, load_results
from decompx_fast.errors import InputError, OptionError

ROOT = Path(__file__).resolve().parent.parent
N_TEXTS = 150
ROWS = 16  # of a part
OPTIONS = {"bias": "none", "rows_of_a_part": ROWS, "workers": 0, "progress": False}


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
        process = warm.popen(command(data, model, out), cwd=ROOT, stderr=subprocess.DEVNULL)
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


def write_rows(path: Path, texts: list, *, mode: str = "w") -> Path:
    with open(path, mode, encoding="utf-8") as file:
        file.writelines(json.dumps({"key": f"r{n}", "text": text}) + "\n" for n, text in enumerate(texts))
    return path


def test_input_that_has_grown_is_gone_on_with(model, tmp_path):
    file, out = write_rows(tmp_path / "a.jsonl", ["good film"] * 20), tmp_path / "out"
    explain_dataset(tmp_path / "*.jsonl", model, out=out, **OPTIONS)
    write_rows(file, ["bad film"] * 9, mode="a")
    found = explain_dataset(tmp_path / "*.jsonl", model, out=out, **OPTIONS)
    assert (found.rows, found.explained) == (29, 9)
    write_rows(tmp_path / "0.jsonl", ["what a film"] * 4)  # sorts before, and comes after: numbers stay
    found = explain_dataset(tmp_path / "*.jsonl", model, out=out, **OPTIONS)
    assert (found.rows, found.explained) == (33, 4)
    assert [row["texts"][0] for row in rows_of(out)] == ["good film"] * 20 + ["bad film"] * 9 + ["what a film"] * 4


def test_input_that_has_changed_or_shrunk_is_refused(model, tmp_path):
    file, out = write_rows(tmp_path / "a.jsonl", ["good film"] * 40), tmp_path / "out"
    explain_dataset(file, model, out=out, **OPTIONS)
    texts = ["good film"] * 17 + ["other film"] + ["good film"] * 22
    write_rows(file, texts)
    with pytest.raises(InputError, match=r"rows 16 to 31 \(the first is line 17 of .*a\.jsonl\) were others"):
        explain_dataset(file, model, out=out, **OPTIONS)
    (part,) = out.glob("parts/part-000000000016-*")
    with pytest.raises(InputError, match=f"to have these rows explained anew, delete {part.stem}"):
        explain_dataset(file, model, out=out, **OPTIONS)
    part.unlink()
    assert explain_dataset(file, model, out=out, **OPTIONS).explained == 16
    assert rows_of(out)[17]["texts"] == ["other film"]
    write_rows(file, texts[:32])
    with pytest.raises(InputError, match="there are 32 rows, and later ones"):
        explain_dataset(file, model, out=out, **OPTIONS)
    write_rows(file, texts[:30])
    with pytest.raises(InputError, match="rows 16 to 31 .* were others"):
        explain_dataset(file, model, out=out, **OPTIONS)
    with pytest.raises(InputError, match="a.jsonl, which is not among the input now"):
        explain_dataset(write_rows(tmp_path / "b.jsonl", ["good film"]), model, out=out, **OPTIONS)


def test_a_folder_of_another_job_is_refused(model, data, whole, tmp_path):
    before = rows_of(whole)
    with pytest.raises(InputError, match="results of other settings .*bias"):
        explain_dataset(data, model, out=whole, **{**OPTIONS, "bias": "cls"})
    other = DecompX.from_pretrained(model)
    with torch.no_grad():
        other.model.classifier.bias += 1
    with pytest.raises(InputError, match="results of other settings .*model_sha256"):
        explain_dataset(data, other, out=whole, **OPTIONS)
    assert rows_of(whole) == before


BAD = ["good film", "", "a fine film", 7, "good " * 90, "dull"]


@pytest.mark.parametrize("output", ["parquet", "jsonl"])
def test_rows_that_cannot_be_explained_are_rows_with_their_errors(model, tmp_path, output):
    file, out = write_rows(tmp_path / "a.jsonl", BAD), tmp_path / "out"
    found = explain_dataset(file, model, out=out, id_column="key", output=output, **OPTIONS)
    assert (found.rows, found.errors) == (6, 3)
    results = list(load_results(out))
    assert [one.ok for one in results] == [True, False, True, False, False, True]
    assert [one.input for one in results if isinstance(one, Failure)] == [1, 3, 4]
    assert "line 2 of" in results[1].error and "line 4 of" in results[3].error
    assert "line 5 of" in results[4].error and "r4" in results[4].error
    assert results[2].metadata["id"] == "r2"
    again = explain_dataset(file, model, out=out, id_column="key", output=output, retry_errors=True, **OPTIONS)
    assert (again.rows, again.explained, again.errors) == (6, 3, 3)


def test_errors_are_explained_again_where_that_is_asked_for(model, tmp_path, monkeypatch):
    file, out = write_rows(tmp_path / "a.jsonl", ["good film", "bad film", "dull film"]), tmp_path / "out"
    run = decompx_fast.calls.job.Job.run

    def fails(job, batch):
        if any("bad film" in encoded.texts for encoded, _ in batch):
            raise MemoryError
        return run(job, batch)

    with monkeypatch.context() as patch:
        patch.setattr(decompx_fast.calls.job.Job, "run", fails)
        assert explain_dataset(file, model, out=out, **OPTIONS).errors == 1
        assert [one.ok for one in load_results(out)] == [True, False, True]
    assert explain_dataset(file, model, out=out, **OPTIONS).explained == 0
    found = explain_dataset(file, model, out=out, retry_errors=True, **OPTIONS)
    assert (found.explained, found.errors) == (1, 0)
    assert [one.texts for one in load_results(out)] == [("good film",), ("bad film",), ("dull film",)]


def test_the_first_error_ends_a_run_that_shall_stop(model, tmp_path):
    file, out = write_rows(tmp_path / "a.jsonl", ["good film"] * 40 + [""] + ["dull film"] * 40), tmp_path / "out"
    with pytest.raises(InputError, match="line 41 of"):
        explain_dataset(file, model, out=out, on_error="stop", **OPTIONS)
    assert len(rows_of(out)) == 32
    with pytest.raises(InputError, match="line 41 of"):
        explain_dataset(file, model, out=out, on_error="stop", **OPTIONS)
    assert explain_dataset(file, model, out=out, **OPTIONS).errors == 1
    assert len(rows_of(out)) == 81


@pytest.mark.slow
def test_a_disk_that_is_full_leaves_whole_parts(model, data, whole, tmp_path):
    """A limit on the size of a file, as the system's signal and error for it, in a process of its own."""
    out = tmp_path / "out"
    largest = max(path.stat().st_size for path in whole.glob("parts/part-*"))
    limited = f"""
import resource, sys
from decompx_fast.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({largest // 2}, {largest // 2}))
sys.exit(main({[*command(data, model, out)[3:], "--workers", "0"]!r}))
"""
    process = warm.run([sys.executable, "-c", limited], cwd=ROOT)
    assert process.returncode == 1
    assert "cannot be written" in process.stderr and "Traceback" not in process.stderr
    assert explain_dataset(data, model, out=out, **OPTIONS).rows == N_TEXTS
    assert not list(out.glob("parts/.*"))
    assert rows_of(out) == rows_of(whole)


def test_rows_of_a_program_are_read_too(model, tmp_path):
    rows = [{"text": "good film", "n": 1}, {"text": "bad film", "n": 2}]
    assert explain_dataset(rows, model, out=tmp_path / "out", **OPTIONS).rows == 2
    assert [json.loads(row["columns"]) for row in rows_of(tmp_path / "out")] == [{"n": 1}, {"n": 2}]


def test_results_that_have_no_column_are_refused(model, data, tmp_path):
    with pytest.raises(OptionError, match="stages=.*no column"):
        explain_dataset(data, model, out=tmp_path / "out", stages=("encoder",), **OPTIONS)
    with pytest.raises(InputError, match="is no folder of a bulk run"):
        load_results(tmp_path)
