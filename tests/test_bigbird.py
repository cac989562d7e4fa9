"""BigBird of blocks: short inputs get full attention; the model stays as it is."""

from __future__ import annotations

import logging

import pytest
import torch
from test_families import classifier, inputs

from decompx_fast import DecompX
from decompx_fast.linearize.families.bigbird import sparse_from
from decompx_fast.linearize.linearization import linearize


def blocks(seed: int = 0) -> torch.nn.Module:
    """Attends fully up to 28 tokens; 40 positions."""
    return classifier("bigbird_short", seed)


def test_a_short_input_has_the_logits_that_the_model_gives_it():
    model, twin = blocks(), blocks()
    given = inputs("bigbird", tokens=28)
    with torch.no_grad():
        expected = twin(**given).logits
    assert (linearize(model, given).logits - expected).abs().max() == 0


def test_the_model_stays_in_its_mode_and_nothing_is_drawn_or_said(caplog):
    model = blocks()
    modules, state = dict(model.named_modules()), torch.random.get_rng_state()
    with caplog.at_level(logging.WARNING, logger="transformers"):
        linearize(model, inputs("bigbird"))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not caplog.records
    assert dict(model.named_modules()) == modules
    kinds = {getattr(module, "attention_type", "block_sparse") for module in model.modules()}
    assert kinds == {"block_sparse"} and model.config.attention_type == "block_sparse"


def test_the_last_short_length_is_that_of_transformers():
    """One token more, and the model stays with its blocks."""
    for tokens, kind in ((sparse_from(blocks().config), "original_full"), (29, "block_sparse")):
        model = blocks()
        with torch.no_grad():
            model(**inputs("bigbird", tokens=tokens))
        assert model.bert.attention_type == kind


@pytest.mark.parametrize("engine", ["forward", "adjoint"])
def test_a_long_input_is_explained_in_blocks(engine):
    model = blocks()
    explainer, ids = DecompX(model, engine=engine, bias="none"), inputs("bigbird", tokens=29)["input_ids"][0]
    with torch.no_grad():
        sparse = blocks()(input_ids=ids[None]).logits[0]
    assert (explainer.explain(ids).logits - sparse).abs().max() < 1e-10
    assert model.bert.attention_type == "block_sparse"
    model.bert.set_attention_type("original_full")
    with torch.no_grad():
        expected = model(input_ids=ids[None]).logits[0]
    assert (explainer.explain(ids).logits - expected).abs().max() < 1e-10
    assert (sparse - expected).abs().max() > 1e-3
