"""BigBird of blocks: short inputs get full attention; the model stays as it is."""

from __future__ import annotations

import logging

import pytest
import torch
from models import randomized
from test_families import CASES, COMMON, classifier, inputs
from transformers import BigBirdConfig, BigBirdForQuestionAnswering

from decompx_fast import DecompX, DecompXConfig, UnsupportedModelError
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.terms import Terms
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.reading.blocks import sparse_from


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
    caplog.clear()  # transformers says, once a process, that the tiny vocabulary of this model lacks a token
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


def reader(kind: str = "block_sparse") -> tuple[torch.nn.Module, torch.Tensor]:
    """A model that answers, and a question of four tokens before a context, longer than what it attends fully."""
    options = COMMON | CASES["bigbird_short"][1] | {"num_labels": 2, "attention_type": kind, "sep_token_id": 2}
    model = randomized(BigBirdForQuestionAnswering(BigBirdConfig(**options)).double())
    ids = inputs("bigbird", tokens=30)["input_ids"]
    ids[:, 3] = 2
    return model, ids


@pytest.mark.parametrize("kind", ["block_sparse", "original_full"])
@pytest.mark.parametrize("types", [False, True])
def test_answers_in_a_long_context(kind, types):
    """The head's network is part of the last layer here; the model makes out itself which tokens are the question's."""
    model, ids = reader(kind)
    given = {"input_ids": ids} | ({"token_type_ids": torch.zeros_like(ids)} if types else {})
    with torch.no_grad():
        found = model(**given)
    own = torch.stack((found.start_logits, found.end_logits), dim=-1)
    assert (own[:, 1:4] < -1e5).all() and (own[:, [0, 4]] > -1e5).all()
    own[:, 1:4] += 1e6  # what keeps an answer out of the question is no part of what is explained
    where = torch.tensor([[0, 9, 29, 2], [4, 17, 8, 1]])
    terms = Terms(where, torch.tensor([[0, 1, 0, 1], [1, 0, 0, 1]]))
    expected = own[torch.arange(2)[:, None], where, terms.outputs]
    for rule, engines in (("absdot", (reference, forward)), ("bias_token", (reference, forward, adjoint))):
        results = [
            engine.attribute(linearize(model, given, record=engine is adjoint), DecompXConfig(bias=rule), terms=terms)
            for engine in engines
        ]
        for result in results:
            total = result.scores.sum(1) + (0 if result.bias_token is None else result.bias_token)
            assert (total - expected).abs().max() < 1e-9
            assert (result.scores - results[0].scores).abs().max() < 1e-10 * results[0].scores.abs().max()


@pytest.mark.parametrize("path", ["", ".intermediate.dense", ".output", ".output.LayerNorm", ".qa_outputs"])
def test_a_changed_head_of_answers_is_refused(path):
    model, ids = reader()
    model.get_submodule(f"qa_classifier{path}").register_forward_hook(lambda _module, _args, output: output * 1.01)
    terms = Terms(torch.tensor([[9], [9]]), torch.tensor([[0], [1]]))
    with pytest.raises(UnsupportedModelError, match="layer 2 |the head "):
        forward.attribute(linearize(model, {"input_ids": ids}), DecompXConfig(), terms=terms)
