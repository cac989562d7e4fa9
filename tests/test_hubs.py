"""Attention in a window and to hubs besides: Longformer's global tokens, BigBird's blocks, in every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exactness import by_definition, close
from test_families import CASES, IN_FLOAT32, ROUNDING, classifier, inputs

from decompx_fast import DecompX, DecompXConfig, UnsupportedModelError
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.evaluation.linearized import attention_of
from decompx_fast.evaluation.methods import relevance
from decompx_fast.linearize.architectures import describe
from decompx_fast.linearize.hubs import Hubs
from decompx_fast.linearize.layer import AttentionPattern
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.reading.blocks import repeated_block

TWO = ["longformer", "bigbird_drawn"]


@pytest.fixture
def one_layer(monkeypatch):
    def make(case):
        name, options = CASES[case]
        window = {"attention_window": 4} if name == "Longformer" else {}
        monkeypatch.setitem(CASES, "one_layer", (name, options | window | {"num_hidden_layers": 1}))
        return classifier("one_layer")

    return make


def scattered(tokens: int = 11) -> dict[str, torch.Tensor]:
    """Other global tokens in each input, none of them the one that the head reads."""
    where = torch.zeros(2, tokens, dtype=torch.long)
    where[0, [3, 4, 9]] = 1
    where[1, 6] = 1
    return inputs("longformer", 2, tokens) | {"global_attention_mask": where}


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("rule", ["absdot", "abssim", "norm", "dot", "equal", "cls", "bias_token", "none"])
def test_global_tokens_anywhere_agree_with_a_second_decomposition(rule, variant):
    model, given = classifier("longformer"), scattered()
    config = DecompXConfig(bias=rule, variant=variant, activation="linear")
    expected = reference.attribute(linearize(model, given), config)
    found = [forward.attribute(linearize(model, given), config)]
    if rule in ("equal", "cls", "bias_token", "none"):
        found.append(adjoint.attribute(linearize(model, given), config))
    assert all(close(result.scores, expected.scores) for result in found)
    for item in range(2):
        one = {name: value[item : item + 1] for name, value in given.items()}
        linearization = linearize(model, one)
        scores = forward.attribute(linearization, config).scores[0]
        if rule != "equal":  # told by numbers there, by the masks here
            assert close(by_definition(linearization, config), scores)
        if rule != "dot":  # whose shares cancel, so that items of a batch differ by rounding that it magnifies
            assert close(scores, expected.scores[item])


@pytest.mark.parametrize("case", TWO)
def test_equal_shares_with_holes_in_what_is_reached(case, one_layer):
    """After one attention a position is reached by its window, and by hubs further away."""
    model, config = one_layer(case), DecompXConfig(bias="equal")
    given = scattered() if case == "longformer" else inputs(case)
    for engine in (forward, adjoint, reference):
        result = engine.attribute(linearize(model, given), config)
        for item in range(2):
            one = {name: value[item : item + 1] for name, value in given.items()}
            assert close(by_definition(linearize(model, one), config), result.scores[item])


@pytest.mark.parametrize("rule", ["absdot", "equal", "bias_token"])
@pytest.mark.parametrize("workspace_bytes", [1, None])
@pytest.mark.parametrize("case", TWO)
def test_groups_of_tokens_in_small_blocks(case, rule, workspace_bytes):
    model, given = classifier(case), inputs(case)
    sources = torch.tensor([[0, 0, 1, 1, 1, 2, 0, 3, 3, 0, 2], [2, 1, 1, 0, 0, 0, 0, 1, 1, 3, 3]])
    config = DecompXConfig(bias=rule)
    expected = reference.attribute(linearize(model, given), config, sources=sources)
    found = forward.attribute(linearize(model, given), config, sources=sources, workspace_bytes=workspace_bytes)
    assert close(found.scores, expected.scores)
    one = {name: value[:1] for name, value in given.items()}
    assert close(by_definition(linearize(model, one), config, sources[0].tolist()), expected.scores[0])


@pytest.mark.parametrize("ride", ["paper", "released"])
def test_rows_of_hubs_and_of_others(ride):
    model, given = classifier("longformer"), scattered()
    config = DecompXConfig(stage_output="vector", variant=ride)
    found = forward.attribute(linearize(model, given), config, positions=(3, 5, 6))
    whole = DecompXConfig(stages=("encoder",), stage_output="vector", variant=ride)
    expected = reference.attribute(linearize(model, given), whole)
    assert close(found.stages["rows"], expected.stages["encoder.2"][:, [3, 5, 6]])
    assert close(found.scores, expected.scores)


@pytest.mark.parametrize("tokens", [17, 18])
def test_blocks_of_two_with_and_without_padding(tokens, monkeypatch):
    monkeypatch.setitem(CASES, "twos", ("BigBird", {"block_size": 2, "num_random_blocks": 1}))
    model, given = classifier("twos"), inputs("bigbird", 1, tokens)
    with torch.no_grad():
        expected = model(**given).logits
    for record in (False, True):
        for config in (DecompXConfig(), DecompXConfig(bias="equal")):
            linearization = linearize(model, given, record=record)
            result = forward.attribute(linearization, config)
            assert (result.scores.sum(1) - expected).abs().max() < 1e-10 * expected.abs().max()
            assert close(by_definition(linearize(model, given), config), result.scores[0])


@pytest.mark.parametrize("engine", ["reference", "forward", "adjoint"])
@pytest.mark.parametrize("case", ["longformer", "bigbird_drawn"])
def test_padding_on_either_side_changes_nothing(case, engine):
    model, ids = classifier(case), inputs(case, 1)["input_ids"][0].tolist()
    explainer = DecompX(model, engine=engine, bias="bias_token")
    expected = explainer.explain(ids)
    pad = [1] * 3
    for row, mask in ((pad + ids, [0] * 3 + [1] * 11), (ids + pad, [1] * 11 + [0] * 3)):
        found = explainer.explain({"input_ids": [row], "attention_mask": [mask]})[0]
        assert close(found.scores, expected.scores)
        total = found.scores.sum(0) + found.bias_token
        assert (total - found.logits).abs().max() < IN_FLOAT32.get(case, ROUNDING) * 10


def test_without_global_tokens_attention_is_a_plain_window():
    given = inputs("longformer") | {"global_attention_mask": torch.zeros(2, 11, dtype=torch.long)}
    linearization = linearize(classifier("longformer"), given)
    for layer in linearization.layers():
        op = layer.sublayers[0].ops[0]
        assert op.hubs is None and op.pattern.window == (5 if layer.index == 1 else 3)
    found = adjoint.attribute(linearization, DecompXConfig(bias="equal"))
    expected = reference.attribute(linearization, DecompXConfig(bias="equal"))
    assert close(found.scores, expected.scores)


@pytest.mark.parametrize("name", ["query_global", "key_global", "value_global", "query", "value"])
def test_a_changed_map_of_hubs_is_refused(name):
    model = classifier("longformer")
    module = model.longformer.encoder.layer[1].attention.self.get_submodule(name)
    module.register_forward_hook(lambda _module, _args, output: output * 1.01)
    for record in (False, True):
        with pytest.raises(UnsupportedModelError, match="layer 1"):
            list(linearize(model, inputs("longformer"), record=record).layers())


@pytest.mark.parametrize("tokens", [3, 4, 11])
def test_layers_of_whole_windows_and_padded_ones_are_recorded(tokens):
    """Its maps are given positions first, with the padding to whole windows, and their outputs are scaled in place."""
    model, given = classifier("longformer", dtype=torch.float32), inputs("longformer", 3, tokens)
    ours, theirs = linearize(model, given, record=True), linearize(model, given)
    assert ours.recorded_layers == tuple(range(ours.num_layers))
    for found, expected in zip(ours.layers(), theirs.layers(), strict=True):
        for one, other in zip(found.constants, expected.constants, strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)  # of float32, where weights cancel
    scores = [adjoint.attribute(one, DecompXConfig(bias="bias_token")).scores for one in (ours, theirs)]
    assert torch.allclose(*scores, rtol=1e-4, atol=1e-5)


def test_methods_that_do_not_know_hubs_refuse_them():
    linearization, spec = linearize(classifier("longformer"), inputs("longformer")), describe(classifier("longformer"))
    message = "attention with global tokens or in blocks, which {} does not know"
    with pytest.raises(UnsupportedModelError, match=message.format("this method")):
        attention_of(next(linearization.layers()))
    with pytest.raises(UnsupportedModelError, match=message.format("relevance")):
        relevance.forward([spec.layers[0]], linearization.embedding, linearization.contexts)


def pattern(n: int, hubs: Hubs, seed: int = 0) -> AttentionPattern:
    query, key = torch.randn(2, 1, 2, n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return AttentionPattern(query, key, 0.5, hubs=hubs)


@pytest.mark.parametrize("own_rows", [False, True])
def test_blocks_hold_all_weights_and_little_else(own_rows):
    n, where = 1000, torch.zeros(1, 1000, dtype=torch.bool)
    where[:, [0, 500, 501]] = True
    found = pattern(n, Hubs(where, 3, own_rows=own_rows))
    alpha, filled, computed = found.weights(), torch.zeros(1, 2, n, n, dtype=torch.float64), 0
    for rows, columns, block in found.blocks():
        filled[:, :, rows, columns] = block
        computed += block[0, 0].numel()
    assert torch.allclose(filled, alpha, rtol=0, atol=1e-15)
    assert computed <= (3 * n if own_rows else 90 * n)  # of a million
    live = where if own_rows else ~where
    assert torch.allclose(alpha.sum(-1), live[:, None].to(alpha).expand(1, 2, n))
    values = torch.randn(1, n, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mixed = torch.einsum("bhij,bjhv->bihv", alpha, values)
    assert torch.allclose(found.mix(values), mixed, rtol=0, atol=1e-13)


def test_the_first_block_counts_once_more_for_each_that_is_drawn():
    key = torch.zeros(1, 2, 6, 3)
    _, _, bias = repeated_block(key, key, {"band_mask": torch.ones(1)}, block=2, times=3)
    assert np.allclose(bias[0, 0, 0].exp().numpy(), [4, 4, 1, 1, 1, 1])
    assert repeated_block(key, key, {}, block=2, times=3)[2] is None
