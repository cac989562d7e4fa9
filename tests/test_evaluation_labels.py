"""Labels: names win in every format, numbers are indices only where nothing else can be meant."""

from __future__ import annotations

import json
import warnings

import pyarrow
import pyarrow.parquet
import pytest

from decompx_fast.errors import InputError, OptionError
from decompx_fast.evaluation.data import read_dataset
from decompx_fast.evaluation.labels import resolve_labels

STARS = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")


def resolve(values, classes, label_map=None):
    return resolve_labels([(f"line {n}", value) for n, value in enumerate(values, 2)], classes, label_map)


def write(path, labels):
    """The same labels in the format of a file: numbers are numbers where it has any."""
    rows = [{"text": f"text {n}", "label": label} for n, label in enumerate(labels)]
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        between = "," if path.suffix == ".csv" else "\t"
        lines = [f"{row['text']}{between}{row['label']}\n" for row in rows]
        path.write_text(f"text{between}label\n" + "".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_names_win_in_every_format(tmp_path, ending):
    path = write(tmp_path / f"x.{ending}", [1, 5, 3])
    assert read_dataset(path, ("1", "2", "3", "4", "5")).labels == (0, 4, 2)
    path = write(tmp_path / f"y.{ending}", [1, 0, 1])
    assert read_dataset(path, ("no", "yes")).labels == (1, 0, 1)
    path = write(tmp_path / f"z.{ending}", [1.0, 0.0, 1.0])  # as a table with a gap in the column writes them
    assert read_dataset(path, ("no", "yes")).labels == (1, 0, 1)


@pytest.mark.parametrize("values", [(1, 3, 4), ("1", "3", "4"), (4.0,)])
def test_numbers_that_names_hold_are_no_indices(values):
    with pytest.raises(InputError, match="may mean the class '. stars?', or that with the index .*label_map"):
        resolve(values, STARS)
    by_stars = {str(n): f"{n} star{'s' * (n > 1)}" for n in range(1, 6)}
    assert resolve([1, "3", 4], STARS, by_stars) == [0, 2, 3]


@pytest.mark.parametrize("gap", [None, "", " ", float("nan")])
def test_a_text_without_a_label_is_named(gap):
    for values in ([0, gap, 1], [gap, gap], ["no", gap]):
        with pytest.raises(InputError, match=r"line . has no label: fill it, drop the row, or drop the column"):
            resolve(values, ("no", "yes"))
    assert resolve(["nan", "inf"], ("nan", "inf")) == [0, 1]
    assert resolve(["x", ""], ("no", "yes"), {"x": "yes", "": "no"}) == [1, 0]


def test_numbers_in_names_at_their_own_index_change_nothing():
    assert resolve([1, 0, "2"], ("LABEL_0", "LABEL_1", "LABEL_2")) == [1, 0, 2]
    assert resolve([0, 1], ("CO2", "H2O")) == [0, 1]


def test_names_and_indices_are_not_mixed():
    with pytest.raises(InputError, match="line 3 has the label '1'"):
        resolve(["yes", "1"], ("no", "yes"))
    with pytest.raises(InputError, match="line 3 has the label 2.*from 0 to 1"):
        resolve([1, 2], ("no", "yes"))


def test_case_is_forgiven_with_a_warning():
    with pytest.warns(UserWarning, match="'positive' as 'POSITIVE'"):
        assert resolve(["positive", "NEGATIVE", " Positive "], ("NEGATIVE", "POSITIVE")) == [1, 0, 1]
    with pytest.warns(UserWarning, match="'2.0' as '2'"):
        assert resolve([2.0, 1.0], ("1", "2")) == [1, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve(["a", "A"], ("A", "a")) == [1, 0]
    with pytest.raises(InputError, match="label 'ab'"):  # it may be either
        resolve(["ab", "AB"], ("AB", "Ab"))


@pytest.mark.parametrize("value", [True, 1.5, "²", -1, ["yes"]])
def test_what_is_no_label_is_refused(value):
    with pytest.raises(InputError, match="line 2 has the label"):
        resolve([value], ("no", "yes"))


def test_truth_values_are_names_and_no_indices():
    with pytest.warns(UserWarning, match="'True' as 'true'"):
        assert resolve([True, False], ("true", "false")) == [0, 1]


def test_a_near_name_is_suggested():
    with pytest.raises(InputError, match="did you mean 'NEGATIVE'"):
        resolve(["negativ"], ("NEGATIVE", "POSITIVE"))


def test_a_map_names_every_label_and_known_classes():
    assert resolve([1, 0, "x"], ("no", "yes"), {"1": "no", 0: 1, "x": "yes"}) == [0, 1, 1]
    with pytest.raises(InputError, match="line 3 has the label 'pos'.*only neg"):
        resolve(["neg", "pos"], ("no", "yes"), {"neg": 0})
    with pytest.raises(OptionError, match="label_map has the class 'maybe' for 'neg'"):
        resolve(["neg"], ("no", "yes"), {"neg": "maybe"})


def test_a_data_frame_is_refused_with_what_to_do():
    class DataFrame:
        pass

    with pytest.raises(InputError, match="data is a DataFrame: give the name of a file.*to_csv"):
        read_dataset(DataFrame(), ("no", "yes"))


def test_negative_numbers_are_forgiven_like_others():
    """Sentiment from -1 to 1, as a table with a gap in the column writes it."""
    with pytest.warns(UserWarning, match="'-1.0' as '-1'"):
        assert resolve([-1.0, 0.0, 1.0], ("-1", "0", "1")) == [0, 1, 2]
    with pytest.raises(InputError, match="the label -1"):
        resolve([-1.0, 0.0], ("no", "yes"))  # no index


def test_a_map_forgives_how_a_number_is_written():
    stars = {"1": "1 star", 5: "5 stars"}
    assert resolve([1.0, 5.0, 1], STARS, stars) == [0, 4, 0]
    assert resolve(["1.0", "5"], STARS, stars) == [0, 4]
    both = {"1": "1 star", "1.0": "2 stars", 5: "5 stars"}  # what is written wins
    assert resolve(["1.0", "1", 5.0], STARS, both) == [1, 0, 4]
