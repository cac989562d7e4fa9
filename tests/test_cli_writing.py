"""``decompx-fast explain``: the places that results are written to, and what is written there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading

import pytest
import torch
from cli_explain import LONG, names_of, rows_of

from decompx_fast.calls import job
from decompx_fast.cli import main


@pytest.mark.slow
def test_a_page_is_written_as_it_grows(explain, tmp_path, monkeypatch):
    """No more explanations are held than the batches that are computed ahead."""
    import gc

    from decompx_fast.result.explanation import Explanation

    held = []
    linearize = job.linearize

    def count(*arguments, **options):
        gc.collect()
        held.append(sum(isinstance(one, Explanation) for one in gc.get_objects()))
        return linearize(*arguments, **options)

    monkeypatch.setattr(job, "linearize", count)
    gc.freeze()  # what is there already need not be looked at each time
    try:
        code, _, _ = explain(*["a film"] * 30, "--batch-size", 1, "--quiet", "--html", tmp_path / "out.html")
    finally:
        gc.unfreeze()
    assert code == 0 and len(held) == 30
    assert max(held) - held[0] <= 4


def test_files_that_would_overwrite_each_other_or_the_input_are_refused(explain, tmp_path, monkeypatch):
    text, link, out = tmp_path / "s.txt", tmp_path / "link", tmp_path / "out"
    text.write_text("a film\n", encoding="utf-8")
    link.symlink_to(text)
    for arguments, message in (
        (("--file", text, "--json", text), "--json .*s.txt would overwrite the input"),
        (("--file", link, "--html", text), "--html .*s.txt would overwrite the input"),
        (("--file", text, "--jsonl", tmp_path / "." / "s.txt"), "--jsonl .*s.txt would overwrite the input"),
        (("a", "--json", out, "--html", out), "--html and --json are both .*out: give each a file"),
        (("a", "--json", "-", "--jsonl", "-"), "--json and --jsonl are both -"),
        (("a", "--json", tmp_path / "out.jsonl"), "--json writes one array.*use --jsonl"),
    ):
        code, printed, err = explain(*arguments)
        assert (code, printed, err.count("\n")) == (2, "", 1)
        assert re.search(message, err)
    with open(text, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert "would overwrite the input" in explain("--file", "-", "--json", text)[2]
    assert text.read_text(encoding="utf-8") == "a film\n"
    assert names_of(tmp_path) == ["link", "s.txt"]


@pytest.mark.parametrize("arguments", [("--json", "-"), ("--jsonl", "-"), ()])
def test_a_full_disk_behind_standard_output_is_named(explain, monkeypatch, arguments):
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code, _, err = explain("a film", *arguments)
        monkeypatch.undo()
    assert code == 1
    assert err.startswith("decompx-fast: standard output cannot be written: No space left on device")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [("--json", "-"), ("--jsonl", "-"), ()])
def test_a_closed_standard_output_is_named(explain, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdout", None)
    code, _, err = explain("a film", *arguments)
    assert code == 1
    assert err == "decompx-fast: standard output cannot be written: it is closed\n"


def test_a_closed_standard_output_does_not_matter_where_nothing_is_printed(explain, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdout", None)
    assert explain("a film", "--quiet", "--json", tmp_path / "out.json")[0] == 0
    assert names_of(tmp_path) == ["out.json"]


def test_a_disk_that_fills_up_is_named_with_its_file(explain, monkeypatch, tmp_path):
    path = tmp_path / "out.jsonl"
    path.symlink_to("/dev/full")
    monkeypatch.setattr("decompx_fast.result.file.check_place", lambda *_, **__: None)  # which refuses devices
    code, _, err = explain("a film", "--quiet", "--jsonl", path)
    assert code == 1
    assert err.startswith(f"decompx-fast: {path} cannot be written: No space left on device.")


@pytest.mark.slow
def test_a_program_without_standard_output_says_so(cli_folder):
    command = f"exec {sys.executable} -m decompx_fast.cli explain 'a film' --model {cli_folder} >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (
        1,
        "decompx-fast: standard output cannot be written: it is closed\n",
    )
    done = subprocess.run(command.replace(">&-", ">/dev/full"), shell=True, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr == "decompx-fast: standard output cannot be written: No space left on device\n"


def test_lines_are_written_to_a_pipe(explain, tmp_path):
    path, got = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: got.append(path.read_text(encoding="utf-8")), daemon=True)
    reader.start()
    assert explain("a film", "bad", "--quiet", "--jsonl", path) == (0, "", "")
    reader.join(30)
    assert [json.loads(line)["texts"] for line in got[0].splitlines()] == [["a film"], ["bad"]]
    code, _, err = explain("a film", "--quiet", "--json", path)
    assert code == 1 and "not a regular file" in err


def test_what_a_pipe_took_is_not_said_to_be_kept(explain, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = threading.Thread(target=path.read_text, daemon=True)
    reader.start()
    code, _, err = explain("a film", LONG, "--quiet", "--jsonl", path)
    reader.join(30)
    assert code == 1 and err.endswith("; 1 of 2 inputs was done before\n")


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_the_systems_names_of_standard_output_are_a_dash(explain, name):
    code, out, err = explain("a film", "--jsonl", name)
    assert (code, err) == (0, "")
    assert json.loads(out)["texts"] == ["a film"]  # and no table round it
    assert explain("a", "--json", "-", "--jsonl", name)[0] == 2
    assert explain("a", "--html", name)[0] == 2


def test_details_are_written_on_demand(explain, tmp_path):
    """The biases' part of each site, and the shares of the components, which together with the scores are the whole."""
    path = tmp_path / "out.jsonl"
    options = ("a good film", "--bias", "none", "--quiet", "--jsonl", path)
    explain(*options)
    assert "bias_sites" not in rows_of(path)[0]
    assert explain(*options, "--details") == (0, "", "")
    (row,) = rows_of(path)
    biases = torch.tensor([site["value"] for site in row["bias_sites"]]).sum(0)
    total = torch.tensor(row["scores"]).sum(0) + biases
    torch.testing.assert_close(total, torch.tensor(row["logits"]), rtol=0, atol=1e-5)  # float32 sums below 10
    assert row["component_shares"]
    code, out, _ = explain("a good film", "--bias", "none", "--json", "-", "--details")
    assert code == 0 and json.loads(out)[0]["bias_sites"] == row["bias_sites"]


def test_details_of_nothing_are_refused(explain):
    code, _, err = explain("a good film", "--details")
    assert code == 2 and "--details" in err and "--json" in err


def test_a_page_to_standard_output_is_refused(explain, tmp_path, monkeypatch):
    """It would be a file with the name "-"."""
    monkeypatch.chdir(tmp_path)
    code, _, err = explain("a good film", "--html", "-")
    assert code == 2 and "--html" in err
    assert names_of(tmp_path) == []


def test_usage_shows_that_texts_may_be_left_out(capsys):
    assert main(["explain", "--help"]) == 0
    assert "[TEXT]..." in capsys.readouterr().out
