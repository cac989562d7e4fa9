"""The reference engine against the method's definition (:mod:`naive`), for every rule, option and shape of a layer.

Tolerance: rounding of two or three layers in float64; the rule ``dot`` divides by a signed sum that may nearly cancel.
"""

from __future__ import annotations

import itertools

import models
import naive
import numpy as np
import pytest
import torch
from exactness import spearman
from frozen_forward import frozen_logits
from random_models import KINDS, RandomModel, random_model

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.bias import add_bias, bias_shares
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.spec import Affine, AttentionSpec, FeedForwardSpec, HeadStepSpec, SublayerSpec

RULES = ("absdot", "abssim", "norm", "equal", "cls", "dot", "bias_token", "none")
SPLITS = ("absdot", "abssim", "norm", "equal", "cls", "dot")
VARIANTS = ("paper", "released")


def tolerance(config: DecompXConfig) -> float:
    return 1e-6 if "dot" in (config.bias, config.bias_token_split) else 1e-11


def compare(kind: str, config: DecompXConfig, sources: list[int] | None = None, **shape) -> None:
    """Scores and every layer's decomposed state, by the engine and by the definition."""
    model = random_model(kind, b=1, **({"n": 5} | shape))
    expected, states = naive.decompose(model, config, sources)
    ids = None if sources is None else torch.tensor([sources])
    found = reference.attribute(model, config.replace(stages=["encoder"], stage_output="vector"), sources=ids)
    scores = found.scores[0]
    if found.bias_token is not None:
        scores = torch.cat([scores, found.bias_token])
    pairs = [(scores, expected), *((found.stages[f"encoder.{n}"][0], x) for n, x in enumerate(states))]
    for ours, theirs in pairs:
        assert tuple(ours.shape) == theirs.shape
        assert np.abs(ours.numpy() - theirs).max() < tolerance(config) * np.abs(theirs).max()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_in_every_shape_of_layer(kind, rule, variant):
    compare(kind, DecompXConfig(bias=rule, variant=variant), seed=1)


