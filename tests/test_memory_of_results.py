"""A result costs its own size, whatever it was computed together with, and whatever is kept of it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
import torch
from models import classifier, token_ids
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


def test_a_result_made_of_views_holds_no_more_than_they_show():
    explanation = DecompX(classifier()).explain(token_ids().tolist()[0])
    arguments = {name: getattr(explanation, name) for name in explanation.__dataclass_fields__}
    large = torch.zeros(1000, *explanation.scores.shape)
    made = Explanation(**{**arguments, "scores": large[7]})
    assert made.scores.untyped_storage().nbytes() == made.scores.nbytes
