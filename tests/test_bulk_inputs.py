"""What bulk runs read: files of all kinds, with rows of which each is explained, or says why not."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import evaluation_samples
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import warm
from test_bulk import OPTIONS, ROOT, rows_of, write_rows

import decompx_fast.bulk.units
from decompx_fast.bulk import explain_dataset, load_results
from decompx_fast.errors import InputError, OptionError

TEXT = "good film"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return evaluation_samples.save_classifier(tmp_path_factory.mktemp("model"))


@pytest.fixture
def explained(model, tmp_path):
    """Explains data into a folder, and gives the rows there."""

    def explain(data, **options) -> list[dict]:
        explain_dataset(data, model, out=tmp_path / "out", **{**OPTIONS, **options})
        return rows_of(tmp_path / "out")

    return explain


def no_constants(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize("output", ["parquet", "jsonl"])
def test_halves_of_surrogate_pairs_do_not_end_a_run(model, tmp_path, output):
    rows = [r'{"text": "good \ud800 film", "key": "a"}', r'{"text": "good film", "key": "\udfff", "x": "\ud800"}']
    data, out = tmp_path / "a.jsonl", tmp_path / "out"
    data.write_text("\n".join(rows))
    found = explain_dataset(data, model, out=out, output=output, id_column="key", **OPTIONS)
    assert (found.rows, found.errors) == (2, 1)
    first, second = load_results(out)
    assert "line 1 of" in first.error and "half of a surrogate pair" in first.error
    assert second.metadata["id"] == r"\udfff"
    if output == "parquet":
        assert json.loads(rows_of(out)[1]["columns"]) == {"x": "\ud800"}


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are UTF-8 elsewhere")
def test_a_file_whose_name_is_no_utf8_is_read(explained, tmp_path):
    name = os.path.join(tmp_path, os.fsdecode(b"\xff.jsonl"))
    Path(name).write_text(json.dumps({"text": TEXT}) + "\n" + json.dumps({"text": ""}))
    for _ in range(2):  # the second goes on, with the same name
        first, second = explained(name)
        assert first["file"].endswith(r"\udcff.jsonl") and r"\udcff.jsonl" in second["error"]


def test_other_columns_are_json_whatever_they_hold(explained, tmp_path):
    circle: list = []
    circle.append(circle)
    rows = [
        {"text": TEXT, "a": float("nan"), "b": [float("inf"), -float("inf")], ("a", 1): {2: None}},
        {"text": TEXT, "a": np.float32(0.5), "b": np.arange(2000), "c": np.array([np.nan])},
        {"text": TEXT, "a": b"\xff", "b": circle},
    ]
    found = explained(rows)
    columns = [json.loads(row["columns"], parse_constant=no_constants) for row in found]
    assert columns[0] == {"a": "NaN", "b": ["Infinity", "-Infinity"], "('a', 1)": {"2": None}}
    assert columns[1] == {"a": 0.5, "b": list(range(2000)), "c": ["NaN"]}
    assert [row["error_type"] for row in found] == [None, None, "InputError"]
    assert "row 2 of data has columns that are nested too deeply" in found[2]["error"]


def parquet(path: Path, **columns) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_values_of_arrow_that_python_has_not_are_errors_of_their_rows(explained, tmp_path):
    texts = pyarrow.Array.from_buffers(
        pyarrow.string(),
        3,
        [None, pyarrow.py_buffer(np.array([0, 2, 11, 15], np.int32)), pyarrow.py_buffer(b"\xff\xffgood filmdull")],
    )
    dates = pyarrow.array([1, 2, 2**31 - 1], pyarrow.date32())
    found = explained(parquet(tmp_path / "a.parquet", text=texts, date=dates))
    assert [row["error"] is None for row in found] == [False, True, False]
    assert "row 0 of" in found[0]["error"] and "column 'text' that cannot be read: 'utf-8'" in found[0]["error"]
    assert "row 2 of" in found[2]["error"] and "column 'date' that cannot be read" in found[2]["error"]


def test_types_of_parquet_are_carried_as_text_and_numbers(explained, tmp_path):
    texts = pyarrow.array([TEXT, "dull", None]).dictionary_encode()
    found = explained(
        parquet(
            tmp_path / "a.parquet",
            text=texts,
            time=pyarrow.array([1, None, 3], pyarrow.timestamp("us")),
            bytes=pyarrow.array([b"\xff", b"", None]),
            struct=pyarrow.array([{"a": 1}, None, {"a": 2}]),
            half=pyarrow.array([1.5, 2.0, None], pyarrow.float32()).cast(pyarrow.float16()),
        )
    )
    assert json.loads(found[0]["columns"]) == {
        "time": "1970-01-01 00:00:00.000001",
        "bytes": "b'\\xff'",
        "struct": {"a": 1},
        "half": 1.5,
    }
    assert "has None in the column 'text'" in found[2]["error"]


def test_a_column_that_is_there_twice_is_refused_in_parquet_too(explained, tmp_path):
    columns = [pyarrow.array([TEXT]), pyarrow.array(["x"])]
    pyarrow.parquet.write_table(pyarrow.table(columns, names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="names a column twice: text, text"):
        explained(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.zst", "a.zip"])
def test_packed_files_are_refused_and_not_taken_for_text(explained, tmp_path, name):
    (tmp_path / name).write_bytes(b"\x1f\x8b packed\n")
    with pytest.raises(InputError, match="unpack it first"):
        explained(tmp_path / name)


def test_folders_are_read_whole_but_for_what_is_hidden(explained, tmp_path):
    data = tmp_path / "data"
    for folder in ("", "a/b", ".ipynb_checkpoints"):
        (data / folder).mkdir(parents=True, exist_ok=True)
        write_rows(data / folder / "a.jsonl", [TEXT])
    (data / "about.json").write_text("{}")
    assert [row["file"] for row in explained(data)] == [str(data / "a.jsonl"), str(data / "a" / "b" / "a.jsonl")]
    (data / "b.csv.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"b\.csv\.gz .*unpack it first"):
        explained(data)


def test_results_below_the_data_are_no_data(explained, tmp_path):
    write_rows(tmp_path / "a.jsonl", [TEXT, "dull"])
    for _ in range(2):  # the second finds the parts of the first
        assert len(explained(tmp_path)) == 2
    with pytest.raises(InputError, match="nothing but results of the run itself"):
        explained(tmp_path / "out")


def test_a_file_with_two_names_is_read_once(explained, tmp_path):
    file = write_rows(tmp_path / "a.jsonl", [TEXT, "dull"])
    (tmp_path / "b.jsonl").symlink_to(file)
    names = [str(file), os.path.join(tmp_path, ".", "a.jsonl"), str(tmp_path / "b.jsonl")]
    assert [row["file"] for row in explained(names)] == [str(file)] * 2


@pytest.mark.parametrize("text", ["", "text,a\n"])
def test_no_rows_are_no_error(explained, tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    assert explained(tmp_path / "a.csv") == []
    assert list(load_results(tmp_path / "out")) == []


def test_lines_that_are_no_rows_have_their_places_and_errors(explained, tmp_path):
    lines = ['{"text": "good film"}', '{"text": ', "", "[1]", "null", '{"text": "a"}{"text": "b"}', '{"text": "dull"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = explained(tmp_path / "a.jsonl")
    assert [row["line"] for row in found] == [1, 2, 4, 5, 6, 7]
    assert [row["error"] is None for row in found] == [True, False, False, False, False, True]
    assert all(f"line {row['line']} of" in row["error"] for row in found[1:5])


def test_ids_may_be_null_or_there_twice(explained, tmp_path):
    rows = [{"text": TEXT, "key": 7}, {"text": TEXT, "key": None}, {"text": TEXT}, {"text": TEXT, "key": 7}]
    assert [row["id"] for row in explained(rows, id_column="key")] == ["7", None, None, "7"]


@pytest.mark.parametrize(
    "data, said",
    [
        (pyarrow.table({"text": [TEXT]}), "data is a table"),
        ((path for path in [Path("a.jsonl")]), "data yields paths"),
        ([], "give a path"),
    ],
)
def test_data_that_are_no_rows_are_refused(explained, data, said):
    with pytest.raises(OptionError, match=said):
        explained(data)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"ids": ["a"]}, "ids=.*id_column"),
        ({"read_ahead": 3}, "read_ahead=3.*rows_of_a_part"),
        ({"is_split_into_words": True}, "is_split_into_words=True"),
        ({"format": "xml"}, "format='xml': use one of 'text'"),
    ],
)
def test_arguments_that_a_run_does_not_take_are_refused(explained, options, said):
    with pytest.raises(OptionError, match=said):
        explained([{"text": TEXT}], **options)


def test_no_folder_is_not_this_folder(model):
    with pytest.raises(OptionError, match="out='' is no folder"):
        explain_dataset([{"text": TEXT}], model, out="", **OPTIONS)


def test_large_rows_make_small_parts_that_stay_the_same(explained, tmp_path, monkeypatch):
    monkeypatch.setattr(decompx_fast.bulk.units, "UNIT_CHARACTERS", 150)
    file = write_rows(tmp_path / "a.jsonl", [TEXT] * 5 + ["x" * 99] + [TEXT] * 20)
    rows = explained(file)
    parts = sorted((tmp_path / "out" / "parts").glob("part-*"))
    counts = [int(path.name.split("-")[2]) for path in parts]
    assert counts[0] == 6 and sum(counts) == 26 and max(counts) < 16
    parts[1].unlink()
    assert [row["row"] for row in explained(file)] == [row["row"] for row in rows]
    assert sorted((tmp_path / "out" / "parts").glob("part-*")) == parts


@pytest.mark.slow
def test_standard_input_is_read(model, tmp_path):
    out = tmp_path / "out"
    asked = ["-", "--format", "jsonl", "--out", str(out), "--model", model, "--workers", "0", "--quiet"]
    rows = "".join(json.dumps({"text": f"{TEXT} {n}"}) + "\n" for n in range(5))
    for _ in range(2):
        warm.run([sys.executable, "-m", "decompx_fast", "bulk", *asked], cwd=ROOT, input=rows, check=True)
    assert [row["file"] for row in rows_of(out)] == ["standard input"] * 5


@pytest.mark.parametrize("damage", ["truncated", "emptied", "shortened", "deleted"])
@pytest.mark.parametrize("output", ["parquet", "jsonl"])
def test_a_part_that_was_damaged_by_hand_is_told_and_made_again(model, tmp_path, output, damage):
    file, out = write_rows(tmp_path / "a.jsonl", [TEXT] * 40), tmp_path / "out"
    explain_dataset(file, model, out=out, output=output, **OPTIONS)
    part = sorted((out / "parts").glob("part-*"))[1]
    held = part.read_bytes()
    if damage == "shortened" and output == "parquet":
        table = pyarrow.parquet.read_table(part)
        pyarrow.parquet.write_table(table.slice(0, 7), part)
    elif damage == "deleted":
        part.unlink()
    else:
        half = held[: held.index(b"\n", len(held) // 2) + 1] if damage == "shortened" else held[: len(held) // 2]
        part.write_bytes(b"" if damage == "emptied" else half)
    if damage != "deleted":
        for again in (
            lambda: explain_dataset(file, model, out=out, output=output, **OPTIONS),
            lambda: list(load_results(out)),
        ):
            with pytest.raises(InputError, match=f"{part.name} .*delete it, and run again"):
                again()
        part.unlink()
    assert explain_dataset(file, model, out=out, output=output, **OPTIONS).explained == 16
    assert [one.metadata["input"] for one in load_results(out)] == list(range(40))


def test_a_record_that_was_changed_by_hand_is_told(model, tmp_path):
    file, out = write_rows(tmp_path / "a.jsonl", [TEXT]), tmp_path / "out"
    explain_dataset(file, model, out=out, output="jsonl", **OPTIONS)
    (part,) = (out / "parts").glob("part-*")
    record = json.loads(part.read_text())
    for changed in ({"row": 0}, {**record, "more": "{"}, {**record, "scores": None}):
        part.write_text(json.dumps(changed) + "\n")
        with pytest.raises(InputError, match=f"{part.name}: a record is damaged"):
            list(load_results(out))


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_is_warned_of_is_said_once_with_its_row(explained, tmp_path, workers):
    file = write_rows(tmp_path / "a.jsonl", [TEXT, "\U0001f600 " * 8, TEXT, "\U0001f601 " * 8])
    with warm.workers(), pytest.warns(UserWarning, match=r"line 2 of .*a\.jsonl.* \(said once, whatever") as said:
        explained(file, workers=workers, rows_of_a_part=1)
    assert len(said) == 1


def test_what_is_warned_of_names_all_rows_that_it_is_about(explained, tmp_path):
    file = write_rows(tmp_path / "a.jsonl", [TEXT, "\U0001f600 " * 8, TEXT, "\U0001f601 " * 8])
    with pytest.warns(UserWarning, match=r"line 2 of .*a\.jsonl .*, line 4 of .*a\.jsonl "):
        explained(file)


def test_two_parts_with_the_same_rows_are_told(model, tmp_path):
    file, out = write_rows(tmp_path / "a.jsonl", [TEXT] * 4), tmp_path / "out"
    explain_dataset(file, model, out=out, **OPTIONS)
    (part,) = (out / "parts").iterdir()
    shutil.copy(part, other := part.with_name(part.name.replace("-00004-", "-00002-")))
    for again in (lambda: explain_dataset(file, model, out=out, **OPTIONS), lambda: list(load_results(out))):
        with pytest.raises(InputError, match=f"two parts with row 0, {other.name} and {part.name}: delete"):
            again()


def test_a_last_line_that_was_half_written_is_explained_when_its_part_is_deleted(model, tmp_path):
    file, out = write_rows(tmp_path / "a.jsonl", [TEXT] * 20), tmp_path / "out"
    whole = file.read_text()
    file.write_text(whole[:-9])
    assert explain_dataset(file, model, out=out, **OPTIONS).errors == 1
    file.write_text(whole)
    with pytest.raises(InputError, match="rows 16 to 19 .* were others .* delete part-000000000016-00004-"):
        explain_dataset(file, model, out=out, **OPTIONS)
    next(out.glob("parts/part-000000000016-*")).unlink()
    found = explain_dataset(file, model, out=out, **OPTIONS)
    assert (found.rows, found.explained, found.errors) == (20, 4, 0)
