"""Published data sets from files of the format that they come in; hubs are never asked."""

from __future__ import annotations

import json

import pyarrow
import pyarrow.parquet
import pytest

from decompx_fast.errors import InputError, OptionError
from decompx_fast.evaluation import corpora, snippets
from decompx_fast.evaluation.data import read_dataset

NLI = ("entailment", "neutral", "contradiction")


def write_rows(path, rows):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def marked(found) -> list[list[str]]:
    """What is marked, by text."""
    parts = [(text,) if isinstance(text, str) else text for text in found.texts]
    return [
        [own[segment][start:end] for segment, start, end in marks or ()]
        for own, marks in zip(parts, found.rationales, strict=True)
    ]


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_rows_of_glue_and_sst2(tmp_path, ending):
    rows = [{"idx": 0, "sentence": "a fine film", "label": 1}, {"idx": 1, "sentence": "a mess", "label": 0}]
    found = read_dataset(f"sst2:{write_rows(tmp_path / f's.{ending}', rows)}", ("NEGATIVE", "POSITIVE"))
    assert (found.name, found.texts, found.labels) == ("sst2", ("a fine film", "a mess"), (1, 0))
    assert found.rationales is None
    rows = [{"premise": "a man runs", "hypothesis": "he sits", "label": 2, "idx": 0}]
    found = read_dataset(
        f"mnli:{write_rows(tmp_path / f'm.{ending}', rows)}", ("contradiction", "neutral", "entailment")
    )
    assert (found.texts, found.labels, found.is_pairs) == ((("a man runs", "he sits"),), (0,), True)
    rows = [{"question": "who runs", "sentence": "a man runs", "label": 0, "idx": 0}] * 3
    found = read_dataset(
        f"qnli:{write_rows(tmp_path / f'q.{ending}', rows)}", ("entailment", "not_entailment"), limit=2
    )
    assert (found.texts[1], found.labels) == (("who runs", "a man runs"), (0, 0))


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_rows_of_hatexplain(tmp_path, ending):
    votes = {"label": [0, 2, 0], "annotator_id": [1, 2, 3], "target": [["A"], ["A"], ["B"]]}
    rows = [
        {"id": "1", "annotators": votes, "rationales": [[0, 1, 1], [0, 1, 0]], "post_tokens": ["they", "are", "x"]},
        {"id": "2", "annotators": {**votes, "label": [1, 1, 2]}, "rationales": [], "post_tokens": ["hello", "you"]},
    ]
    path = write_rows(tmp_path / f"x.{ending}", rows)
    found = read_dataset(f"hatexplain:{path}", ("hatespeech", "normal", "offensive"))
    assert (found.texts, found.labels) == (("they are x", "hello you"), (0, 1))
    assert marked(found) == [["are", "x"], []]


def test_movies_from_rows_and_from_erasers_folder(tmp_path):
    review = "the plot is thin .\nbut the acting is superb ."
    rows = [{"review": review, "label": 1, "evidences": ["acting is superb", "not in it"]}]
    found = read_dataset(f"movies:{write_rows(tmp_path / 'x.parquet', rows)}", ("NEG", "POS"))
    assert (found.labels, marked(found)) == ((1,), [["acting is superb"]])

    folder = tmp_path / "movies"
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "posR_1.txt").write_text(review, encoding="utf-8")
    span = {"docid": "posR_1.txt", "start_token": 7, "end_token": 9, "start_sentence": 1, "end_sentence": 2, "text": ""}
    row = {"annotation_id": "posR_1.txt", "classification": "POS", "evidences": [[span]], "query": "?"}
    write_rows(folder / "test.jsonl", [{**row, "query_type": None}])
    found = read_dataset(f"movies:{folder}", ("negative", "positive"), label_map={"NEG": 0, "POS": 1})
    assert (found.texts, found.labels) == ((" ".join(review.split()),), (1,))
    assert marked(found) == [["acting", "is"]]
    write_rows(folder / "test.jsonl", [{**row, "annotation_id": "posR_2.txt"}])
    with pytest.raises(InputError, match="line 1 of .*test.jsonl is no row of movies: .*No such file.*posR_2.txt"):
        read_dataset(f"movies:{folder}", ("NEG", "POS"))


