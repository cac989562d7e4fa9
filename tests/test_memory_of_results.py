"""A result costs its own size, whatever it was computed together with, and whatever is kept of it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator

import generation_models
import models
import pytest
import task_models
import torch
import vision_models
from models import classifier, token_ids
from test_similarity import encoder
from torch import Tensor

from decompx_fast import DecompX, Explanation

BATCH = 64


def tensors_of(explanation: Explanation) -> Iterator[Tensor]:
    yield from (explanation.scores, explanation.target_logits, explanation.logits)
    yield from explanation.stages.values()
    yield from explanation.component_shares.values()
    yield from (site.value for site in explanation.bias_sites or ())
    if explanation.bias_token is not None:
        yield explanation.bias_token


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": "none"},
        {"bias": "bias_token"},
        {"bias": "bias_token", "engine": "forward", "head": False},
        {"engine": "reference", "stages": ("attention", "encoder"), "stage_output": "vector"},
        {"engine": "forward", "stages": ("encoder", "pooler"), "stage_output": "vector"},
        {"positions": [1, 2], "stage_output": "vector"},
        {"head": False},
        {"targets": ["LABEL_1", {"LABEL_0": 1, "LABEL_1": -1}], "bias": "cls"},
        {"sources": [0, 0, 1, 2, 2, 2, 3], "bias": "none"},
    ],
    ids=str,
)
def test_one_result_of_a_batch_holds_and_pickles_its_own_size(options):
    explainer = DecompX(classifier())
    ids = token_ids().tolist()
    alone = explainer.explain(ids[0], **options)
    one = explainer.explain(ids * BATCH, batch_size=BATCH, **options)[BATCH // 2]
    assert len(pickle.dumps(one)) <= 1.05 * len(pickle.dumps(alone))
    for tensor in tensors_of(one):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    torch.testing.assert_close(one.scores, alone.scores)


@pytest.mark.parametrize("task", ["token-classification", "question-answering", "fill-mask"])
def test_one_result_of_a_task_pickles_its_own_size(task):
    explainer, given = DecompX(task_models.model(task), models.word_piece()), task_models.INPUTS[task]
    alone, one = explainer.explain(given), explainer.explain([given] * BATCH, batch_size=BATCH)[BATCH // 2]
    assert_pickles_alone(one, alone)
    if task == "token-classification":
        assert_pickles_alone(one.words(), alone.words())


@pytest.mark.parametrize("answer", ["tokens", "both"])
def test_one_matrix_of_sources_and_an_output_pickles_its_own_size(answer):
    explainer = DecompX(generation_models.llama(), generation_models.byte_level())
    options = {"generate": 4, "answer": answer}
    given = [generation_models.PROMPT] * 8
    assert_pickles_alone(explainer.explain(given, **options)[3], explainer.explain(given[0], **options))


def test_one_picture_of_a_batch_pickles_its_own_size():
    explainer = DecompX(vision_models.classifier("vit"))
    pixels = vision_models.inputs("vit", 8)["pixel_values"]
    alone = explainer.explain({"pixel_values": pixels[5:6]})[0]
    one = explainer.explain({"pixel_values": pixels})[5]
    assert_pickles_alone(one, alone)
    for kept in (one.picture.groups, one.picture.pixels):
        assert kept is None or kept.untyped_storage().nbytes() == kept.nbytes


@pytest.mark.parametrize("options", [{}, {"bias": "bias_token"}, {"side": "a", "bias": "none"}], ids=str)
def test_one_pair_of_many_pickles_its_own_size(options):
    explainer, texts = DecompX(encoder()), [[7, 17, 52, 6], [5, 8, 9, 41, 3, 2, 11, 30]]
    alone = explainer.similarity(texts[0], texts[1], **options)
    one = explainer.similarity(texts[0], texts * 8, **options)[9]
    assert_pickles_alone(one, alone)
    assert one.scores.untyped_storage().nbytes() == one.scores.nbytes


def assert_pickles_alone(one, alone) -> None:
    """One of many costs what it costs alone, and comes back as it was."""
    held = pickle.dumps(one)
    assert len(held) <= 1.05 * len(pickle.dumps(alone))
    back = pickle.loads(held)
    assert torch.equal(back.scores, one.scores)
    first, second = back.to_dict(), one.to_dict()
    assert json.dumps(first) == json.dumps(second)
    torch.testing.assert_close(one.scores, alone.scores)


def test_a_result_made_of_views_holds_no_more_than_they_show():
    explanation = DecompX(classifier()).explain(token_ids().tolist()[0])
    arguments = {name: getattr(explanation, name) for name in explanation.__dataclass_fields__}
    large = torch.zeros(1000, *explanation.scores.shape)
    made = Explanation(**{**arguments, "scores": large[7]})
    assert made.scores.untyped_storage().nbytes() == made.scores.nbytes