@pytest.mark.parametrize("activation", ["zero_origin", "linear", "relu"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_approximation_in_every_shape_of_layer(kind, activation):
    for tanh, gate in itertools.product(["zero_origin", "linear"], ["value", "half"]):
        compare(kind, DecompXConfig(activation=activation, tanh=tanh, gate=gate), seed=2)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_component_can_be_left_out(kind, variant):
    for ln1, ffn, ln2 in itertools.product([True, False], repeat=3):
        compare(kind, DecompXConfig(ln1=ln1, ffn=ffn, ln2=ln2, variant=variant), seed=3)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", ["post_norm", "around"])
def test_every_split_of_the_bias_token(kind, split):
    compare(kind, DecompXConfig(bias="bias_token", bias_token_split=split), seed=4)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["post_norm", "rms_gated"])
def test_groups_of_tokens_as_sources(kind, rule, variant):
    compare(kind, DecompXConfig(bias=rule, variant=variant), sources=[0, 1, 0, 2, 1], seed=5)


@pytest.mark.parametrize("position", [0, 2, -1])
def test_the_head_may_read_any_position(position):
    for kind in KINDS:
        compare(kind, DecompXConfig(), position=position, seed=6)


# What must always hold.


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_parts_add_up_to_every_layers_state(kind, rule):
    model = random_model(kind, seed=7, n=8, layers=3)
    for activation, gate, variant in itertools.product(["zero_origin", "linear"], ["value", "half"], VARIANTS):
        options = {"activation": activation, "tanh": activation, "gate": gate, "variant": variant}
        config = DecompXConfig(bias=rule, stages=["encoder"], stage_output="vector", **options)
        result = reference.attribute(model, config)
        for layer in model.layers():
            total = result.stages[f"encoder.{layer.index}"].sum(2)
            assert (total - layer.output).abs().max() < tolerance(config) * layer.output.abs().max()
        assert result.gap.max() < tolerance(config) * model.logits.abs().max()


@pytest.mark.parametrize("gate", ["half", "value"])
@pytest.mark.parametrize("activation", ["zero_origin", "linear", "relu"])
@pytest.mark.parametrize("kind", KINDS)
def test_without_biases_a_source_goes_through_the_frozen_model_alone(kind, activation, gate):
    model = random_model(kind, seed=8)
    tanh = "linear" if activation == "linear" else "zero_origin"
    config = DecompXConfig(bias="none", activation=activation, tanh=tanh, gate=gate)
    scores = reference.attribute(model, config).scores
    nothing = frozen_logits(model, torch.zeros_like(model.embedding), config)
    for k in range(scores.shape[1]):
        alone = torch.zeros_like(model.embedding)
        alone[:, k] = model.embedding[:, k]
        expected = frozen_logits(model, alone, config) - nothing
        assert (scores[:, k] - expected).abs().max() < 1e-11 * scores.abs().max()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_rows(kind, rule):
    model, config = random_model(kind, b=3, seed=9), DecompXConfig(bias=rule)
    together = reference.attribute(model, config).scores
    for row in range(3):
        alone = RandomModel(model.specs, model.steps, model.position, model.embedding[row : row + 1])
        scores = reference.attribute(alone, config).scores
        assert (together[row] - scores[0]).abs().max() < tolerance(config) * scores.abs().max()


@pytest.mark.parametrize("rule", ["absdot", "abssim", "norm", "equal", "dot", "bias_token", "none"])
def test_the_numbering_of_groups_does_not_matter(rule):
    model, config = random_model("post_norm", seed=10), DecompXConfig(bias=rule)
    groups = torch.tensor([[0, 1, 1, 2, 3, 0, 2]]).expand(2, -1)
    order = torch.tensor([2, 0, 3, 1])
    scores = reference.attribute(model, config, sources=groups).scores
    permuted = reference.attribute(model, config, sources=order[groups]).scores
    assert (permuted[:, order] - scores).abs().max() < tolerance(config) * scores.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_one_token_are_tokens(kind):
    model, own = random_model(kind, seed=11), torch.arange(7).expand(2, -1)
    for rule, variant in itertools.product(RULES, VARIANTS):
        config = DecompXConfig(bias=rule, variant=variant)
        expected = reference.attribute(model, config).scores
        assert torch.equal(reference.attribute(model, config, sources=own).scores, expected)


# Sharing a bias.


def example(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("absdot", [6 / 10, 4 / 10, 0, 0]),
        ("dot", [6 / 2, -4 / 2, 0, 0]),
        ("abssim", [6 / 5 / (6 / 5 + 2), 2 / (6 / 5 + 2), 0, 0]),
        ("norm", [5 / 10, 2 / 10, 3 / 10, 0]),
        ("equal", [1 / 3, 1 / 3, 1 / 3, 0]),
        ("cls", [1, 0, 0, 0]),
    ],
)
def test_shares_by_hand(rule, expected):
    u, bias = example([3, 4], [-2, 0], [0, 3], [0, 0]), torch.tensor([2.0, 0], dtype=torch.float64)
    assert torch.allclose(bias_shares(u, bias, rule), torch.tensor(expected, dtype=torch.float64), rtol=1e-15)
    shared = add_bias(u, bias, rule)
    assert torch.allclose(shared.sum(0), u.sum(0) + bias, rtol=1e-15)


@pytest.mark.parametrize("rule", ["absdot", "abssim", "dot"])
def test_where_all_dots_are_zero_the_sources_that_are_not_share_equally(rule):
    u, bias = example([0, 3], [0, 0], [0, -4], [0, 5]), torch.tensor([2.0, 0], dtype=torch.float64)
    assert bias_shares(u, bias, rule).tolist() == [1 / 3, 0, 1 / 3, 1 / 3]


def test_where_signed_dots_cancel_the_sources_share_equally():
    u, bias = example([3, 1], [-3, 1], [0, 0]), torch.tensor([2.0, 0], dtype=torch.float64)
    assert bias_shares(u, bias, "dot").tolist() == [1 / 2, 1 / 2, 0]


@pytest.mark.parametrize("rule", ["absdot", "abssim", "norm", "equal", "dot"])
def test_where_all_vectors_are_zero_all_share_equally(rule):
    bias = torch.tensor([2.0, 0], dtype=torch.float64)
    assert bias_shares(example([0, 0], [0, 0], [0, 0], [0, 0]), bias, rule).tolist() == [1 / 4] * 4
    assert bias_shares(example([0, 0]), bias, rule).tolist() == [1]


