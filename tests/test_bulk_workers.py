"""Bulk runs in several processes, which are killed, interrupted, and fed what kills them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import evaluation_samples
import pytest
import torch
from deadly import deadly
from test_bulk import N_TEXTS, OPTIONS, ROOT, command, rows_of, write_rows

from decompx_fast.bulk import explain_dataset, load_results

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return evaluation_samples.write_texts(tmp_path_factory.mktemp("data") / "texts.csv", N_TEXTS)


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost(model, data, tmp_path):
    explain_dataset(data, model, out=tmp_path / "whole", **OPTIONS)
    explainer = deadly(model, "hero", tmp_path / "once")
    out = tmp_path / "out"
    found = explain_dataset(data, explainer, out=out, **{**OPTIONS, "workers": 2})
    assert (tmp_path / "once").exists() and found.workers_replaced == 1
    assert (found.rows, found.errors) == (N_TEXTS, 0)
    texts = [row["texts"] for row in rows_of(out)]
    assert texts == [row["texts"] for row in rows_of(tmp_path / "whole")]
    for one, other in zip(load_results(out), load_results(tmp_path / "whole"), strict=True):
        # A model that is pickled with its hook has its weights at other places of memory, and so rounds differently.
        torch.testing.assert_close(one.scores, other.scores, rtol=1e-4, atol=1e-6)


def test_a_row_that_kills_its_worker_again_and_again_is_marked(model, tmp_path):
    texts = ["good film", "dull film", "a mess of a film", "sharp film", "warm film"]
    file, out = write_rows(tmp_path / "a.jsonl", texts), tmp_path / "out"
    found = explain_dataset(file, deadly(model, "mess"), out=out, **{**OPTIONS, "workers": 1})
    assert (found.rows, found.errors, found.workers_replaced) == (5, 1, 3)
    results = list(load_results(out))
    assert [one.ok for one in results] == [True, True, False, True, True]
    assert results[2].error_type == "WorkerEnded" and "signal 9" in results[2].error


def test_an_interrupt_finishes_what_was_begun_and_says_how_to_go_on(model, data, tmp_path):
    out = tmp_path / "out"
    process = subprocess.Popen(command(data, model, out), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not list(out.glob("parts/part-*")) and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "finishing the rows that were begun" in said
    assert f"interrupted; what is done is kept in {out}, where the same command goes on" in said
    assert not list(out.glob("parts/.*"))
    assert explain_dataset(data, model, out=out, **OPTIONS).rows == N_TEXTS
    assert len(rows_of(out)) == N_TEXTS


def test_workers_end_with_a_run_that_is_killed(model, data, tmp_path):
    out = tmp_path / "out"
    process = subprocess.Popen(command(data, model, out), cwd=ROOT, stderr=subprocess.DEVNULL)
    while not list(out.glob("parts/part-*")) and process.poll() is None:
        time.sleep(0.002)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{child}/cmdline") and _runs(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert children


def _runs(process: str) -> bool:
    """Whether it is there, and no zombie that nobody has asked after."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
