"""A convolution of the embedding after the first layer (DeBERTa v2): what no other architecture has."""

from __future__ import annotations

import naive
import numpy as np
import pytest
import torch
from exactness import close
from live_bytes import LiveBytes
from test_families import CASES, ROUNDING, classifier, inputs
from torch import nn

from decompx_fast import DecompXConfig, UnsupportedModelError
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.forward.plan import ModelShape, plan
from decompx_fast.evaluation.methods import norms, relevance
from decompx_fast.linearize.architectures import describe
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.spec import ConvolutionSpec, InputLimits, ModelSpec, SublayerSpec

CASE = "deberta_convolution"


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("activation", ["zero_origin", "linear", "relu"])
@pytest.mark.parametrize("case", [CASE, "deberta_convolution_groups"])
def test_options_agree_with_a_second_decomposition(case, activation, variant):
    given = inputs(CASE, 1, 6)
    for rule in ("absdot", "abssim", "norm", "dot", "bias_token"):
        config = DecompXConfig(bias=rule, activation=activation, variant=variant)
        expected = reference.attribute(linearize(classifier(case), given), config).scores
        assert close(forward.attribute(linearize(classifier(case), given), config).scores, expected)
        scores, _ = naive.decompose(linearize(classifier(case), given), config)
        tokens = scores[:-1] if rule == "bias_token" else scores
        assert np.abs(tokens - expected[0].numpy()).max() <= ROUNDING * np.abs(tokens).max()


@pytest.mark.parametrize("rule", ["absdot", "equal", "cls", "bias_token", "none"])
def test_groups_of_tokens_are_sources(rule):
    """Neighbours of one source give it several taps at once."""
    model, given = classifier(CASE), inputs(CASE, 2, 7)
    sources, config = torch.tensor([[0, 0, 1, 1, 1, 2, 0], [2, 1, 1, 0, 0, 0, 0]]), DecompXConfig(bias=rule)
    expected = reference.attribute(linearize(model, given), config, sources=sources)
    found = forward.attribute(linearize(model, given), config, sources=sources)
    assert close(found.scores, expected.scores)
    for item in range(2):
        one = {name: value[item : item + 1] for name, value in given.items()}
        scores, _ = naive.decompose(linearize(model, one), config, sources[item].tolist())
        tokens = scores[:-1] if rule == "bias_token" else scores
        assert np.abs(tokens - expected.scores[item].numpy()).max() <= ROUNDING * np.abs(scores).max()


@pytest.mark.parametrize("workspace_bytes", [1, None])
def test_one_layer_and_positions_read_row_by_row(workspace_bytes):
    """The convolution is in the last layer too, of which only some rows are wanted."""
    CASES["one_layer"] = (CASES[CASE][0], CASES[CASE][1] | {"num_hidden_layers": 1})
    try:
        model = classifier("one_layer")
    finally:
        del CASES["one_layer"]
    given, config = inputs(CASE, 2, 9), DecompXConfig(stage_output="vector")
    found = forward.attribute(linearize(model, given), config, positions=(4, 8), workspace_bytes=workspace_bytes)
    whole = reference.attribute(linearize(model, given), DecompXConfig(stages=("encoder",), stage_output="vector"))
    assert close(found.scores, whole.scores)
    assert close(found.stages["rows"], whole.stages["encoder.0"][:, [4, 8]])
    equal = DecompXConfig(bias="equal")
    expected = reference.attribute(linearize(model, given), equal).scores
    assert close(adjoint.attribute(linearize(model, given), equal).scores, expected)


def test_what_biases_add_is_told_by_place():
    """Scores without biases and the sites add up to the logits, the convolution's bias among them."""
    linearization = linearize(classifier(CASE), inputs(CASE))
    result = adjoint.attribute(linearization, DecompXConfig(bias="none", activation="linear"))
    places = {site.place for site in result.sites if site.layer == 0}
    assert {"convolution.in", "convolution.intercept", "convolution.norm", "ln1", "ln2"} <= places
    total = result.scores.sum(1) + sum(site.value for site in result.sites)
    assert close(total, linearization.logits)


