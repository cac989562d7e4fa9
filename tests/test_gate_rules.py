"""The rules for gates that benchmarks compare: those that engines have give the engines' scores."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from generation_models import llama

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import causal_methods
import gate_rules

EXACT = 1e-10  # in float64, relative to values of order 1


@pytest.fixture(scope="module")
def said() -> causal_methods.Said:
    ids = torch.randint(2, 300, (3, 11), generator=torch.Generator().manual_seed(0))
    return causal_methods.Said(ids[:, :8], ids[:, 8:])


@pytest.mark.parametrize("against", ["nothing", "mean"])
@pytest.mark.parametrize(("share", "gate"), [(1.0, "value"), (0.5, "half")])
def test_shares_are_the_rules_of_the_engines(said, share, gate, against):
    model = llama()
    asked = causal_methods.Said(said.prompts, said.outputs, against)
    expected = causal_methods.decompx(gate=gate)(model, asked)
    assert (gate_rules.with_rule(share)(model, asked) - expected).abs().max() < EXACT


@pytest.mark.parametrize("rule", [0.0, 0.3, "path"])
def test_every_rule_is_complete(said, rule):
    model = llama()
    with torch.no_grad():
        value = said.value(causal_methods.logits_of(model, 3, input_ids=said.fed))
    assert (gate_rules.with_rule(rule)(model, said).sum(1) - value).abs().max() < EXACT


def test_a_method_reads_what_its_batch_holds_and_nothing_else(said):
    model = llama()
    methods = ["gradient_x_input", "integrated_gradients", "attn_lrp", "attention_rollout", "occlusion"]
    for score in [causal_methods.decompx(), *(getattr(causal_methods, name) for name in methods)]:
        together = score(model, said)
        alone = [
            score(model, causal_methods.Said(said.prompts[[n]], said.outputs[[n]], said.against)) for n in range(3)
        ]
        assert together.shape == said.fed.shape and (together - torch.cat(alone)).abs().max() < EXACT


def test_log_probabilities_of_texts_of_several_lengths_are_those_of_each_alone(said):
    model, output = llama(), said.outputs[0]
    texts = [said.fed[0], said.fed[0][2:], said.fed[0][5:]]
    together = causal_methods.log_probabilities(model, texts, output)
    for text, found in zip(texts, together, strict=True):
        with torch.no_grad():
            logits = model(input_ids=text[None]).logits[0, -3:].log_softmax(-1)
        assert found.item() == pytest.approx(logits[range(3), output].sum().item(), abs=1e-5)
