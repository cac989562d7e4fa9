"""A narrower state beside the residual stream (MobileBERT), in every engine and under every option."""

from __future__ import annotations

import pytest
import torch
from exactness import by_definition, close
from live_bytes import LiveBytes
from test_families import CASES, classifier, inputs

from decompx_fast import DecompX, DecompXConfig, UnsupportedModelError
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import narrow
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.forward.plan import ModelShape, plan
from decompx_fast.evaluation.linearized import attention_of
from decompx_fast.evaluation.methods import relevance
from decompx_fast.linearize.architectures import describe
from decompx_fast.linearize.linearization import linearize

CASE = "mobilebert"


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("activation", ["zero_origin", "linear"])
@pytest.mark.parametrize("case", [CASE, "mobilebert_layer_norm"])
def test_options_agree_with_a_second_decomposition(case, activation, variant):
    model, given = classifier(case), inputs(case, 1, 6)
    for rule in ("absdot", "abssim", "norm", "equal", "cls", "bias_token"):
        config = DecompXConfig(bias=rule, activation=activation, variant=variant)
        expected = reference.attribute(linearize(model, given), config).scores
        assert close(forward.attribute(linearize(model, given), config).scores, expected)
        assert close(by_definition(linearize(model, given), config), expected[0])
        if rule in ("equal", "cls", "bias_token"):
            assert close(adjoint.attribute(linearize(model, given), config).scores, expected)


@pytest.mark.parametrize("ablated", [{"ln1": False}, {"ln2": False}, {"ffn": False}])
def test_ablations_agree(ablated):
    model, given = classifier(CASE), inputs(CASE)
    for rule in ("absdot", "bias_token"):
        config = DecompXConfig(bias=rule, **ablated)
        expected = reference.attribute(linearize(model, given), config).scores
        assert close(forward.attribute(linearize(model, given), config).scores, expected)
        if rule == "bias_token":
            assert close(adjoint.attribute(linearize(model, given), config).scores, expected)


@pytest.mark.parametrize("workspace_bytes", [1, None])
def test_groups_of_tokens_and_rows_in_small_blocks(workspace_bytes):
    model, given = classifier(CASE), inputs(CASE, 2, 7)
    sources = torch.tensor([[0, 0, 1, 1, 1, 2, 0], [2, 1, 1, 0, 0, 0, 0]])
    config = DecompXConfig(stage_output="vector")
    options = {"sources": sources, "positions": (2, 6), "workspace_bytes": workspace_bytes}
    found = forward.attribute(linearize(model, given), config, **options)
    whole = config.replace(stages=("encoder",))
    expected = reference.attribute(linearize(model, given), whole, sources=sources)
    assert close(found.scores, expected.scores)
    assert close(found.stages["rows"], expected.stages["encoder.2"][:, [2, 6]])


@pytest.mark.parametrize("bottleneck_attention", [True, False])
def test_of_the_last_layer_only_the_rows_that_are_read_are_computed(monkeypatch, bottleneck_attention):
    name, options = CASES[CASE]
    monkeypatch.setitem(CASES, "own", (name, options | {"use_bottleneck_attention": bottleneck_attention}))
    model, given, computed = classifier("own"), inputs(CASE, 2, 9), []
    finish = narrow._finish
    monkeypatch.setattr(narrow, "_finish", lambda *a, **k: computed.append(a[3].stop - a[3].start) or finish(*a, **k))
    for rule in ("absdot", "norm", "equal", "bias_token"):
        for variant in ("paper", "released"):
            config = DecompXConfig(bias=rule, variant=variant)
            linearization = linearize(model, given)
            computed.clear()
            found = forward.attribute(linearization, config, positions=(4,))
            inner, layers = len(describe(model).layers[0]) - 2, linearization.num_layers
            assert sum(computed) == 2 * 9 * inner * (layers - 1) + 2 * 2 * inner  # two rows of each input at last
            whole = config.replace(stages=("encoder",), stage_output="vector")
            expected = reference.attribute(linearize(model, given), whole)
            assert close(found.scores, expected.scores)
            last = expected.stages[f"encoder.{linearization.num_layers - 1}"]
            assert close(found.stages["rows"], last[:, [4]].norm(dim=-1))


def test_what_biases_add_is_told_by_place():
    linearization = linearize(classifier(CASE), inputs(CASE))
    result = adjoint.attribute(linearization, DecompXConfig(bias="none", activation="linear"))
    places = {site.place for site in result.sites if site.layer == 0}
    assert {"narrow", "narrow.norm", "widen", "widen.norm", "attention", "ln1", "ln2", "ffn.in", "ffn.out"} <= places
    total = result.scores.sum(1) + sum(site.value for site in result.sites)
    assert close(total, linearization.logits)


@pytest.mark.parametrize("engine", ["reference", "forward", "adjoint"])
def test_padding_on_either_side_changes_nothing(engine):
    model, ids = classifier(CASE), inputs(CASE, 1)["input_ids"][0].tolist()
    explainer = DecompX(model, engine=engine, bias="bias_token")
    expected = explainer.explain(ids)
    for row, mask in (([1, 1, *ids], [0, 0] + [1] * 11), ([*ids, 1, 1], [1] * 11 + [0, 0])):
        assert close(explainer.explain({"input_ids": [row], "attention_mask": [mask]})[0].scores, expected.scores)


@pytest.mark.parametrize(
    "part",
    [
        "bottleneck.input.dense",
        "bottleneck.input.LayerNorm",
        "bottleneck.attention",
        "output.bottleneck.dense",
        "ffn.0",
    ],
)
def test_a_changed_part_is_refused(part):
    model = classifier(CASE)
    module = model.mobilebert.encoder.layer[1].get_submodule(part)
    module.register_forward_hook(lambda _module, _args, output: output * 1.01)
    for record in (False, True):
        with pytest.raises(UnsupportedModelError, match="layer 1"):
            list(linearize(model, inputs(CASE), record=record).layers())


LARGER = {"hidden_size": 96, "intra_bottleneck_size": 64, "intermediate_size": 192, "num_attention_heads": 8}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_plan_foretells_the_peak(monkeypatch, dtype):
    name, options = CASES[CASE]
    monkeypatch.setitem(CASES, "larger", (name, options | LARGER | {"max_position_embeddings": 64}))
    model = classifier("larger") if dtype is torch.float64 else classifier("larger").float()
    linearization, counter = linearize(model, inputs(CASE, 1, 48)), LiveBytes()
    with counter:
        forward.attribute(linearization, DecompXConfig(), dtype=dtype, workspace_bytes=4 << 20)
    shape = ModelShape.from_spec(describe(model))
    foretold = plan(shape, 48, config=DecompXConfig(), dtype=dtype, workspace_bytes=4 << 20)
    assert shape.narrow == 64
    assert foretold.peak_bytes == pytest.approx(counter.peak, rel=0.15)


def test_methods_that_do_not_know_bottlenecks_refuse_them():
    linearization, spec = linearize(classifier(CASE), inputs(CASE)), describe(classifier(CASE))
    message = "a narrower state between two maps, which {} does not know"
    with pytest.raises(UnsupportedModelError, match=message.format("this method")):
        attention_of(next(linearization.layers()))
    with pytest.raises(UnsupportedModelError, match=message.format("relevance")):
        relevance.forward([spec.layers[0]], linearization.embedding, linearization.contexts)
