"""The stages that the reference engine keeps, and what it gives without a head."""

from __future__ import annotations

import models
import numpy as np
import pytest
import torch
from random_models import RandomModel, random_model

from decompx_fast.config import STAGES, DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.linearize.linearization import linearize

VARIANTS = ("paper", "released")


def linearization(**options):
    model = models.classifier(**options)
    return linearize(model, {"input_ids": models.token_ids(6, b=2)})


@pytest.mark.parametrize("variant", VARIANTS)
def test_stages_are_what_the_equations_say(variant):
    config = DecompXConfig(stages=STAGES, stage_output="vector", variant=variant)
    lin = linearization()
    stages = reference.attribute(lin, config).stages
    names = [stage for stage in STAGES if stage != "pooler"]
    assert sorted(stages) == sorted([f"{stage}.{n}" for stage in names for n in range(2)] + ["pooler.1"])
    for layer in lin.layers():
        attention, feed = layer.sublayers
        branch = attention.ops[0](layer.input)
        middle = layer.input + branch
        normed = attention.post_norm.linear(middle) + attention.post_norm.bias
        totals = {
            "res1": middle,
            "ln1": normed,
            "ffn": feed.ops[0](normed),
            "res2": normed + feed.ops[0](normed),
            "encoder": layer.output,
            "aggregated": layer.output,
        }
        if variant == "paper":
            totals["attention"] = branch
        for name, total in totals.items():
            found = stages[f"{name}.{layer.index}"]
            assert found.shape == (2, 6, 6, 16)
            assert (found.sum(2) - total).abs().max() < 1e-11 * total.abs().max()
    pooler = lin.head(layer.output).steps[0].output[:, 0]
    assert (stages["pooler.1"].sum(1) - pooler).abs().max() < 1e-11


def test_norms_are_the_norms_of_the_vectors():
    lin = linearization()
    norms = reference.attribute(lin, DecompXConfig(stages=STAGES)).stages
    vectors = reference.attribute(lin, DecompXConfig(stages=STAGES, stage_output="vector")).stages
    assert norms.keys() == vectors.keys()
    for name, vector in vectors.items():
        assert torch.allclose(norms[name], vector.square().sum(-1).sqrt(), rtol=1e-14)


@pytest.mark.parametrize("variant", VARIANTS)
def test_distance_is_a_normalised_proximity(variant):
    config = DecompXConfig(stages=STAGES, variant=variant)
    vectors = reference.attribute(linearization(), config.replace(stage_output="vector")).stages
    distances = reference.attribute(linearization(), config.replace(stage_output="distance")).stages
    for name, x in vectors.items():
        x = x.numpy()
        whole = x.sum(-2, keepdims=True)
        near = np.maximum(np.abs(whole).sum(-1) - np.abs(whole - x).sum(-1), 0)  # [b, i, k], or [b, k] of the pooler
        # The paper compares the sources of a position; the released code, the positions of a source.
        axis = -2 if variant == "released" and near.ndim == 3 else -1
        total = near.sum(axis, keepdims=True)
        expected = np.divide(near, total, out=np.zeros_like(near), where=total > 0)
        assert np.allclose(distances[name].numpy(), expected, rtol=1e-10, atol=1e-14)
        if variant == "paper":
            assert np.allclose(expected.sum(-1), 1)


def test_stages_that_are_not_asked_for_are_not_kept():
    assert reference.attribute(linearization(), DecompXConfig()).stages == {}
    stages = reference.attribute(linearization(), DecompXConfig(stages="ln1")).stages
    assert list(stages) == ["ln1.0", "ln1.1"]


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_stages_do_not_change_the_scores(family):
    expected = reference.attribute(linearization(family=family), DecompXConfig()).scores
    for output in ("norm", "vector", "distance"):
        config = DecompXConfig(stages=STAGES, stage_output=output)
        assert torch.equal(reference.attribute(linearization(family=family), config).scores, expected)


@pytest.mark.parametrize("row_normalize", [None, True, False])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["post_norm", "rms_gated"])
def test_rollout_multiplies_the_layers_norms(kind, variant, row_normalize):
    options = {"head": False, "variant": variant, "stages": ["encoder", "aggregated"]}
    model = random_model(kind, layers=3)
    single = reference.attribute(model, DecompXConfig(aggregation="none", **(options | {"stages": ["encoder"]})))
    config = DecompXConfig(aggregation="rollout", row_normalize=row_normalize, **options)
    result = reference.attribute(model, config)
    product = np.eye(7)
    for n in range(3):
        norms = single.stages[f"encoder.{n}"].numpy()
        if row_normalize or (row_normalize is None and variant == "paper"):
            norms = norms / norms.sum(-1, keepdims=True)
        product = norms @ product
        assert np.allclose(result.stages[f"aggregated.{n}"].numpy(), product, rtol=1e-12)
    assert np.allclose(result.scores[..., 0].numpy(), product[:, model.position], rtol=1e-12)
    assert result.scores.shape == (2, 7, 1) and result.bias_token is None
    if config.normalizes_rows:
        assert np.allclose(result.scores.sum(1).numpy(), 1)


def test_layers_on_their_own_start_afresh():
    model = random_model("post_norm", layers=3)
    config = DecompXConfig(aggregation="none", head=False, stages=["encoder"], stage_output="vector")
    stages = reference.attribute(model, config).stages
    for layer in model.layers():
        alone = RandomModel((model.specs[layer.index],), model.steps, 0, layer.input)
        whole = DecompXConfig(head=False, stages=["encoder"], stage_output="vector")
        expected = reference.attribute(alone, whole).stages["encoder.0"]
        assert torch.equal(stages[f"encoder.{layer.index}"], expected)


@pytest.mark.parametrize("rule", ["absdot", "bias_token", "none"])
def test_without_a_head_scores_are_norms_of_the_last_state(rule):
    model = random_model("post_norm", position=2)
    config = DecompXConfig(bias=rule, head=False, stages=["encoder"], stage_output="vector")
    result = reference.attribute(model, config)
    expected = result.stages["encoder.1"][:, 2].norm(dim=-1)
    assert torch.equal(result.scores[..., 0], expected)
    if rule != "none":
        assert result.gap.max() < 1e-11
