"""Numbers that leave a dtype's range: an error that names a wider one, in every engine, and a warning before."""

from __future__ import annotations

import math
import warnings

import models
import pytest
import torch
from random_models import random_model

from decompx_fast import DecompX
from decompx_fast.config import DecompXConfig
from decompx_fast.engines import dtype_range, reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.attribution import Attribution, SiteShare
from decompx_fast.engines.dtype_range import finite
from decompx_fast.engines.forward import run as forward
from decompx_fast.errors import NumericalError, PrecisionWarning

IDS = models.token_ids(9)[0].tolist()


def outlier_norm() -> torch.nn.Module:
    """A gain of 1e5 in one dimension of a LayerNorm, whose readers are scaled back: the same function in float32."""
    model = models.classifier(dtype=torch.float32, labels=3)
    gain, layer = 1e5, model.bert.encoder.layer[0]
    with torch.no_grad():
        for affine in (layer.attention.output.LayerNorm.weight, layer.attention.output.LayerNorm.bias):
            affine[3] *= gain
        layer.intermediate.dense.weight[:, 3] /= gain
    return model


def outlier_network() -> torch.nn.Module:
    """The hidden layer of a network times 3e4, its output over 3e4."""
    model = models.classifier(dtype=torch.float32, labels=3, hidden_act="relu")
    layer = model.bert.encoder.layer[0]
    with torch.no_grad():
        layer.intermediate.dense.weight *= 3e4
        layer.intermediate.dense.bias *= 3e4
        layer.output.dense.weight /= 3e4
    return model


CASES = {"norm": outlier_norm, "network": outlier_network}


@pytest.mark.filterwarnings("ignore::decompx_fast.errors.PrecisionWarning")
@pytest.mark.parametrize("options", [{}, {"path": "direct", "backend": "torch"}, {"bias": "abssim"}])
@pytest.mark.parametrize("engine", ["forward", "reference"])
@pytest.mark.parametrize("case", CASES)
def test_overflow_is_an_error_that_names_a_wider_dtype(case, engine, options):
    explainer = DecompX(CASES[case](), engine=engine)
    try:
        found = explainer.explain(IDS, dtype="float16", **options)
    except NumericalError as error:
        assert "float16" in str(error) and "bfloat16" in str(error) and "float32" in str(error)
        return
    # A path may hold the hidden layer in float32: then the scores are right.
    expected = explainer.explain(IDS, dtype="float64", **options).scores
    assert torch.isfinite(found.scores).all()
    assert (found.scores - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.filterwarnings("ignore::decompx_fast.errors.PrecisionWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"head": False},
        {"aggregation": "rollout", "head": False, "engine": "reference"},
        {"stages": ("encoder",), "engine": "reference"},
        {"positions": [0, 5]},
        {"bias": "bias_token", "engine": "forward"},
    ],
)
def test_overflow_is_an_error_in_whatever_is_returned(options):
    with pytest.raises(NumericalError, match="bfloat16"):
        DecompX(outlier_norm()).explain(IDS, dtype="float16", **options)


@pytest.mark.parametrize("engine", ["forward", "reference"])
@pytest.mark.parametrize("case", CASES)
def test_overflow_is_told_before(case, engine):
    with pytest.warns(PrecisionWarning, match="layer 0.*float16") as caught:
        try:
            DecompX(CASES[case](), engine=engine).explain(IDS, dtype="float16")
        except NumericalError:
            pass
    assert caught[0].filename == __file__


def test_what_fits_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = models.classifier(dtype=torch.float32)
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            DecompX(model).explain(IDS, dtype=dtype)


def test_weights_are_not_read_for_a_dtype_of_the_same_range(monkeypatch):
    monkeypatch.setattr(dtype_range, "_weights", lambda _: pytest.fail("weights are read"))
    for attribute in (forward.attribute, reference.attribute):
        attribute(random_model("post_norm", dtype=torch.float32), DecompXConfig(), dtype=torch.bfloat16)


@pytest.mark.parametrize("attribute", [forward.attribute, reference.attribute])
def test_a_weight_or_an_embedding_beyond_the_range_is_refused(attribute):
    model = random_model("post_norm", dtype=torch.float32)
    model.embedding[0, 0, 0] = 1e5
    with pytest.raises(NumericalError, match="embedding.*float16"):
        attribute(model, DecompXConfig(), dtype=torch.float16)
    model = random_model("post_norm", dtype=torch.float32)
    model.specs[1][1].ops[0].into.weight[0, 0] = -1e5
    with pytest.raises(NumericalError, match="feed-forward weight in layer 1.*float16"):
        attribute(model, DecompXConfig(), dtype=torch.float16)


@pytest.mark.parametrize("attribute", [adjoint.attribute, forward.attribute, reference.attribute])
def test_float32_overflow_names_float64(attribute):
    """Class weights of 1e38: the head's sums leave float32, and not float64."""
    model = random_model("post_norm", dtype=torch.float32)
    model.steps[-1].map.weight.mul_(3e38 / model.steps[-1].map.weight.abs().max())
    model.steps[-2].map.weight.mul_(100)
    with pytest.raises(NumericalError, match="float64"):
        attribute(model, DecompXConfig(bias="none"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["scores", "gap", "bias_token", "stages", "sites", "components"])
def test_whatever_is_not_finite_is_named(place, value):
    good, bad = torch.zeros(1, 3, 2), torch.zeros(1, 3, 2)
    bad[0, 1, 0] = value
    parts = {"scores": good, "bias_token": good[:, 0], "gap": good[:, 0, 0]}
    parts["stages"], parts["components"], parts["sites"] = {"encoder.0": good}, {"ffn.0": good}, ()
    assert finite(Attribution(**parts), torch.float32).scores is good
    changed = {
        "scores": bad,
        "gap": bad[:, 1, 0],
        "bias_token": bad[:, 1],
        "stages": {"encoder.0": bad},
        "components": {"ffn.0": bad},
        "sites": (SiteShare(0, "ln1", bad[:, 1]),),
    }
    with pytest.raises(NumericalError, match="float64"):
        finite(Attribution(**(parts | {place: changed[place]})), torch.float32)
    with pytest.raises(NumericalError, match="no wider dtype"):
        finite(Attribution(**(parts | {place: changed[place]})), torch.float64)
