"""What each component carries: the ways out of every sublayer, and the biases from there on, make up the logit."""

from __future__ import annotations

import pytest
import torch
from random_models import KINDS, random_model

from decompx_fast import DecompX
from decompx_fast.config import DecompXConfig
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.errors import InputError


def sublayer_sums(result, layer: int, kind: str) -> torch.Tensor:
    """``[b, m]``: all that flows through one sublayer; one that runs both in parallel has only one residual."""
    ways = [f"{kind}.{layer}", f"{kind}_residual.{layer}"]
    if f"ffn_residual.{layer}" not in result.components:
        ways.append(f"ffn.{layer}")
    return sum(result.components[way] for way in ways).sum(1)


def sites_from(result, layer: int, kind: str) -> torch.Tensor:
    """``[b, m]``: the biases of the head, of later layers, and of this sublayer and those after it."""
    of_attention = ("pre_ln1", "attention", "out_ln1", "ln1")

    def counts(site) -> bool:
        if site.layer in (-1, *range(layer + 1, 100)):
            return True
        return site.layer == layer and (kind == "attention" or site.place not in of_attention)

    return torch.stack([site.value for site in result.sites if counts(site)]).sum(0)


@pytest.mark.parametrize("kind", KINDS)
def test_ways_out_of_a_sublayer_and_later_biases_sum_to_the_logit(kind):
    model = random_model(kind, seed=3)
    result = adjoint.attribute(model, DecompXConfig(bias="none"))
    assert result.components
    for name in result.components:
        way, _, layer = name.partition(".")
        if not way.endswith("_residual"):
            continue
        way = way.removesuffix("_residual")
        total = sublayer_sums(result, int(layer), way) + sites_from(result, int(layer), way)
        torch.testing.assert_close(total, model.logits, rtol=1e-10, atol=1e-10)


def test_first_sublayer_splits_each_tokens_score():
    model = random_model("post_norm", seed=5)
    result = adjoint.attribute(model, DecompXConfig(bias="none"))
    both = result.components["attention.0"] + result.components["attention_residual.0"]
    torch.testing.assert_close(both, result.scores, rtol=1e-12, atol=1e-12)


def test_explanations_give_components_and_sites_or_say_who_does():
    import models

    explainer = DecompX(models.classifier(vocab=models.WORD_PIECES), models.word_piece())
    explanation = explainer.explain("a gripping film", bias="none")
    total = explanation.scores.sum(0) + torch.stack([site.value for site in explanation.sites()]).sum(0)
    torch.testing.assert_close(total, explanation.target_logits, rtol=1e-10, atol=1e-10)
    words = explanation.words()
    for name, value in explanation.components().items():
        torch.testing.assert_close(words.components()[name].sum(0), value.sum(0))
    other = explainer.explain("a gripping film", engine="reference")
    with pytest.raises(InputError, match="engine='adjoint'"):
        other.sites()
    with pytest.raises(InputError, match="engine='adjoint'"):
        other.components()
