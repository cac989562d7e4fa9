"""Rows of files: where lines end, what is numbered, and rows that cannot be read."""

from __future__ import annotations

import csv
import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decompx_fast.errors import InputError, OptionError
from decompx_fast.optional import MissingPackageError
from decompx_fast.request.tables import Columns, format_of, read_rows


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_text_is_cut_at_line_feeds_only(tmp_path):
    lines = ["a\u2028b\u0085c\x0bd\x0ce\x1cf\x1d\x1eg", "", "second\rhalf", "  ", "last"]
    rows = list(read_rows(write(tmp_path / "x.txt", "\ufeff" + "\r\n".join(lines)), "text"))
    assert [row.values["text"] for row in rows] == [lines[0], lines[2], lines[4]]
    assert [row.number for row in rows] == [1, 3, 5]
    assert rows[1].place == f"line 3 of {tmp_path / 'x.txt'}"


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=2, max_size=2)))
def test_csv_gives_back_what_was_written(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    with open(path, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *cells])
    found = [list(row.values.values()) for row in read_rows(str(path), "csv")]
    assert found == [row for row in cells if any(row)]


def test_lines_of_a_table_from_an_old_mac_end_at_carriage_returns(tmp_path):
    rows = list(read_rows(write(tmp_path / "x.csv", "text,n\rone,1\rtwo,2\r"), "csv"))
    assert [(row.number, row.values["text"]) for row in rows] == [(2, "one"), (3, "two")]


@pytest.mark.parametrize("format", ["text", "csv", "tsv", "jsonl"])
def test_a_row_that_cannot_be_read_does_not_end_the_file(tmp_path, format):
    line = b'{"text": "%s"}\n' if format == "jsonl" else b"%s\n"
    header = b"" if format in ("jsonl", "text") else b"text\n"
    content = header + line % b"one" + line % b"\xff\xfe" + line % b"three"
    rows = list(read_rows(write(tmp_path / "x", content), format))
    first = 1 if not header else 2
    assert [row.number for row in rows] == [first, first + 1, first + 2]
    assert [row.values.get("text") for row in rows] == ["one", None, "three"]
    assert [row.problem is None for row in rows] == [True, False, True]
    bad = len(content) - len(content.partition(b"\xff")[2]) - 1
    assert f"not UTF-8 (line {first + 1}, byte {bad})" in rows[1].problem


@pytest.mark.parametrize(
    ("format", "content", "problem"),
    [
        ("csv", "text,n\na,1\nb\nc,3\n", "line 3 of .* has 1 column, and the first line names 2"),
        ("csv", 'text,n\na,1\n"b"x,2\nc,3\n', "line 3 of .* cannot be read: .*quote within a quoted cell twice"),
        ("csv", f"text\na\n{'b' * 140_000}\nc\n", "line 3 of .* has a cell of more than 131,072 characters: shorten"),
        ("csv", 'text\na\n"b\nx\n"y" z\nc\n', "line 3 of .* opens a quote that is not closed.* up to line 5 is lost"),
        ("jsonl", '{"text": "a"}\n\n[1]\n{"text": "c"}\n', "line 3 of .* must be an object"),
        ("jsonl", '{"text": "a"}\n\n{"text"\n{"text": "c"}\n', r"line 3 of .* is no JSON: [^(]* \(at character 9\)$"),
    ],
)
def test_a_problem_names_its_line(tmp_path, format, content, problem):
    rows = list(read_rows(write(tmp_path / "x", content), format))
    assert [row.values.get("text") for row in rows] == ["a", None, "c"]
    columns = Columns.choose(rows[0])
    with pytest.raises(InputError, match=problem):
        columns.read(rows[1])


def test_a_quote_that_is_never_closed_is_named_with_the_lines_that_it_takes(tmp_path):
    rows = list(read_rows(write(tmp_path / "x.csv", 'text,n\na,1\n"b,2\nc,3\nd,4\n'), "csv"))
    assert [row.problem is None for row in rows] == [True, False]
    assert rows[1].number == 3
    assert "line 3 of" in rows[1].problem and "opens a quote" in rows[1].problem and "up to line 5" in rows[1].problem
    with pytest.raises(InputError, match="line 1 of .* opens a quote.* up to line 3"):
        list(read_rows(write(tmp_path / "x.csv", '"text\na\nb\n'), "csv"))
    long = 'text\n"' + "x\n" * 140_000
    (row, *_) = read_rows(write(tmp_path / "x.csv", long), "csv")
    assert row.number == 2 and "opens a quote" in row.problem


def test_standard_input_is_read_as_it_comes(monkeypatch):
    class Endless(io.RawIOBase):
        lines = 0

        def readable(self):
            return True

        def readline(self, size=-1):
            self.lines += 1
            return b"text\n"

    endless = Endless()
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": endless}))
    rows = read_rows("-", "text")
    assert [next(rows).place for _ in range(3)][2] == "line 3 of standard input"
    assert endless.lines == 3
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        next(read_rows("-", "text"))


def test_columns_are_the_usual_ones_or_those_that_are_named(tmp_path):
    path = write(tmp_path / "x.csv", "key,sentence,other\n7,one,two\n")
    row = next(read_rows(path, "csv"))
    assert Columns.choose(row).read(row) == "one"
    assert Columns.choose(row, text="other", pair="sentence", id="key").read(row) == ("two", "one")
    for argument in ("text", "pair", "id"):
        with pytest.raises(OptionError, match=f"{argument}_column='no'.*'key', 'sentence', 'other'"):
            Columns.choose(row, **{argument: "no"})


def test_format_is_told_by_the_ending():
    endings = {"a.txt": "text", "a": "text", "a.CSV": "csv", "a.tsv": "tsv", "a.jsonl": "jsonl", "a.parquet": "parquet"}
    assert {name: format_of(name) for name in endings} == endings
    assert format_of("a.json", "text") == "text"
    with pytest.raises(InputError, match="one object on each line"):
        format_of("a.json")
    with pytest.raises(InputError, match="as CSV"):
        format_of("a.xlsx")


def test_parquet_without_its_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"pip install pyarrow.*\[parquet\]"):
        next(read_rows(write(tmp_path / "x.parquet", "PAR1"), "parquet"))
