"""``decompx-fast explain``: files with columns, names of inputs, and errors in their place."""

from __future__ import annotations

import json
import sys

import pyarrow
import pyarrow.parquet
import pytest
from cli_explain import LONG, names_of, rows_of

from decompx_fast import cli

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
