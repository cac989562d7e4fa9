"""``decompx-fast explain``: files with columns, names of inputs, errors in their place, and runs that end early."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import models
import pyarrow
import pyarrow.parquet
import pytest
import torch

from decompx_fast import cli
from decompx_fast.calls import job
from decompx_fast.cli import main

LONG = "word " * 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    models.classifier(vocab=models.WORD_PIECES, positions=64, dtype=torch.float32).save_pretrained(path)
    models.word_piece().save_pretrained(path)
    return str(path)


@pytest.fixture
def explain(capsys, folder):
    """Run the command; exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["explain", "--model", folder, *map(str, arguments)])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- files with columns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_file_with_columns_is_read_by_its_columns(explain, tmp_path, ending):
    rows = [{"key": "a7", "review": "a good film", "title": "fine"}, {"key": "b1", "review": "bad", "title": "no"}]
    path = tmp_path / f"reviews.{ending}"
    if ending == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        between = "," if ending == "csv" else "\t"
        path.write_text("".join(between.join(row) + "\n" for row in [rows[0], *(r.values() for r in rows)]))
    options = ("--file", path, "--id-column", "key", "--jsonl", "-")
    code, out, err = explain(*options, "--text-column", "review", "--pair-column", "title")
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    assert [row["texts"] for row in found] == [["a good film", "fine"], ["bad", "no"]]
    assert [row["id"] for row in found] == ["a7", "b1"]
    assert [row["input"] for row in found] == [0, 1]
    assert {row["file"] for row in found} == {str(path)}
    unit, first = {"parquet": ("row", 0), "jsonl": ("line", 1)}.get(ending, ("line", 2))
    assert [row[unit] for row in found] == [first, first + 1]
    code, _, err = explain(*options)
    assert code == 2 and "say by --text-column which of key, review, title it is" in err


def test_a_text_names_its_lines_and_keeps_what_is_no_line_break(explain, tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("one\u2028two\x0cthree\n\n\nfour\u0085five\r\n", encoding="utf-8", newline="")
    code, out, _ = explain("zero", "--file", path, "--jsonl", "-")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["texts"] for row in found] == [["zero"], ["one\u2028two\x0cthree"], ["four\u0085five"]]
    assert [row.get("line") for row in found] == [None, 1, 4]
    assert [row["input"] for row in found] == [0, 1, 2]
    assert found[2]["metadata"]["line"] == 4
    code, out, _ = explain("--file", path)
    assert f"line 1 of {path}" in out and f"line 4 of {path}" in out


