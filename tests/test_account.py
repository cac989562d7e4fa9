"""What scores add up to, in words: what is complete, what an option left out, and what is no logit."""

from __future__ import annotations

import re

import models
import pytest
import torch
from explanation_samples import simple

from decompx_fast import DecompX
from decompx_fast.result.account import account
from decompx_fast.result.kinds import Site

TEXT = models.TEXTS[0]


@pytest.fixture(scope="module")
def explainer() -> DecompX:
    return DecompX(models.classifier(vocab=models.WORD_PIECES), models.word_piece())


def test_complete_scores_say_how_far(explainer) -> None:
    found = account(explainer(TEXT), 0)
    assert (found.status, found.remainder_name, found.is_sound) == ("Complete", "", True)
    assert re.fullmatch(r"to within \d\.\de-1\d of the model's value", found.extent)


@pytest.mark.parametrize("engine", ["adjoint", "forward", "reference"])
def test_biases_that_are_left_out_are_counted_and_meant(explainer, engine) -> None:
    explanation = explainer(TEXT, bias="none", engine=engine)
    logit = float(models_logits(explainer)[1])
    biases = logit - float(explanation.scores[:, 1].sum())
    found = account(explanation, 1)
    assert (found.status, found.remainder_name, found.is_sound) == ("Left out", "the biases, left out", True)
    assert found.remainder == pytest.approx(biases, abs=1e-9)
    assert "by design" in found.extent
    assert float(re.search(r"they give ([+-]\d+\.\d+) of the logit", found.extent)[1]) == pytest.approx(
        biases, abs=2e-3
    )
    assert ("complete with them to within" in found.extent) == (engine == "adjoint")


def models_logits(explainer) -> torch.Tensor:
    with torch.no_grad():
        return explainer.model(**explainer.tokenizer(TEXT, return_tensors="pt")).logits[0]


def test_biases_that_do_not_close_the_gap_are_a_fault() -> None:
    sites = (Site(0, "ln1", torch.tensor([1.0])),)
    explanation = simple([1.0], options={"bias": "none"}, target_logits=torch.tensor([5.0]), bias_sites=sites)
    found = account(explanation, 0)
    assert (found.status, found.is_sound) == ("Incomplete", False)
    assert "by 3, even with the biases" in found.extent


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"ffn": False}, "the feed-forward network"),
        ({"ln1": False, "ln2": False}, "the first LayerNorm and the second LayerNorm"),
        ({"bias": "none", "activation": "relu"}, "the biases and the slopes of the activation"),
    ],
)
def test_what_is_left_out_is_named(explainer, options, what) -> None:
    explanation = explainer(TEXT, **options)
    found = account(explanation, 0)
    lacking = float(models_logits(explainer)[0] - explanation.scores[:, 0].sum())
    assert found.status == "Left out" and found.is_sound
    assert found.extent.startswith(f"{what}, by design: the scores lack ")
    assert float(re.search(r"lack ([+-][\d.]+)", found.extent)[1]) == pytest.approx(lacking, abs=2e-3)


@pytest.mark.parametrize("aggregation", ["vector", "rollout", "none"])
@pytest.mark.parametrize("bias", ["absdot", "none"])
def test_norms_are_no_logit(explainer, aggregation, bias) -> None:
    found = account(explainer(TEXT, head=False, aggregation=aggregation, bias=bias), 0)
    assert (found.status, found.value_name, found.remainder_name) == ("Norms", "sum of norms", "")
    assert "model's value" not in found.extent and "they belong to no class" in found.extent
    assert ("add up to the model's states to within" in found.extent) == (bias == "absdot")
    assert ("the biases left out by design" in found.extent) == (bias == "none")


def test_parts_always_add_up_to_the_value() -> None:
    explanation = simple([[1.0, 2.0]], bias_token=torch.tensor([0.5, 0.25]), target_logits=torch.tensor([9.0, 8.0]))
    for column in range(2):
        found = account(explanation, column)
        assert found.sources + found.apart + found.remainder == found.value