def test_what_components_carry_sums_to_the_gradient_times_the_state():
    """Before a sublayer: all that it passes on, by its operation and past it (the embedding's own part apart)."""
    model, given = classifier(CASE), inputs(CASE)
    result = adjoint.attribute(linearize(model, given), DecompXConfig(bias="none"))
    carried = result.components
    direct = carried["convolution.0"].sum(1)
    through_layer = carried["convolution_residual.0"].sum(1)
    after = (carried["attention.1"] + carried["attention_residual.1"]).sum(1)
    biases = sum(site.value for site in result.sites if site.layer == 0 and site.place.startswith("convolution"))
    assert close(direct + through_layer + biases, after)


@pytest.mark.parametrize(
    "part", ["deberta.encoder.conv.conv", "deberta.encoder.conv.LayerNorm", "deberta.encoder.conv"]
)
def test_a_changed_convolution_is_refused(part):
    model = classifier(CASE)
    model.get_submodule(part).register_forward_hook(lambda _module, _args, output: output * 1.01)
    for record in (False, True):
        with pytest.raises(UnsupportedModelError, match="layer 0"):
            list(linearize(model, inputs(CASE), record=record).layers())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (nn.Conv1d(24, 24, 3, padding=2, dilation=2), "odd width that pads its ends with zeros"),
        (nn.Conv1d(24, 24, 3, padding=1, padding_mode="circular"), "odd width that pads its ends with zeros"),
        (nn.Sequential(nn.Conv1d(24, 24, 3, padding=1)), "a one-dimensional convolution"),
    ],
)
def test_another_convolution_is_refused_by_name(changed, message):
    model = classifier(CASE)
    model.deberta.encoder.conv.conv = changed.double().eval()
    with pytest.raises(UnsupportedModelError, match=rf"deberta\.encoder\.conv\.conv.*{message}"):
        linearize(model, inputs(CASE))


def test_a_convolution_stands_alone_in_the_first_layer():
    convolve = SublayerSpec((ConvolutionSpec(torch.zeros(4, 4, 3), None, 1, "gelu"),))
    with pytest.raises(ValueError, match="layer 1 has a convolution: it must be in layer 0"):
        ModelSpec((), ((convolve,), (convolve,)), (), 0, InputLimits(None, {}))


LARGER = {"hidden_size": 96, "intermediate_size": 384, "num_attention_heads": 8, "max_position_embeddings": 128}


@pytest.fixture
def larger(monkeypatch):
    name, options = CASES[CASE]
    monkeypatch.setitem(CASES, "larger", (name, options | LARGER))
    return classifier("larger")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ffn", [True, False])
def test_plan_foretells_the_peak(larger, dtype, ffn):
    model = larger if dtype is torch.float64 else larger.float()
    linearization, config = linearize(model, inputs(CASE, 1, 48)), DecompXConfig(ffn=ffn)
    counter = LiveBytes()
    with counter:
        forward.attribute(linearization, config, dtype=dtype, workspace_bytes=4 << 20)
    shape = ModelShape.from_spec(describe(model))
    foretold = plan(shape, 48, config=config, dtype=dtype, workspace_bytes=4 << 20)
    assert shape.taps == 3
    assert foretold.path == "direct"
    assert foretold.flops["convolution"] == 2 * 48 * 3 * 96 * 96
    assert foretold.peak_bytes == pytest.approx(counter.peak, rel=0.1)


def test_methods_that_do_not_know_convolutions_refuse_them():
    linearization, spec = linearize(classifier(CASE), inputs(CASE)), describe(classifier(CASE)).layers[0]
    message = "a convolution of its embedding, which {} does not know"
    with pytest.raises(UnsupportedModelError, match=message.format("value zeroing")):
        norms._distances(next(linearization.layers()), spec)
    with pytest.raises(UnsupportedModelError, match=message.format("relevance")):
        relevance.forward([spec], linearization.embedding, linearization.contexts)
