"""Bulk runs of every task: one schema, and results that are what the explainer says of each input alone."""

from __future__ import annotations

from pathlib import Path

import generation_models
import models
import numpy as np
import pyarrow.parquet
import pytest
import task_models
import torch
import vision_models
from PIL import Image
from test_pictures import processor

from decompx_fast import DecompX, Explanation
from decompx_fast.bulk import explain_dataset, load_results
from decompx_fast.cli import cli
from decompx_fast.result.file import to_dict

EXACT = {"rtol": 1e-9, "atol": 1e-9}  # in float64, batches of other sizes


def run(explainer: DecompX, inputs: list, out: Path, output: str = "parquet", **arguments) -> list[Explanation]:
    rows = [{"a": one[0], "b": one[1]} if isinstance(one, tuple) else {"a": one} for one in inputs]
    columns = {"text_column": "a", "pair_column": "b" if isinstance(inputs[0], tuple) else None}
    found = explain_dataset(rows, explainer, out=out, output=output, workers=0, progress=False, **columns, **arguments)
    assert (found.rows, found.errors) == (len(inputs), 0)
    return list(load_results(out))


def same(one: Explanation, other: Explanation) -> None:
    """All that is in one is in the other, but for how it was computed and where it was read."""
    first, second = (to_dict(explanation) for explanation in (one, other))
    for name in ("metadata", "time_s", "completeness_error"):
        first.pop(name), second.pop(name)
    for name in ("scores", "target_logits", "logits", "bias_token", "probabilities"):
        found, expected = first.pop(name), second.pop(name)
        assert (found is None) == (expected is None)
        if expected is not None:
            np.testing.assert_allclose(found, expected, **EXACT)
    for explanation in (first, second):
        for reading in explanation.get("predictions") or []:
            reading["score"] = pytest.approx(reading["score"], abs=1e-9)
        for reading in [*(explanation.get("entities") or []), explanation.get("answer") or {}]:
            for name in ("score", "no_answer_score"):
                if reading.get(name) is not None:
                    reading[name] = pytest.approx(reading[name], abs=1e-9)
    assert first == second


@pytest.mark.parametrize("output", ["parquet", "jsonl"])
@pytest.mark.parametrize("task", task_models.HEADS)
def test_tasks_of_encoders(task, output, tmp_path):
    explainer = DecompX(task_models.model(task), models.word_piece())
    given = task_models.INPUTS[task]
    longer = (given[0], given[1] + " It rained.") if isinstance(given, tuple) else given + " It rained."
    for found, asked in zip(run(explainer, [given, longer], tmp_path, output), [given, longer], strict=True):
        same(found, explainer.explain(asked))


@pytest.mark.parametrize("arguments", [{}, {"generate": 3}, {"generate": 3, "answer": "sum", "contrast": "mean"}])
def test_language_models(arguments, tmp_path):
    explainer = DecompX(generation_models.llama(), generation_models.byte_level())
    inputs = [generation_models.PROMPT, "one two", "three"]
    for found, asked in zip(run(explainer, inputs, tmp_path, **arguments), inputs, strict=True):
        same(found, explainer.explain(asked, **arguments))


def test_pictures_by_their_paths(tmp_path):
    explainer = DecompX(vision_models.classifier("vit"), processor())
    draw = np.random.default_rng(0)
    paths = [str(tmp_path / f"{n}.png") for n in range(3)]
    for path in paths:
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    for found, path in zip(run(explainer, paths, tmp_path / "out"), paths, strict=True):
        own = explainer.explain(path)
        torch.testing.assert_close(found.scores, own.scores)
        torch.testing.assert_close(found.patches(0), own.patches(0))


def test_words_are_merged_where_that_is_asked_for(tmp_path):
    explainer = DecompX(task_models.model("token-classification"), models.word_piece())
    text = task_models.INPUTS["token-classification"]
    (found,) = run(explainer, [text], tmp_path, words=True)
    same(found, explainer.explain(text).words())


def test_all_tasks_have_one_schema(tmp_path):
    run(DecompX(task_models.model("question-answering"), models.word_piece()), [("Who?", "John.")], tmp_path / "a")
    run(DecompX(generation_models.llama(), generation_models.byte_level()), ["one"], tmp_path / "b", generate=2)
    first, second = (pyarrow.parquet.read_schema(next((tmp_path / name / "parts").iterdir())) for name in "ab")
    assert first.equals(second)


def test_the_command_asks_what_explain_asks():
    """Every option of ``explain`` that is about the question and the computation, and not about its output."""
    options = [{option.name for option in cli.commands[name].params} for name in ("explain", "bulk")]
    others = {"texts", "images", "sounds", "file", "format_", "html", "json_", "jsonl", "details", "continuation"}
    others |= {"difference", "layers"}  # of tables that are printed
    others |= {"pairs", "storage", "folder"}  # those of a file are a column; for the one text that does not fit
    assert options[0] - others <= options[1]
