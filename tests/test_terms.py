"""Terms and columns: how they are read, what they refuse, what they leave as it was, and what memory they take."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exactness import close
from live_bytes import LiveBytes
from models import classifier, token_ids
from random_models import KINDS, RandomModel
from terms_of import LINEAR, OUTPUTS, POSITIONS, RULES, bert, each, terms_at
from torch import Tensor
from transformers import BertForMaskedLM, BertModel

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.choose import Execution, attribute, measure_error
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.terms import Terms
from decompx_fast.errors import InputError, OptionError
from decompx_fast.linearize import linearization as module
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.spec import HeadStepSpec


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_term_is_what_a_head_at_its_position_gives(kind, rule):
    """The same model with a head that reads one position, item by item, for every position that is asked for."""
    config, model = DecompXConfig(bias=rule), each(kind)
    terms = terms_at(POSITIONS, OUTPUTS)
    engines = [reference.attribute, forward.attribute, *([adjoint.attribute] if rule in LINEAR else [])]
    results = [engine(model, config, terms=terms) for engine in engines]
    for item in range(2):
        for t, (position, output) in enumerate(zip(POSITIONS[item], OUTPUTS[item], strict=True)):
            alone = RandomModel(model.specs, model.steps, position, model.embedding[item : item + 1])
            expected = reference.attribute(alone, config)
            for result in results:
                assert close(result.scores[item, :, t], expected.scores[0, :, output])
                if rule == "bias_token":
                    assert close(result.bias_token[item, t], expected.bias_token[0, output])
    for result in results:
        assert rule == "none" or result.gap.max() < 1e-10


@pytest.mark.parametrize("split", ["equal", "cls", "absdot", "norm"])
@pytest.mark.parametrize("kind", ["post_norm", "around"])
def test_a_split_is_taken_row_by_row(kind, split):
    """Two columns, one over two positions: the collected biases of each are split where they were read."""
    config, model = DecompXConfig(bias="bias_token", bias_token_split=split), each(kind)
    weights = [[[1.0, -1, 0, 0.5], [0, 0, 1, 0]]] * 2
    terms = terms_at(POSITIONS, OUTPUTS, weights)
    found = [engine.attribute(model, config, terms=terms).scores for engine in (reference, forward, adjoint)]
    for item in range(2):
        parts = []
        for position, output in zip(POSITIONS[item], OUTPUTS[item], strict=True):
            alone = RandomModel(model.specs, model.steps, position, model.embedding[item : item + 1])
            parts.append(reference.attribute(alone, config).scores[0, :, output])
        expected = torch.stack(parts, dim=1) @ torch.tensor(weights[item], dtype=torch.float64).T
        for scores in found:
            assert close(scores[item], expected)


@pytest.mark.parametrize("rule", RULES)
def test_some_outputs_are_what_all_of_them_give(rule, monkeypatch):
    """More outputs than inputs, of which only those asked for are formed: as if all had been."""
    model = each("post_norm", classes=40)
    config = DecompXConfig(bias=rule)
    terms = terms_at([[0, 6, 2, 6], [5, 1, 1, 3]], [[1, 39, -1, 20], [0, -1, 30, 39]])
    engines = [reference.attribute, forward.attribute, *([adjoint.attribute] if rule in LINEAR else [])]
    narrow = [engine(model, config, terms=terms) for engine in engines]
    assert model.head(model.last, terms).is_narrow
    monkeypatch.setattr("decompx_fast.linearize.evaluate_head._is_narrow", lambda step, reading: False)
    assert not model.head(model.last, terms).is_narrow
    for engine, found in zip(engines, narrow, strict=True):
        expected = engine(model, config, terms=terms)
        assert close(found.scores, expected.scores)
        if rule == "bias_token":
            assert close(found.bias_token, expected.bias_token)


@pytest.mark.parametrize("rule", ["absdot", "bias_token", "equal"])
def test_groups_of_tokens_add_up_at_every_position(rule):
    config, model = DecompXConfig(bias=rule), each("post_norm")
    sources = torch.tensor([[0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 2, 2]])
    terms = terms_at(POSITIONS, OUTPUTS)
    slow = reference.attribute(model, config, sources=sources, terms=terms)
    fast = forward.attribute(model, config, sources=sources, terms=terms)
    assert slow.scores.shape == (2, 3, 4)
    assert close(fast.scores, slow.scores)


def test_rows_and_stages_beside_terms():
    """Target positions that are asked for besides, and the stage after the first step of the head."""
    model, terms = each("post_norm"), terms_at(POSITIONS, OUTPUTS)
    config = DecompXConfig(stages=["pooler"], stage_output="norm")
    fast = forward.attribute(model, config, terms=terms, positions=[3, 0])
    slow = reference.attribute(model, config.replace(stages=["pooler", "encoder"]), terms=terms)
    assert close(fast.stages["rows"], slow.stages["encoder.1"][:, [3, 0]])
    assert close(fast.stages["pooler.1"], slow.stages["pooler.1"])
    assert close(fast.scores, slow.scores)


@pytest.mark.parametrize("engine", [reference.attribute, forward.attribute])
def test_without_a_head_each_term_has_the_norms_of_its_row(engine):
    model, terms = each("post_norm"), terms_at(POSITIONS, OUTPUTS)
    found = engine(model, DecompXConfig(head=False), terms=terms)
    whole = reference.attribute(model, DecompXConfig(head=False, stages=["encoder"]), terms=terms)
    norms = whole.stages["encoder.1"]  # [b, i, k]
    for item in range(2):
        for t, position in enumerate(POSITIONS[item]):
            assert close(found.scores[item, :, t], norms[item, position])


def test_a_contrast_is_one_pull_back(monkeypatch):
    """However many terms it is made of, at however many positions."""
    model, pulled = each("post_norm"), []
    original = adjoint._pull
    monkeypatch.setattr(
        adjoint, "_pull", lambda tape, g, *a, **k: pulled.append(g.shape[1]) or original(tape, g, *a, **k)
    )
    terms = terms_at(POSITIONS, OUTPUTS, [[[1.0, -1, 2, 0.5]]] * 2)
    found = adjoint.attribute(model, DecompXConfig(bias="none"), terms=terms)
    assert pulled == [1]
    expected = reference.attribute(model, DecompXConfig(bias="none"), terms=terms)
    assert close(found.scores, expected.scores)


def test_blocks_of_directions(monkeypatch):
    model, config = each("post_norm", layers=3), DecompXConfig(bias="equal")
    terms = terms_at(POSITIONS, OUTPUTS)
    expected = reference.attribute(model, config, terms=terms).scores
    monkeypatch.setattr(adjoint, "directions_at_once", lambda *sizes: 3)
    found = adjoint.attribute(model, config, terms=terms)
    assert close(found.scores, expected)
    sites = sum(site.value for site in found.sites)
    carried = found.components["attention.0"] + found.components["attention_residual.0"]
    assert close(carried.sum(1) + sites, model.values(terms)), "what layer 0 carries and all biases are the outputs"


@pytest.mark.parametrize("rule", LINEAR)
def test_a_causal_model_is_pulled_back_no_further_on_than_its_targets(monkeypatch, rule):
    """Block by block: the last layer at the positions that these directions read, the others up to the last of them."""
    model, config, worked_on = each("rms_gated", layers=2), DecompXConfig(bias=rule), []
    terms = terms_at([[1, 2, 5], [1, 2, 4]], [[0, 1, 2], [2, 0, 0]])
    expected = reference.attribute(model, config, terms=terms)
    original = adjoint.pull_attention
    monkeypatch.setattr(
        adjoint, "pull_attention", lambda op, g, rows, *a, **k: worked_on.append(rows) or original(op, g, rows, *a, **k)
    )
    together = adjoint.attribute(model, config, terms=terms)
    assert worked_on == [slice(1, 6), slice(0, 6)]
    worked_on.clear()
    monkeypatch.setattr(adjoint, "directions_at_once", lambda *sizes: 2)
    found = adjoint.attribute(model, config, terms=terms)
    assert worked_on == [slice(1, 3), slice(0, 3), slice(4, 6), slice(0, 6)]
    for ours in (together, found):
        assert close(ours.scores, expected.scores)


@pytest.mark.parametrize("rule", ["absdot", "bias_token", "equal"])
@pytest.mark.parametrize("count", [3, 40])
def test_a_cap_on_the_outputs(rule, count):
    """``5 tanh(z / 5)``: the scores add up to the capped value."""
    model = each("pre_norm", classes=count)
    steps = (*model.steps[:-1], HeadStepSpec(model.steps[-1].map, "softcap:5.0"))
    capped = RandomModel(model.specs, steps, "each", model.embedding)
    terms = terms_at([[0, 6, 2, 6], [5, 1, 1, 3]], OUTPUTS)
    config = DecompXConfig(bias=rule)
    plain = reference.attribute(model, config, terms=terms)
    z = model.values(terms)
    expected = plain.scores * (5 * torch.tanh(z / 5) / z).unsqueeze(1)  # theta, the same for all sources
    for engine in (reference, forward, *([adjoint] if rule in LINEAR else [])):
        found = engine.attribute(capped, config, terms=terms)
        assert close(found.scores, expected)
        assert found.gap.max() < 1e-10
    with pytest.raises(InputError, match="outputs holds -1, the mean .* ends with an activation"):
        capped.values(replace(terms, outputs=terms.outputs.where(terms.outputs > 0, -1)))
        reference.attribute(capped, config, terms=replace(terms, outputs=terms.outputs.where(terms.outputs > 0, -1)))
    if count == 40 and rule == "absdot":
        with pytest.raises(OptionError, match="softcap:5.0.*over all outputs, which are not formed"):
            reference.attribute(capped, config.replace(tanh="linear"), terms=terms)


def test_classes_as_terms_are_what_they_were():
    """Bit for bit: asked for as terms, all classes are read as without."""
    linearization = linearize(classifier(labels=5), {"input_ids": token_ids(7, b=2)})
    for engine in (reference, forward, adjoint):
        config = DecompXConfig(bias="bias_token")
        plain = engine.attribute(linearization, config)
        found = engine.attribute(linearization, config, terms=Terms.of_classes(2, 5))
        assert torch.equal(found.scores, plain.scores)
        assert torch.equal(found.bias_token, plain.bias_token)
        few = engine.attribute(linearization, config, terms=Terms(None, torch.tensor([[3, 1]] * 2)))
        assert close(few.scores, plain.scores[:, :, [3, 1]])


@pytest.mark.parametrize("read", [0, -1, "mean", "each"])
def test_a_model_without_head_is_read_where_the_caller_says(read):
    model, ids = bert(BertModel), token_ids(7, b=2, vocab=60)
    linearization = linearize(model, {"input_ids": ids}, read=read)
    with torch.no_grad():
        states = model(input_ids=ids).last_hidden_state
    if read == "each":
        terms, expected = terms_at([[2, 4], [0, 6]], [[3, 15], [0, -1]]), None
        expected = torch.stack([states[0, [2, 4], [3, 15]], torch.stack([states[1, 0, 0], states[1, 6].mean()])])
    else:
        terms, expected = None, states.mean(1) if read == "mean" else states[:, read]
        assert close(linearization.logits, expected)
    for engine in (reference, forward, adjoint):
        result = engine.attribute(linearization, DecompXConfig(bias="equal"), terms=terms)
        assert close(result.scores.sum(1), expected)


def test_positions_that_depend_on_the_input(monkeypatch):
    """The last token that is no 7, as a decoder finds its last one: each item at a position of its own."""
    model, ids = bert(BertModel), torch.tensor([[8, 9, 7, 7], [8, 9, 10, 7]])
    describe = module.describe

    def last(inputs) -> Tensor:
        return (inputs["input_ids"] != 7).sum(1) - 1

    monkeypatch.setattr(module, "describe", lambda model: replace(describe(model), read=last))
    linearization = linearize(model, {"input_ids": ids})
    with torch.no_grad():
        expected = model(input_ids=ids).last_hidden_state[torch.arange(2), torch.tensor([1, 2])]
    assert close(linearization.logits, expected)
    scores = [
        engine.attribute(linearization, DecompXConfig(bias="cls")).scores for engine in (reference, forward, adjoint)
    ]
    for found in scores:
        assert close(found.sum(1), expected)
        assert close(found, scores[0])


def test_a_thorough_check_measures_columns():
    model = bert(dtype=torch.float32)
    linearization = linearize(model, {"input_ids": token_ids(7, b=2, vocab=60)})
    terms = terms_at(POSITIONS, OUTPUTS, [[[1.0, -1, 0, 0.5], [0, 0, 1, 0]]] * 2)
    config = DecompXConfig()
    options = {"sources": None, "terms": terms, "execution": Execution()}
    result = attribute("forward", linearization, config, dtype=None, **options)
    error = measure_error(result, "forward", linearization, config, **options)
    exact = attribute("reference", linearization.again(linearization.embedding.double()), config, dtype=None, **options)
    assert ((result.scores - exact.scores).abs().amax((1, 2)) <= error).all()
    assert (error < 1e-3).all()


def test_the_head_of_the_model_is_called_once_for_the_same_terms():
    calls, model = [], bert()
    model.classifier.register_forward_hook(lambda module, args, output: calls.append(len(output)))
    linearization = linearize(model, {"input_ids": token_ids(7, b=2, vocab=60)})
    assert calls == [], "no head is run before it is asked"
    for terms in (terms_at(POSITIONS, OUTPUTS), terms_at(POSITIONS, OUTPUTS)):
        forward.attribute(linearization, DecompXConfig(), terms=terms)
        linearization.values(terms)
    assert calls == [6], "three rows of each of two items"
    linearization.values(terms_at([[0], [0]], [[1], [1]]))
    assert calls == [6, 2]


def test_outputs_come_in_blocks_of_positions(monkeypatch):
    monkeypatch.setattr("decompx_fast.linearize.values.OUTPUT_BYTES", 2 * 60 * 8 * 3)
    model, ids = bert(BertForMaskedLM), token_ids(7, b=2, vocab=60)
    linearization = linearize(model, {"input_ids": ids})
    positions = torch.tensor([[0, 1, 2, 3, 4], [6, 5, 4, 3, 2]])
    blocks = list(linearization.outputs(positions))
    assert [(block.start, block.stop) for block, _ in blocks] == [(0, 3), (3, 5)]
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    expected = logits[torch.arange(2)[:, None], positions]
    assert close(torch.cat([outputs for _, outputs in blocks], dim=1), expected)


@pytest.mark.parametrize("rule", ["absdot", "norm", "bias_token"])
@pytest.mark.parametrize("engine", [forward, adjoint], ids=["forward", "adjoint"])
def test_a_vocabulary_is_never_formed_at_all_positions(engine, rule):
    """128,000 outputs, 1,000 positions, one term: nothing of the size of 512 MB of outputs, or an eighth of that."""
    if engine is adjoint and rule not in LINEAR:
        return
    n, vocab, d = 1000, 128_000, 8
    sizes = {"hidden_size": d, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = bert(BertForMaskedLM, dtype=torch.float32, vocab_size=vocab, max_position_embeddings=n, **sizes)
    ids = token_ids(n, vocab=vocab)
    terms = terms_at([[500]], [[77_777]])
    sources = None if engine is adjoint else torch.zeros(1, n, dtype=torch.int64)
    counter = LiveBytes()
    with counter:
        linearization = linearize(model, {"input_ids": ids})
        if engine is adjoint:
            result = adjoint.attribute(linearization, DecompXConfig(bias=rule), terms=terms)
        else:
            result = forward.attribute(linearization, DecompXConfig(bias=rule), terms=terms, sources=sources)
    assert result.gap.max() < 1e-3
    assert counter.peak < 4 * n * vocab / 8, f"{counter.peak:,} bytes at {counter.where}"