def test_esnli_from_rows_from_the_authors_files_and_from_erasers_folder(tmp_path):
    rows = [{"premise": "a man runs", "hypothesis": "he sits", "label": 2, "explanation_1": "no"}]
    found = read_dataset(f"esnli:{write_rows(tmp_path / 'x.jsonl', rows)}", NLI)
    assert (found.texts, found.labels, found.rationales) == ((("a man runs", "he sits"),), (2,), None)

    path = tmp_path / "esnli_test.csv"
    columns = "pairID,gold_label,Sentence1,Sentence2,Sentence1_marked_1,Sentence2_marked_1"
    path.write_text(f"{columns}\n1,neutral,a man runs,he sits,a man *runs*,*he* sits\n", encoding="utf-8")
    found = read_dataset(f"esnli:{path}", NLI)
    assert (found.texts, found.labels) == ((("a man runs", "he sits"),), (1,))
    assert marked(found) == [["runs", "he"]]

    folder = tmp_path / "esnli"
    folder.mkdir()
    documents = {"7_premise": "a man runs", "7_hypothesis": "he sits"}
    write_rows(folder / "docs.jsonl", [{"docid": name, "document": text} for name, text in documents.items()])
    spans = [{"docid": "7_hypothesis", "start_token": 1, "end_token": 2, "text": "sits"}]
    write_rows(folder / "test.jsonl", [{"annotation_id": "7", "classification": "contradiction", "evidences": [spans]}])
    found = read_dataset(f"esnli:{folder}", NLI)
    assert (found.texts, found.labels, marked(found)) == ((("a man runs", "he sits"),), (2,), [["sits"]])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a", "label": 1}, "line 1 of .* is no row of sst2: no column 'sentence'"),
        ({"sentence": "a", "label": -1}, "is no row of sst2: the label -1 is none of negative, positive"),
        ({"sentence": " ", "label": 1}, "is no row of sst2: ' ' is no text"),
    ],
)
def test_rows_of_another_form_are_named(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        read_dataset(f"sst2:{write_rows(tmp_path / 'x.jsonl', [row])}", ("negative", "positive"))


def test_a_hub_is_asked_by_name_and_its_absence_said(monkeypatch):
    class Hub:
        @staticmethod
        def load_dataset(repository, config, split):
            assert (repository, config, split) == ("nyu-mll/glue", "mnli", "validation_matched")
            if not rows:
                raise ConnectionError("no route")
            return rows

    monkeypatch.setattr(corpora, "import_optional", lambda name, needed_by: Hub)
    rows = [{"premise": "a", "hypothesis": "b", "label": 0}]
    assert read_dataset("mnli", NLI).texts == (("a", "b"),)
    rows = []
    with pytest.raises(InputError, match="mnli could not be loaded.*no route.*give its file as mnli:PATH"):
        read_dataset("mnli", NLI)
    with pytest.raises(OptionError, match="'mnli' has no columns to choose from"):
        read_dataset("mnli", NLI, text_column="premise")


def test_other_snippets_are_the_clear_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "decompx-fast" / snippets.OTHER_FILES["tweet-snippets"]
    path.parent.mkdir()
    path.write_text("1\t2.0\tlove it\n2\t-0.9\tso so\n3\t-3.1\tawful\tthing\n4\t1.5\tLove it!\n", encoding="utf-8")
    found = read_dataset("tweet-snippets", ("negative", "positive"))
    assert sorted(zip(found.texts, found.labels, strict=True)) == [("awful\tthing", 0), ("love it", 1)]
    assert found.name == "tweet-snippets"
