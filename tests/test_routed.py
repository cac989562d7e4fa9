"""Networks that positions choose among, sinks and capped logits, clamped gates, scales: on layers made for them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import naive
import numpy as np
import pytest
import torch
from live_bytes import LiveBytes
from llama_like import decoder, inputs
from random_models import Parts, RandomModel

from decompx_fast import DecompXConfig, UnsupportedModelError
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.forward.plan import plan
from decompx_fast.engines.shape import ModelShape
from decompx_fast.evaluation.linearized import refuse_convolutions
from decompx_fast.linearize.architectures import describe
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.reading.routing import always, by_softmax, by_softmax_of_chosen
from decompx_fast.linearize.spec import HeadStepSpec, RoutedSpec, ScaleSpec, SublayerSpec

ROUNDING = 1e-11


def routed(p, experts=3, top=2, **options):
    network = partial(p.network, **options)
    route = partial(by_softmax, top=top, normed=False)
    return RoutedSpec(p.affine(p.d, experts), tuple(network() for _ in range(experts)), route, top)


def shared(p):
    return RoutedSpec(p.affine(p.d, 1), (p.network("silu", gated=True),), always, 1)


def clamped(p):
    return replace(p.network("clamped_silu:1.7:0.4", gated=True), limit=0.5, shift=1.0)


def sunk(p, **options):
    return replace(p.attention(**options), sink=p.normal(p.heads))


LAYERS = {
    "plain_experts": lambda p: (
        SublayerSpec((p.attention(causal=True),), p.norm()),
        SublayerSpec((routed(p),), p.norm()),
    ),
    "experts_after_norms": lambda p: (
        SublayerSpec((p.attention(),), post_norm=p.norm()),
        SublayerSpec((routed(p, gated=True), shared(p)), out_norm=p.norm(), post_norm=p.norm()),
    ),
    "experts_beside_an_attention": lambda p: (
        SublayerSpec((p.attention(causal=True), routed(p, experts=5, top=1), p.network()), p.norm()),
    ),
    "one_expert_alone": lambda p: (SublayerSpec((routed(p, experts=4, top=1),), post_norm=p.norm()),),
    "sinks": lambda p: (
        SublayerSpec((sunk(p, causal=True, kv_heads=2),), p.norm()),
        SublayerSpec((p.network(),), p.norm()),
    ),
    "sinks_after_norms": lambda p: (
        SublayerSpec((sunk(p, window=2),), post_norm=p.norm()),
        SublayerSpec((p.network(),), post_norm=p.norm()),
    ),
    "capped": lambda p: (
        SublayerSpec((replace(p.attention(causal=True), softcap=0.7),), p.norm()),
        SublayerSpec((p.network(),), p.norm()),
    ),
    "clamped_gates": lambda p: (
        SublayerSpec((p.attention(),), p.norm()),
        SublayerSpec((clamped(p),), p.norm()),
    ),
    "scaled_branches": lambda p: (
        SublayerSpec((p.attention(),), p.norm(), ScaleSpec(0.3)),
        SublayerSpec((p.network(),), p.norm(), ScaleSpec(-1.7)),
    ),
}


def model_of(name, batch=2, n=5, position=-1, seed=0):
    p = Parts(seed)
    head = (HeadStepSpec(p.affine(p.d, p.d), "softcap:1.5", ScaleSpec(0.4)), HeadStepSpec(p.affine(p.d, 3)))
    layers = [LAYERS[name](p) for _ in range(2)]
    return RandomModel(tuple(layers), head, position, p.normal(batch, n, p.d))


@pytest.mark.parametrize("rule", ["absdot", "abssim", "norm", "dot", "equal", "cls", "bias_token", "none"])
@pytest.mark.parametrize("name", LAYERS)
def test_engines_and_numpy_agree(name, rule):
    linearization, config = model_of(name), DecompXConfig(bias=rule)
    engines = [reference, forward] + [adjoint] * (rule in ("equal", "cls", "bias_token", "none"))
    found = [engine.attribute(linearization, config).scores for engine in engines]
    expected, _ = naive.decompose(linearization, config)  # of the first input
    expected = torch.from_numpy(expected[:-1] if rule == "bias_token" else expected)
    # Signed dots may nearly cancel in the sum that divides them.
    tolerance = (1e-8 if rule == "dot" else ROUNDING) * found[0].abs().max()
    for scores in found:
        assert (scores[0] - expected).abs().max() <= tolerance
        assert (scores - found[0]).abs().max() <= tolerance


OPTIONS = [
    {"gate": "half", "activation": "linear"},
    {"gate": "half", "bias": "bias_token"},
    {"variant": "released"},
    {"variant": "released", "bias": "equal"},
    {"ffn": False},
    {"ln1": False, "ln2": False, "bias": "cls"},
    {"bias": "bias_token", "bias_token_split": "absdot", "activation": "linear", "tanh": "linear"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_options_agree(name, options):
    linearization, config = model_of(name, batch=3, n=5, seed=1), DecompXConfig(**options)
    expected = reference.attribute(linearization, config)
    size = expected.scores.abs().max()
    engines = [forward] + [adjoint] * (config.bias in ("equal", "cls", "bias_token"))
    for engine in engines:
        found = engine.attribute(linearization, config)
        assert (found.scores - expected.scores).abs().max() <= ROUNDING * size
    if config.bias_token_split is None:
        mine, _ = naive.decompose(linearization, config)
        assert np.abs(mine[: len(expected.scores[0])] - expected.scores[0].numpy()).max() <= ROUNDING * size


@pytest.mark.parametrize("position", [0, "mean"])
@pytest.mark.parametrize("workspace", [1, 3000])
@pytest.mark.parametrize("name", LAYERS)
def test_blocks_groups_and_readings_agree(name, workspace, position):
    p = Parts(3)
    head, layers = (HeadStepSpec(p.affine(p.d, 2)),), [LAYERS[name](p) for _ in range(2)]
    linearization = RandomModel(tuple(layers), head, position, p.normal(2, 7, p.d))
    sources = torch.tensor([[0, 1, 1, 2, 2, 2, 3]] * 2)
    for given in (None, sources):
        expected = reference.attribute(linearization, DecompXConfig(), sources=given)
        found = forward.attribute(linearization, DecompXConfig(), sources=given, workspace_bytes=workspace)
        assert (found.scores - expected.scores).abs().max() <= ROUNDING * expected.scores.abs().max()


def test_weights_of_a_sink_sum_to_less_than_one():
    (layer, *_) = model_of("sinks").layers()
    pattern = layer.sublayers[0].ops[0].pattern
    rows, sums = pattern.weights().sum(-1), pattern.row_sums()
    assert torch.equal(rows, sums) and (sums < 1).all() and (sums > 0).all()


def test_a_router_weighs_by_all_or_by_the_chosen():
    logits = torch.tensor([[1.0, 3.0, 2.0], [0.0, -1.0, 0.5]], dtype=torch.float64)
    weights, chosen = by_softmax_of_chosen(logits, None, top=2)
    assert chosen.tolist() == [[1, 2], [2, 0]]
    assert torch.allclose(weights[0], torch.tensor([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))]).double())
    among_all, _ = by_softmax(logits, chosen, top=2, normed=False)
    assert torch.allclose(among_all, logits.float().softmax(-1).gather(-1, chosen))
    normed, _ = by_softmax(logits, chosen, top=2, normed=True)
    assert torch.allclose(normed.sum(-1), torch.ones(2))


@pytest.mark.parametrize("case", ["mixtral", "gpt_oss"])
def test_the_choice_is_the_models_own(case):
    """Near a tie another precision would choose otherwise; what the model ran is what is explained."""
    model, given = decoder(case), inputs()
    router = model.model.layers[1].mlp.gate if case == "mixtral" else model.model.layers[1].mlp.router
    with torch.no_grad():
        router.weight[1] = router.weight[0]  # the first two are always tied
        if case == "gpt_oss":
            router.bias[1] = router.bias[0]
    chosen = []
    handle = router.register_forward_hook(lambda _m, _a, output: chosen.append(output[-1]))
    linearization = linearize(model, given)
    *_, last = linearization.layers()
    handle.remove()
    (op,) = last.sublayers[1].ops
    for number in chosen[0].unique().tolist():
        sent = (chosen[0] == number).any(-1).nonzero().flatten()
        assert any(torch.equal(part.at.sort().values, sent) for part in op.parts)


def test_shapes_count_the_networks_that_a_position_goes_through():
    shape = ModelShape.from_spec(describe(decoder("qwen2_moe")))
    assert (shape.networks, shape.f, shape.gated, shape.routed, shape.shifted) == (3, 20, True, True, False)
    assert ModelShape.from_spec(describe(decoder("gpt_oss"))).shifted
    assert not shape.foldable


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name", ["plain_experts", "experts_after_norms", "experts_beside_an_attention", "clamped_gates"]
)
def test_plans_foretell_the_peak(name, dtype):
    p = Parts(0, d=96, f=384, heads=8, dtype=torch.float32)
    head, layers = (HeadStepSpec(p.affine(p.d, 2)),), [LAYERS[name](p) for _ in range(2)]
    linearization = RandomModel(tuple(layers), head, 0, p.normal(2, 48, p.d))
    first, counter = next(linearization.layers()), LiveBytes()
    options = {"config": DecompXConfig(), "dtype": dtype, "workspace_bytes": 4 << 20}
    with counter:
        forward.attribute(linearization, **options)
    foretold = plan(ModelShape.from_linearization(linearization, first), 48, None, 2, **options)
    assert foretold.peak_bytes == pytest.approx(counter.peak, rel=0.1)


@pytest.mark.parametrize(
    ("name", "words"), [("plain_experts", "choose among"), ("sinks", "a sink"), ("capped", "capped")]
)
def test_methods_that_do_not_know_a_part_refuse_it(name, words):
    with pytest.raises(UnsupportedModelError, match=words):
        refuse_convolutions(LAYERS[name](Parts()), "this method")