@pytest.mark.parametrize("rule", ["absdot", "abssim", "norm", "equal", "dot", "cls"])
def test_shares_of_one_position_do_not_depend_on_another(rule):
    bias = torch.tensor([2.0, 0], dtype=torch.float64)
    rows = [example([3, 4], [-2, 0]), example([0, 3], [0, 0]), example([0, 0], [0, 0]), example([1, 0], [0, 1])]
    together = bias_shares(torch.stack(rows), bias, rule)
    for found, row in zip(together, rows, strict=True):
        assert torch.equal(found, bias_shares(row, bias, rule))
    each = torch.stack([bias, 2 * bias, -bias, bias])  # only its direction counts
    assert torch.allclose(bias_shares(torch.stack(rows), each, rule), together, rtol=1e-15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_shares_are_computed_in_float32_at_least(dtype):
    u = torch.randn(5, 300, generator=torch.Generator().manual_seed(0)).to(dtype)
    bias = torch.randn(300, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = bias_shares(u, bias, "absdot")
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), bias_shares(u.double(), bias.double(), "absdot"), rtol=1e-4)
    assert add_bias(u, bias, "absdot").dtype == dtype


def test_a_zero_bias_changes_nothing():
    u, bias = example([3, 4], [0, 0]), torch.zeros(2, dtype=torch.float64)
    for rule in RULES:
        assert torch.equal(add_bias(u, bias, rule), u)
        assert torch.equal(add_bias(u, None, rule), u)


def test_the_bias_token_takes_all():
    u, bias = example([3, 4], [1, 1]), torch.tensor([2.0, 0], dtype=torch.float64)
    assert add_bias(u, bias, "bias_token").tolist() == [[3, 4], [3, 1]]


# The limit of the slope.


def test_an_activation_at_zero_passes_its_limit_on():
    """Two parts that cancel exactly reach the FFN: half of each passes a GELU, and no NaN."""
    eye, none = torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    plain = Affine(eye, None)
    uniform = AttentionSpec(Affine(none, None), Affine(none, None), plain, plain, 1, 1, 1.0)
    layer = (SublayerSpec((uniform,)), SublayerSpec((FeedForwardSpec(plain, plain, "gelu"),)))
    embedding = torch.tensor(
        [[[1.0, 2], [-3, -6]]], dtype=torch.float64
    )  # at position 0: 1.5 of the first, 0.5 of both
    model = RandomModel((layer,), (HeadStepSpec(plain, "tanh"), HeadStepSpec(plain)), 0, embedding)
    config = DecompXConfig(bias="none", stages=["ffn", "res1"], stage_output="vector")
    result = reference.attribute(model, config)
    assert result.stages["res1.0"][0, 0].tolist() == [[1.5, 3], [-1.5, -3]]
    assert result.stages["ffn.0"][0, 0].tolist() == [[0.75, 1.5], [-0.75, -1.5]]
    # The head's tanh is at 0 too, where its slope is 1.
    assert result.scores[0].tolist() == [[2.25, 4.5], [-2.25, -4.5]]


# Sizes and dtypes.


@pytest.mark.parametrize("rule", RULES)
def test_a_sequence_of_one_token(rule):
    for kind in KINDS:
        compare(kind, DecompXConfig(bias=rule), n=1)
    result = reference.attribute(random_model("post_norm", n=1), DecompXConfig(bias="absdot"))
    assert torch.allclose(result.scores[:, 0], random_model("post_norm", n=1).logits, rtol=1e-11)


def long_model(dtype=torch.float64):
    model = models.classifier(dtype=dtype, positions=512, hidden_size=8, num_attention_heads=2, intermediate_size=8)
    return linearize(model, {"input_ids": models.token_ids(512)})


def test_a_sequence_of_512_tokens():
    lin = long_model()
    result = reference.attribute(lin, DecompXConfig())
    assert result.scores.shape == (1, 512, 2)
    assert result.gap.max() < 1e-10 * lin.logits.abs().max()


def test_feed_forward_blocks_change_nothing(monkeypatch):
    model, config = random_model("around", n=9), DecompXConfig(gate="half")
    expected = reference.attribute(model, config).scores
    monkeypatch.setattr(reference, "FFN_BLOCK", 1)
    assert (reference.attribute(model, config).scores - expected).abs().max() < 1e-13


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_float32_is_close_and_bfloat16_keeps_the_order(family):
    model = models.classifier(family, positions=80, hidden_size=32, layers=3)
    inputs = {"input_ids": models.token_ids(60)}
    expected = reference.attribute(linearize(model, inputs), DecompXConfig()).scores[0]
    single = linearize(model.float(), inputs)
    found = reference.attribute(single, DecompXConfig()).scores[0]
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    half = reference.attribute(single, DecompXConfig(), dtype=torch.bfloat16).scores[0]
    assert half.dtype == torch.float32, "the head is computed in float32"
    for c in range(2):
        assert spearman(half[:, c], expected[:, c]) > 0.95
