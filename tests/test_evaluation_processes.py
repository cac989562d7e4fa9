"""Runs of the evaluation that are killed, or work in several processes, give the table of one that is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import evaluation_samples
import pyarrow.parquet
import pytest
import warm

from decompx_fast.evaluation import evaluate
from decompx_fast.evaluation.work import CHUNK, EvaluationError

ROOT = Path(__file__).resolve().parent.parent
N_TEXTS = 200
OPTIONS = {"methods": "random,occlusion", "metrics": "aopc,sufficiency,prediction-performance"}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return evaluation_samples.write_texts(tmp_path_factory.mktemp("data") / "texts.csv", N_TEXTS)


@pytest.fixture(scope="module")
def whole(model, data, tmp_path_factory) -> Path:
    """The folder of an uninterrupted run in this process."""
    return evaluate(data, model, out=tmp_path_factory.mktemp("whole"), **OPTIONS).folder


def table_of(folder: Path) -> dict:
    """All numbers of a run that are not times."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    del summary["seconds_per_text"]
    return summary


def rows_of(folder: Path) -> list[dict]:
    return pyarrow.parquet.read_table(folder / "results.parquet").drop_columns(["seconds"]).to_pylist()


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(model, data, whole, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "decompx_fast.cli", "evaluate", "--data", data, "--model", model]
    asked = [f"--{name}={value}" for name, value in OPTIONS.items()]
    process = warm.popen([*command, *asked, "--out", out], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        finished: list[Path] = []
        while len(finished) < 2 and process.poll() is None:
            time.sleep(0.002)
            finished = list(out.glob("parts/*/*.parquet"))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    n_parts = 2 * -(-N_TEXTS // CHUNK)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in out.glob("parts/*/*.parquet")}
    assert 2 <= len(before) < n_parts
    assert not (out / "summary.json").exists()
    left = out / "parts" / "random" / ".0123456789abcdef.tmp"  # as a part that was being written
    left.write_bytes(b"half a file")

    evaluate(data, model, out=out, **OPTIONS)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in before} == before  # nothing done twice
    assert len(list(out.glob("parts/*/*"))) == n_parts and not left.exists()
    assert table_of(out) == table_of(whole)
    assert rows_of(out) == rows_of(whole)


@pytest.mark.slow
def test_workers_change_nothing(model, data, whole, tmp_path):
    evaluate(data, model, out=tmp_path, **OPTIONS, workers=2)
    assert table_of(tmp_path) == table_of(whole)
    assert rows_of(tmp_path) == rows_of(whole)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux which processes there are")
def test_a_run_that_is_ended_leaves_no_process_at_work(model, data, tmp_path, monkeypatch):
    """By Ctrl-C here, and by SIGTERM on the command line, which raises the same."""
    asleep = tmp_path / "asleep"
    asleep.mkdir()
    monkeypatch.setenv(evaluation_samples.ASLEEP, str(asleep))
    ended: list[float] = []

    def end_it() -> None:
        while len(list(asleep.iterdir())) < 2:
            time.sleep(0.05)
        ended.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # also where tests are started deaf to it
    try:
        threading.Thread(target=end_it, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            evaluate(data, model, out=tmp_path / "out", methods=[evaluation_samples.SLEEPER], workers=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - ended[0] < 60  # of the 600 seconds that a part takes
    assert not [one.name for one in asleep.iterdir() if Path("/proc", one.name).exists()]


@pytest.mark.slow
def test_a_process_that_dies_ends_the_run(model, data, tmp_path, monkeypatch):
    monkeypatch.setenv(evaluation_samples.ASLEEP, str(tmp_path))
    found = threading.Thread(target=_kill_the_first, args=(tmp_path,), daemon=True)
    found.start()
    with pytest.raises(EvaluationError, match=r"a worker process ended \(signal 9\) before its work was done.*is kept"):
        evaluate(data, model, out=tmp_path / "out", methods=[evaluation_samples.SLEEPER], workers=2)


def _kill_the_first(folder: Path) -> None:
    while not (there := [one for one in folder.iterdir() if one.name.isdecimal()]):
        time.sleep(0.05)
    os.kill(int(there[0].name), signal.SIGKILL)
