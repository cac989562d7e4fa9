"""``decompx-fast similarity``, as it is typed."""

from __future__ import annotations

import json

import models
import pytest
from test_sentence import bert

import decompx_fast
from decompx_fast.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("encoder")
    bert(vocab_size=models.WORD_PIECES, num_hidden_layers=1).float().save_pretrained(path)
    models.word_piece().save_pretrained(path)
    return str(path)


def test_the_embedded_encoder_compares_a_query_with_passages(capsys, tmp_path):
    out, page = tmp_path / "pairs.json", tmp_path / "pairs.html"
    texts = ["a cat", "the kitten sleeps", "stocks fell"]
    assert main(["similarity", *texts, "--words", "--json", str(out), "--html", str(page)]) == 0
    said = capsys.readouterr()
    assert "passage 1: the kitten sleeps" in said.out and "passage 2: stocks fell" in said.out and not said.err
    found = decompx_fast.read_json(out)
    assert [one.metadata["passage"] for one in found] == [0, 1]
    assert found[0].value > found[1].value
    assert all(abs(one.total - one.value) < 1e-5 for one in found)
    assert page.read_text().count("dx-pair") > 2 and "passage 2: stocks fell" in page.read_text()


def test_options_are_those_of_the_call(capsys, folder):
    arguments = ["similarity", "a cat", "a film", "--model", folder, "--pooling", "cls", "--json", "-"]
    assert main([*arguments, "--side", "query", "--bias", "bias_token", "--measure", "dot", "--dtype", "float64"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["measure"] == "dot" and found["options"]["bias"] == "bias_token"
    assert found["metadata"]["pooling"] == "cls" and found["metadata"]["dtype"] == "float64"
    assert len(found["scores"]) == 5 and len(found["scores"][0]) == 1 and found["b"]["source_unit"] == "text"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a"], 2, "Missing argument 'PASSAGE...'"),
        (["a", "b", "--pooling", "mean"], 2, "give --model PATH"),
        (["a", "b", "--measure", "l2"], 2, "'cos', 'dot'"),
        (["a", "  "], 1, "b: input 0 is an empty text"),
        (["a", "b", "--bias", "absdot", "--engine", "adjoint"], 2, "--engine='adjoint' cannot answer"),
        (["a", "b", "--html", "-"], 2, "--html needs a file"),
    ],
)
def test_wrong_uses_are_one_line(capsys, arguments, code, message):
    assert main(["similarity", *arguments]) == code
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and not said.out


def test_a_classifier_is_refused(capsys, tmp_path):
    models.classifier(vocab=models.WORD_PIECES).save_pretrained(tmp_path)
    models.word_piece().save_pretrained(tmp_path)
    assert main(["similarity", "a", "b", "--model", str(tmp_path)]) == 1
    assert "gives classes and not one vector" in capsys.readouterr().err
