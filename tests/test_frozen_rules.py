"""The rules for products that benchmarks compare: those that engines have give the engines' scores."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from generation_models import llama

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import attributions
import frozen_rules
from frozen_rules import Rules

EXACT = 1e-10  # in float64, relative to values of order 1


@pytest.fixture(scope="module")
def said() -> attributions.Said:
    ids = torch.randint(2, 300, (3, 11), generator=torch.Generator().manual_seed(0))
    return attributions.Said(ids[:, :8], ids[:, 8:])


@pytest.mark.parametrize("against", ["nothing", "mean"])
@pytest.mark.parametrize(("share", "gate"), [(1.0, "value"), (0.5, "half")])
def test_shares_are_the_rules_of_the_engines(said, share, gate, against):
    model = llama()
    asked = attributions.Said(said.prompts, said.outputs, against)
    expected = attributions.decompx(gate=gate)(model, asked)
    assert (frozen_rules.with_rules(Rules(share))(model, asked) - expected).abs().max() < EXACT


@pytest.mark.parametrize(
    "rules",
    [Rules(0.0), Rules(0.3), Rules("path"), Rules(attention="local"), Rules("path", "path")],
)
def test_what_leaves_nothing_out_is_complete(said, rules):
    model = llama()
    with torch.no_grad():
        value = said.value(attributions.logits_of(model, 3, input_ids=said.fed))
    assert (frozen_rules.with_rules(rules)(model, said).sum(1) - value).abs().max() < EXACT


def test_attn_lrp_is_the_rule_of_that_name(said):
    model = llama()
    expected = attributions.attn_lrp(model, said)
    assert (frozen_rules.with_rules(Rules(attention=frozen_rules.LRP))(model, said) - expected).abs().max() < EXACT


def test_aumann_and_shapley_of_an_attention_are_its_integrated_gradients():
    """Queries, keys and values are scaled together from 0, by a fine midpoint rule."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    towards, steps = torch.randn(1, 2, 5, 4, dtype=torch.float64), 2000

    def attended(t: float):
        inputs = [(t * one.detach()).requires_grad_() for one in (query, key, value)]
        pattern = frozen_rules.AttentionPattern(*inputs[:2], scale=0.5, causal=True)
        return torch.autograd.grad((pattern.weights() @ inputs[2] * towards).sum(), inputs)

    expected = [sum(one) / steps for one in zip(*(attended((n + 0.5) / steps) for n in range(steps)), strict=True)]
    pattern = frozen_rules.AttentionPattern(query, key, scale=0.5, causal=True)
    by_logits = frozen_rules._by_logits(pattern, key, "path")
    by_value = pattern.weights().detach() - by_logits.detach()
    mixed = by_value @ value + by_logits @ value.detach()
    found = torch.autograd.grad((mixed * towards).sum(), (query, key, value))
    for one, other in zip(expected, found, strict=True):
        assert (one - other).abs().max() < 1e-5  # of the midpoint rule


def test_a_method_reads_what_its_batch_holds_and_nothing_else(said):
    model = llama()
    methods = ["gradient_x_input", "integrated_gradients", "attn_lrp", "attention_rollout", "occlusion"]
    for score in [attributions.decompx(), *(getattr(attributions, name) for name in methods)]:
        together = score(model, said)
        alone = [score(model, attributions.Said(said.prompts[[n]], said.outputs[[n]], said.against)) for n in range(3)]
        assert together.shape == said.fed.shape and (together - torch.cat(alone)).abs().max() < EXACT


def test_log_probabilities_of_texts_of_several_lengths_are_those_of_each_alone(said):
    model, output = llama(), said.outputs[0]
    texts = [said.fed[0], said.fed[0][2:], said.fed[0][5:]]
    together = attributions.log_probabilities(model, texts, output)
    for text, found in zip(texts, together, strict=True):
        with torch.no_grad():
            logits = model(input_ids=text[None]).logits[0, -3:].log_softmax(-1)
        assert found.item() == pytest.approx(logits[range(3), output].sum().item(), abs=1e-5)
