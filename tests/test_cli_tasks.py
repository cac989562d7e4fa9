"""Tasks on the command line."""

from __future__ import annotations

import json

import models
import pytest
import task_models
import torch
from test_cli import fails, run
from transformers import BertModel

from decompx_fast import Word
from decompx_fast.commands.values import places


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    found = {}
    for task in ("token-classification", "question-answering", "fill-mask"):
        found[task] = str(tmp_path_factory.mktemp("models") / task)
        task_models.model(task, dtype=torch.float32).save_pretrained(found[task])
        models.word_piece().save_pretrained(found[task])
    return found


def explained(capsys, *arguments: str) -> list[dict]:
    code, out, _ = run(capsys, "explain", *arguments, "--json", "-")
    assert code == 0
    return json.loads(out)


def test_places_are_written_as_numbers():
    assert places(["3", "-2", "4:9", "1:4:9", "word:2", "word:1:2", "all", "New York", "a:b"]) == [
        *(3, -2, (4, 9), (1, 4, 9), Word(2), Word(2, text=1), "all", "New York", "a:b"),
    ]


def test_words_masks_and_answers(capsys, folders, tmp_path):
    (one,) = explained(
        capsys, "John met Mary", "--model", folders["token-classification"], "--at", "word:1", "--at", "0:4"
    )
    assert [name.split(" @ ")[1] for name in one["targets"]] == ["John", "met"]
    assert one["task"] == "token-classification" and "entities" in one
    (one,) = explained(capsys, "a [MASK] film", "--model", folders["fill-mask"], "--top-k", "2")
    assert len(one["targets"]) == len(one["predictions"]) == 2
    (one,) = explained(capsys, "a [MASK] film", "--model", folders["fill-mask"], "--target", "good", "--target", "1889")
    assert one["targets"] == ["good @ [MASK]", "1889 @ [MASK]"]
    table = tmp_path / "pairs.csv"
    table.write_text("text,context\nWho met?,John met Mary.\n", encoding="utf-8")
    pair = ("--file", str(table), "--pair-column", "context", "--model", folders["question-answering"])
    (one,) = explained(capsys, *pair)
    assert one["answer"]["text"] in "John met Mary." and len(one["targets"]) == 3
    options = ("--max-answer-tokens", "2", "--max-seq-len", "9", "--doc-stride", "1")
    (one,) = explained(capsys, *pair, *options)
    assert len(one["tokens"]) <= 9 and one["metadata"]["windows"] > 1
    options = ("--max-answer-tokens", "2", "--max-seq-len", "9", "--doc-stride", "5")  # which would not get on
    assert "--doc-stride=5" in fails(capsys, 1, "explain", *pair, *options)


def test_second_texts_go_with_their_texts(capsys, folders):
    reader = ("--model", folders["question-answering"])
    (one,) = explained(capsys, "Who met?", "--pair", "John met Mary.", *reader)
    assert one["texts"] == ["Who met?", "John met Mary."] and one["answer"]["text"] in "John met Mary."
    found = explained(capsys, "Who met?", "--pair", "John met Mary.", "--pair", "She left.", *reader)
    assert [each["texts"] for each in found] == [["Who met?", "John met Mary."], ["Who met?", "She left."]]
    found = explained(capsys, "Who?", "Where?", "--pair", "John met Mary.", "--pair", "In York.", *reader)
    assert [each["texts"] for each in found] == [["Who?", "John met Mary."], ["Where?", "In York."]]


def test_labels_of_words_that_are_no_entity_are_named(capsys, folders):
    tagger = ("explain", "John met Mary", "--model", folders["token-classification"], "--json", "-")
    _, out, _ = run(capsys, *tagger)
    label = json.loads(out)[0]["targets"][0].split(" @ ")[0]
    _, out, _ = run(capsys, *tagger, "--ignore-label", label)
    assert not any(name.startswith(f"{label} @") for name in json.loads(out)[0]["targets"])
    code, out, err = run(capsys, *tagger, "--ignore-label", "PERSON")
    assert (code, out) == (2, "") and "there is no label 'PERSON'" in err


def test_a_head_can_be_named(capsys, folders):
    code, out, err = run(capsys, "explain", "John", "--model", folders["fill-mask"], "--task", "ner")
    assert code == 0 and "was not trained" in err and "Predicted" in out


def test_errors_name_the_options(capsys, folders, tmp_path):
    reader, filler = folders["question-answering"], folders["fill-mask"]
    assert "the context by --pair, or its column by --pair-column" in fails(
        capsys, 1, "explain", "Who?", "--model", reader
    )
    said = fails(capsys, 2, "explain", "a", "b", "--pair", "c", "--model", reader)
    assert "2 TEXTs and 1 times --pair" in said
    assert "or name tokens by --at\n" in fails(capsys, 1, "explain", "a", "--model", filler)
    assert "--task='nonsense' is no task" in fails(capsys, 2, "explain", "a", "--task", "nonsense")
    assert "`decompx-fast similarity A B`" in fails(capsys, 2, "explain", "a", "--task", "similarity")
    said = fails(capsys, 1, "similarity", "a", "b", "--model", filler)
    assert "gives classes and not one vector" in said and "with its pooling as by --pooling mean, or" in said
    BertModel(task_models.model("fill-mask").config).save_pretrained(tmp_path)
    models.word_piece().save_pretrained(tmp_path)
    capsys.readouterr()  # bars of transformers
    said = fails(capsys, 1, "explain", "a", "--model", str(tmp_path))
    assert "trained for by --task; to compare texts" in said and "(similarity)" in said
    assert said.endswith("as by --pooling mean\n")
    assert "--task" in fails(capsys, 2, "explain", "a", "--task", "ner")
    assert "--task='x' is no task" in fails(capsys, 2, "explain", "a", "--model", folders["fill-mask"], "--task", "x")
    assert "no mask in the input" in fails(capsys, 1, "explain", "a", "--model", folders["fill-mask"])
    text = fails(capsys, 1, "explain", "a b", "--model", folders["token-classification"], "--at", "99")
    assert text.startswith("decompx-fast: text 1: --at=99 is beyond the input")
    assert "occurs 2 times" in fails(
        capsys, 1, "explain", "a b a", "--model", folders["token-classification"], "--at", "a"
    )
