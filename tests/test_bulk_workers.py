"""Bulk runs in several processes, which are killed, interrupted, and fed what kills them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import evaluation_samples
import pytest
import torch
import warm
from deadly import Starving, deadly
from test_bulk import N_TEXTS, OPTIONS, ROOT, command, rows_of, write_rows

from decompx_fast import DecompX
from decompx_fast.bulk import explain_dataset, load_results
from decompx_fast.errors import OptionError, OutputError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return evaluation_samples.write_texts(tmp_path_factory.mktemp("data") / "texts.csv", N_TEXTS)


@pytest.fixture
def warm_workers():
    with warm.workers():
        yield


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


def test_a_row_that_kills_its_worker_again_and_again_is_marked(warm_workers, model, tmp_path):
    texts = ["good film", "dull film", "a mess of a film", "sharp film", "warm film"]
    file, out = write_rows(tmp_path / "a.jsonl", texts), tmp_path / "out"
    found = explain_dataset(file, deadly(model, "mess"), out=out, **{**OPTIONS, "workers": 1})
    # Two end with the part as a whole, and two when its rows are watched.
    assert (found.rows, found.errors, found.workers_replaced) == (5, 1, 4)
    results = list(load_results(out))
    assert [one.ok for one in results] == [True, True, False, True, True]
    assert results[2].error_type == "WorkerEnded" and "signal 9" in results[2].error


def test_a_worker_that_gets_no_memory_is_replaced(warm_workers, model, tmp_path):
    file, out = write_rows(tmp_path / "a.jsonl", ["good film", "a mess of a film", "warm film"]), tmp_path / "out"
    explainer = deadly(model, "mess", tmp_path / "once", kind=Starving)
    found = explain_dataset(file, explainer, out=out, **{**OPTIONS, "workers": 1})
    assert (found.rows, found.errors, found.workers_replaced) == (3, 0, 1)


def test_a_row_that_was_at_hand_when_its_worker_was_killed_is_not_marked_for_it(warm_workers, model, tmp_path):
    file, out = write_rows(tmp_path / "a.jsonl", ["good film", "a mess of a film", "warm film"]), tmp_path / "out"
    explainer = deadly(model, "mess", tmp_path / "count", times=3)  # the third time it is watched
    found = explain_dataset(file, explainer, out=out, **{**OPTIONS, "workers": 1})
    assert (found.rows, found.errors, found.workers_replaced) == (3, 0, 3)


def test_a_model_that_cannot_be_pickled_is_refused(model, tmp_path):
    explainer = DecompX.from_pretrained(model)
    explainer.model.bert.register_forward_hook(lambda *_: None)
    file = write_rows(tmp_path / "a.jsonl", ["good film"])
    with pytest.raises(OptionError, match="cannot be handed to other processes .* workers=0"):
        explain_dataset(file, explainer, out=tmp_path / "out", **{**OPTIONS, "workers": 1})
    assert explain_dataset(file, explainer, out=tmp_path / "out", **OPTIONS).rows == 1


def test_an_interrupt_finishes_what_was_begun(model, tmp_path):
    file, out = write_rows(tmp_path / "a.jsonl", ["good film"] * 48), tmp_path / "out"
    program = f"""
from pathlib import Path
from deadly import waiting
from decompx_fast.bulk import explain_dataset
explainer = waiting({model!r}, Path({str(tmp_path)!r}))
explain_dataset({str(file)!r}, explainer, out={str(out)!r}, **{ {**OPTIONS, "workers": 1, "progress": None}!r})
"""
    places = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": places},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the workers too
    assert process.stderr is not None and "finishing the rows that were begun" in process.stderr.readline()
    (tmp_path / "go").touch()
    _, said = process.communicate(timeout=120)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert len(rows_of(out)) == 16  # the part that was begun, and no other


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_an_interrupt_of_processes_that_start_is_one_line(model, data, tmp_path, seconds):
    ask = command(data, model, tmp_path / "out")
    process = subprocess.Popen(ask, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text() and process.poll() is None:
        time.sleep(0.002)
    time.sleep(seconds)  # while it imports, and says nothing yet
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert len([line for line in said.splitlines() if "finishing" not in line]) == 1, said
    assert "decompx-fast: interrupted" in said


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_a_run_leaves_whole_parts(model, data, tmp_path, name):
    out = tmp_path / "out"
    process = warm.popen(command(data, model, out), cwd=ROOT, stderr=subprocess.PIPE)
    while not list(out.glob("parts/part-*")) and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(getattr(signal, name))
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert said == f"decompx-fast: ended by {name}; what is done is kept in {out}, where the same command goes on\n"
    before = len(rows_of(out))
    found = explain_dataset(data, model, out=out, **OPTIONS)
    assert found.rows == N_TEXTS and found.explained == N_TEXTS - before


def test_a_second_run_in_the_same_folder_is_refused(model, data, tmp_path):
    out = tmp_path / "out"
    process = warm.popen(command(data, model, out), cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        while not (out / "run.json").exists() and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGSTOP)  # however slow this machine is, it is still at work
        with pytest.raises(OutputError, match="another run is at work in"):
            explain_dataset(data, model, out=out, **OPTIONS)
    finally:
        process.send_signal(signal.SIGCONT)
    assert process.wait(120) == 0 and len(rows_of(out)) == N_TEXTS


def test_a_folder_that_cannot_be_written_is_told(model, data, tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(OutputError, match="cannot be written: Is a directory"):
        explain_dataset(data, model, out=tmp_path, **OPTIONS)


def test_an_interrupt_says_how_to_go_on(model, data, tmp_path):
    out = tmp_path / "out"
    process = warm.popen(command(data, model, out), cwd=ROOT, stderr=subprocess.PIPE)
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