def test_columns_of_what_has_none_and_of_no_file_are_refused(explain, tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("text\nfine\n", encoding="utf-8")
    assert explain("--file", path, "--text-column", "text")[::2] == (
        2,
        f"decompx-fast: {path} is read as plain text, which has no columns: leave them out, or say by --format what it "
        "is\n",
    )
    assert explain("a", "--id-column", "x")[0] == 2
    code, out, _ = explain("--file", path, "--format", "csv", "--text-column", "text", "--jsonl", "-")
    assert (code, json.loads(out)["texts"]) == (0, ["fine"])
    other = tmp_path / "x.json"
    other.write_text('[{"text": "a"}]', encoding="utf-8")
    assert "one object on each line" in explain("--file", other)[2]


def test_a_row_that_cannot_be_read_is_refused_before_the_work(explain, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "_load", None)  # a model would be loaded by it
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n{"text": ""}\n', encoding="utf-8")
    code, out, err = explain("--file", path, "--json", tmp_path / "out.json")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"line 2 of {path} has an empty text" in err
    assert names_of(tmp_path) == ["x.jsonl"]


def test_standard_input_is_explained_as_it_comes(explain, tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"

    class Pipe:
        lines = 0

        def readline(self) -> bytes:
            self.lines += 1
            if self.lines == 600:
                assert len(rows_of(path)) > 100  # long before the end
            return b"a film\n" if self.lines <= 600 else b""

    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": Pipe()}))
    assert explain("--file", "-", "--jsonl", path, "--quiet") == (0, "", "")
    assert [row["line"] for row in rows_of(path)] == list(range(1, 601))
    assert rows_of(path)[0]["file"] == "standard input"


# --- inputs that cannot be explained -----------------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path):
    """Six rows, of which the second, the fourth and the fifth cannot be explained."""
    path = tmp_path / "mixed.csv"
    rows = ["a,a good film", f"b,{LONG}", "c,bad", "d,", "e", "f,the end"]
    path.write_text("id,text\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_errors_stand_in_the_place_of_their_inputs(explain, mixed, tmp_path):
    outputs = [tmp_path / f"out.{ending}" for ending in ("jsonl", "json", "html")]
    options = [f"--{path.suffix[1:]}={path}" for path in outputs]
    code, out, err = explain("--file", mixed, "--id-column", "id", "--on-error", "skip", *options)
    assert code == 0
    rows = rows_of(outputs[0])
    assert json.loads(outputs[1].read_text(encoding="utf-8")) == rows
    assert [row["line"] for row in rows] == [2, 3, 4, 5, 6, 7]
    assert [row["input"] for row in rows] == list(range(6))
    assert ["error" in row for row in rows] == [False, True, False, True, True, False]
    place = f"line 3 of {mixed} (id b)"
    assert rows[1]["error"].startswith(f"{place} has 602 tokens") and rows[1]["error_type"] == "InputError"
    assert "--truncate" in rows[1]["error"] and "truncate=True" not in rows[1]["error"]
    assert "empty text" in rows[3]["error"] and "has 1 column," in rows[4]["error"]
    assert rows[5]["texts"] == ["the end"]
    lines = err.splitlines()
    assert len(lines) == 4 and lines[0].startswith(f"decompx-fast: {place} has 602 tokens")
    assert lines[3] == "decompx-fast: 3 of 6 inputs could not be explained"
    assert out.count("Predicted") == 3
    page = outputs[2].read_text(encoding="utf-8")
    assert page.count("<article") == 6 and page.count("Not explained") == 3 and page.rstrip().endswith("</html>")


def test_without_skip_the_first_error_ends_the_run_with_its_line(explain, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(f"text\none\ntwo\n{LONG}\nfour\n", encoding="utf-8")
    lines = tmp_path / "out.jsonl"
    code, out, err = explain("--file", path, "--json", "-", "--jsonl", lines)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith(f"decompx-fast: line 4 of {path} has 602 tokens")
    assert err.endswith(f"; 2 of 4 inputs were done before, and kept in {lines}\n")
    assert [row["texts"] for row in json.loads(out)] == [["one"], ["two"]]
    assert json.loads(out) == rows_of(lines)


def test_nothing_explained_is_an_error(explain, tmp_path):
    code, out, err = explain(LONG, LONG, "--on-error", "skip", "--json", "-")
    assert (code, [row["input"] for row in json.loads(out)]) == (1, [0, 1])
    assert err.splitlines()[-1] == "decompx-fast: none of the 2 inputs could be explained"
    assert explain(LONG, "--on-error", "skip")[2].splitlines()[-1] == "decompx-fast: the input could not be explained"


def test_a_cut_text_is_warned_of_by_its_line(explain, tmp_path):
    path = tmp_path / "x.txt"
    path.write_text(f"\nfine\n{LONG}\n", encoding="utf-8")
    code, _, err = explain("--file", path, "--truncate", "--quiet")
    assert code == 0
    assert err.startswith(f"decompx-fast: warning: line 3 of {path} has 602 tokens and was cut")


# --- runs that end early -----------------------------------------------------------------------------------------


@pytest.fixture
def heard():
    """Signals that end a run, also where the tests themselves were started deaf to them (nohup, in the background)."""
    before = {sent: signal.getsignal(sent) for sent in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for sent, handler in before.items():
        signal.signal(sent, handler)


@pytest.mark.parametrize(
    ("sent", "said"),
    [(signal.SIGTERM, "ended by SIGTERM"), (signal.SIGHUP, "ended by SIGHUP"), (signal.SIGINT, "interrupted")],
)
def test_what_is_done_is_kept_when_the_run_is_ended(explain, tmp_path, monkeypatch, heard, sent, said):
    calls = 0
    linearize = job.linearize

    def ended(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == 4:
            os.kill(os.getpid(), sent)
        return linearize(*arguments, **options)

    monkeypatch.setattr(job, "linearize", ended)
    before = signal.getsignal(sent)
    (tmp_path / "out.json").write_text("old", encoding="utf-8")
    outputs = [f"--{name}={tmp_path / f'out.{name}'}" for name in ("json", "jsonl", "html")]
    code, out, err = explain(*["a film"] * 9, "--batch-size", 1, "--quiet", *outputs)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"decompx-fast: {said}; 3 of 9 inputs were done before, and kept in ")
    assert names_of(tmp_path) == ["out.json", "out.jsonl", "out.partial.html", "out.partial.json"]
    assert all(str(tmp_path / name) in err for name in names_of(tmp_path)[1:])
    assert (tmp_path / "out.json").read_text(encoding="utf-8") == "old"
    rows = rows_of(tmp_path / "out.jsonl")
    assert len(rows) == 3 and json.loads((tmp_path / "out.partial.json").read_text(encoding="utf-8")) == rows
    page = (tmp_path / "out.partial.html").read_text(encoding="utf-8")
    assert page.count("<article") == 3 and page.rstrip().endswith("</html>")
    assert signal.getsignal(sent) == before


def test_a_page_is_closed_when_the_run_is_ended_while_it_is_written(explain, tmp_path, monkeypatch, heard):
    """A signal comes at any moment: also in the middle of an explanation's part of the page."""
    from decompx_fast.result import page

    calls = 0
    html_piece = page._html_piece

    def ended(*arguments):
        nonlocal calls
        calls += 1
        if calls == 12:  # each text has four pieces and some
            os.kill(os.getpid(), signal.SIGHUP)
        return html_piece(*arguments)

    monkeypatch.setattr(page, "_html_piece", ended)
    out = tmp_path / "out.html"
    code, _, err = explain(
        *["a film"] * 9, "--batch-size", 1, "--quiet", "--html", out, "--jsonl", tmp_path / "x.jsonl"
    )
    assert code == 1 and "ended by SIGHUP" in err
    text = (tmp_path / "out.partial.html").read_text(encoding="utf-8")
    assert text.rstrip().endswith("</html>") and text.count("</html>") == 1
    assert 0 < text.count("<article") == text.count("</article>") == len(rows_of(tmp_path / "x.jsonl")) - 1
    assert not out.exists()


def test_a_signal_that_is_ignored_stays_so(explain, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        monkeypatch.setattr(job, "linearize", lambda *a, _=job.linearize, **o: (os.kill(os.getpid(), 1), _(*a, **o))[1])
        assert explain("a film", "--quiet") == (0, "", "")
    finally:
        signal.signal(signal.SIGHUP, before)


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
    code, _, _ = explain(*["a film"] * 30, "--batch-size", 1, "--quiet", "--html", tmp_path / "out.html")
    assert code == 0 and len(held) == 30
    assert max(held) - held[0] <= 4


# --- places of results -------------------------------------------------------------------------------------------


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
def test_a_program_without_standard_output_says_so(folder):
    command = f"exec {sys.executable} -m decompx_fast.cli explain 'a film' --model {folder} >&-"
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


# --- what is written ---------------------------------------------------------------------------------------------


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
