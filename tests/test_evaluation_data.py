"""Texts and labels of an evaluation: every format, and what is wrong with a file, with its line."""

from __future__ import annotations

import hashlib
import json

import pyarrow
import pyarrow.parquet
import pytest

from decompx_fast.errors import InputError, OptionError
from decompx_fast.evaluation import snippets
from decompx_fast.evaluation.data import read_dataset

LABELS = ("NEGATIVE", "POSITIVE")
TEXTS = ("a film, and\na good one", 'he said "no"', "naïve\u2028café")


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "tsv"])
def test_every_format_gives_the_same(tmp_path, ending):
    path = tmp_path / f"reviews.{ending}"
    rows = [
        {"text": text, "label": label} for text, label in zip(TEXTS, ("POSITIVE", "NEGATIVE", "POSITIVE"), strict=True)
    ]
    expected = TEXTS
    if ending == "csv":
        cells = ['"a film, and\na good one",POSITIVE', '"he said ""no""",NEGATIVE', "naïve\u2028café,POSITIVE"]
        write(path, "\ufefftext,label\r\n" + "\r\n".join(cells) + "\r\n")
    elif ending == "jsonl":
        write(path, "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    elif ending == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:  # no line breaks inside, and quotes are ordinary
        expected = ("a film", *TEXTS[1:])
        cells = zip(expected, ("POSITIVE", "NEGATIVE", "POSITIVE"), strict=True)
        write(path, "label\tsentence\n" + "".join(f"{label}\t{text}\n" for text, label in cells))
    found = read_dataset(path, LABELS)
    assert found.texts == expected
    assert found.labels == (1, 0, 1)
    assert (found.name, len(found), found.is_pairs) == (path.name, 3, False)


def test_pairs_named_columns_and_limit(tmp_path):
    path = write(tmp_path / "x.csv", "a,b,c\none,two,1\nthree,four,0\nfive,six,oops\n")
    found = read_dataset(path, LABELS, text_column="a", pair_column="b", label_column="c", limit=2)
    assert found.texts == (("one", "two"), ("three", "four"))
    assert found.labels == (1, 0)
    assert found.is_pairs


def test_warnings_point_at_who_asked(tmp_path):
    path = write(tmp_path / "x.csv", "text,label\nfine,positive\n")
    with pytest.warns(UserWarning, match="'positive' as 'POSITIVE'") as caught:
        read_dataset(path, LABELS)
    assert caught[0].filename == __file__


def test_labels_may_be_missing_and_may_be_numbers(tmp_path):
    assert read_dataset(write(tmp_path / "x.csv", "text\nfine\n"), LABELS).labels is None
    path = write(tmp_path / "x.jsonl", '{"text": "fine", "label": 1}\n')
    assert read_dataset(path, LABELS).labels == (1,)
    path = write(tmp_path / "y.csv", "text,label\nfine,1\n")  # a name comes before an index
    assert read_dataset(path, ("1", "0")).labels == (0,)


def test_digest_is_of_texts_and_labels(tmp_path):
    first = read_dataset(write(tmp_path / "a.csv", "text,label\nfine,1\n"), LABELS)
    second = read_dataset(write(tmp_path / "b.tsv", "sentence\tlabel\nfine\tPOSITIVE\n"), LABELS)
    third = read_dataset(write(tmp_path / "c.csv", "text,label\nfine,0\n"), LABELS)
    assert first.sha256 == second.sha256 != third.sha256


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", "text\n", "must end in .csv, .tsv, .jsonl or .parquet, or be 'snippets' or one of product-snippets"),
        ("x.csv", "", "holds no rows"),
        ("x.csv", "text,label\n", "holds no rows"),
        ("x.csv", "text,label\nfine,1\nfine\n", "line 3 of .*x.csv has 1 column, and the first line names 2"),
        ("x.csv", 'text,label\n"two\nlines",1\n"",1\n', "line 4 of .*empty text in the column 'text'"),
        ("x.csv", "text,label\nfine,2\n", "line 2 of .*label '2'.*NEGATIVE, POSITIVE.*index from 0 to 1"),
        ("x.csv", "text,label\nfine,positiv\n", "line 2 of .*label 'positiv'.*did you mean 'POSITIVE'"),
        ("x.csv", 'text,label\n"open,1\n', "line 2 of .*cannot be read"),
        ("x.csv", "text,text\na,b\n", "line 1 of .*names a column twice"),
        ("x.csv", b"text\nfine\n\xff\n", r"not UTF-8 \(line 3"),
        ("x.jsonl", '{"text": "a"}\n\n{"text": 3}\n', "line 3 of .*has 3 in the column 'text'"),
        ("x.jsonl", '{"text": "a"}\nnonsense\n', "line 2 of .*is no JSON"),
        ("x.jsonl", '["a"]\n', "line 1 of .*must be an object"),
        ("x.jsonl", '{"text": "a", "label": true}\n', "line 1 of .*label True"),
        ("x.jsonl", '{"text": "a", "label": 1}\n{"text": "a"}\n', "line 2 of .*has no label"),
        ("x.parquet", "PAR1", "cannot be read as Parquet"),
    ],
)
def test_bad_file_is_named_with_its_line(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        read_dataset(write(tmp_path / name, content), LABELS)


def test_missing_file_and_folder_are_named(tmp_path):
    with pytest.raises(InputError, match="none.csv cannot be read: No such file"):
        read_dataset(tmp_path / "none.csv", LABELS)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="is a directory"):
        read_dataset(tmp_path / "folder.csv", LABELS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no column named text or sentence: say by text_column which of review, score"),
        ({"text_column": "txt"}, "text_column='txt'.*'review', 'score'"),
        ({"text_column": "review", "label_column": "labels"}, "label_column='labels'"),
        ({"text_column": "review", "pair_column": "second"}, "pair_column='second'"),
        ({"text_column": "review", "limit": 0}, "limit=0"),
    ],
)
def test_wrong_column_is_refused_with_those_there_are(tmp_path, options, message):
    path = write(tmp_path / "x.csv", "review,score\nfine,1\n")
    with pytest.raises(OptionError, match=message):
        read_dataset(path, LABELS, **options)


def test_heldout_snippets_are_those_of_the_committed_file(data_dir):
    lines = (data_dir / "movie-snippets-heldout.tsv").read_text(encoding="utf-8").split("\n")[1:]
    ids = [line.split("\t", 1)[0] for line in lines if line]
    assert hashlib.sha256("\n".join(ids).encode()).hexdigest() == snippets.HELDOUT_SHA256


def test_other_snippets_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "decompx-fast" / snippets.FILE
    path.parent.mkdir()
    path.write_text("1\t2.0\tanother text\n")
    with pytest.raises(InputError, match="other snippets: their SHA-256"):
        read_dataset("snippets", LABELS)
    with pytest.raises(OptionError, match="no columns to choose from"):
        read_dataset("snippets", LABELS, text_column="text")


def test_snippets_that_cannot_be_fetched_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(snippets, "SOURCE", "no such requirement")
    with pytest.raises(InputError, match="pip could not download.*or put movieReviewSnippets"):
        read_dataset("snippets", LABELS)
    assert list(tmp_path.iterdir()) == []
