"""The adjoint engine against the reference engine, the authors' code, autograd, and what must always hold.

Tolerances: in float64 the engines differ by rounding only, 1e-12 of the largest score; the golden files allow 1e-9,
since the released code adds 1e-12 to its denominators; float32 against float64 1e-5, some hundred roundings of 6e-8.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import golden
import pytest
import torch
from frozen_forward import frozen_logits
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import KINDS, random_model
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import pullback
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.attribution import Attribution
from decompx_fast.engines.terms import Terms
from decompx_fast.errors import InputError, OptionError
from decompx_fast.linearize.linearization import linearize

RULES = ["none", "bias_token", "equal", "cls"]
SPLITS = ["absdot", "abssim", "norm", "equal", "cls"]
ACTIVATIONS = ["zero_origin", "linear", "relu"]
EXACT = 1e-12


def assert_same(ours: Attribution, theirs: Attribution, tolerance: float = EXACT) -> None:
    size = theirs.scores.abs().max()
    assert ours.scores.shape == theirs.scores.shape
    assert (ours.bias_token is None) == (theirs.bias_token is None)
    if ours.bias_token is not None:
        assert ours.bias_token.shape == theirs.bias_token.shape
        size = torch.maximum(size, theirs.bias_token.abs().max())
        assert (ours.bias_token - theirs.bias_token).abs().max() <= tolerance * size
    assert (ours.scores - theirs.scores).abs().max() <= tolerance * size
    # The gap of a complete rule is rounding, of which there is some in every number that is summed up.
    assert (ours.gap - theirs.gap).abs().max() <= 10 * tolerance * size


def site_sum(result: Attribution) -> Tensor:
    return torch.stack([site.value for site in result.sites]).sum(0)


# Against the reference engine.


@settings(max_examples=150)
@given(data=st.data())
def test_adjoint_equals_reference_for_random_models(data):
    def draw(*values):
        return data.draw(st.sampled_from(values))

    n = data.draw(st.integers(1, 9))
    model = random_model(
        draw(*KINDS),
        data.draw(st.integers(0, 2**16)),
        b=draw(1, 2),
        n=n,
        layers=draw(1, 2, 3),
        classes=draw(1, 2, 4),
        position=draw(0, n - 1, -1),
    )
    rule = draw(*RULES, "bias_token")
    config = DecompXConfig(
        bias=rule,
        bias_token_split=draw(None, *SPLITS) if rule == "bias_token" else None,
        variant=draw("paper", "released"),
        activation=draw(*ACTIVATIONS),
        tanh=draw("zero_origin", "linear"),
        gate=draw("value", "half"),
        ln1=draw(True, True, False),
        ln2=draw(True, True, False),
        ffn=draw(True, True, False),
    )
    assert_same(adjoint.attribute(model, config), reference.attribute(model, config))


@pytest.mark.parametrize("part", ["ln1", "ffn", "ln2"])
@pytest.mark.parametrize("kind", KINDS)
def test_adjoint_equals_reference_with_a_part_left_out(kind, part):
    # Where the branch is left out but not its norm, the bias of that reaches what nothing else does.
    model = random_model(kind, n=9, position=8)
    config = DecompXConfig(bias="equal", **{part: False})
    assert_same(adjoint.attribute(model, config), reference.attribute(model, config))


@pytest.mark.parametrize("kind", KINDS)
def test_adjoint_equals_reference_with_signed_split(kind):
    # Shares by signed dots may be divided by next to nothing, so the models are fixed.
    config = DecompXConfig(bias="bias_token", bias_token_split="dot")
    model = random_model(kind, seed=3)
    assert_same(adjoint.attribute(model, config), reference.attribute(model, config))


def hugging_face(family: str, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    torch.manual_seed(5)
    options = dict(
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        vocab_size=60,
        max_position_embeddings=40,
        num_labels=3,
    )
    if family == "bert":
        model = BertForSequenceClassification(BertConfig(**options))
    else:
        model = RobertaForSequenceClassification(RobertaConfig(**options))
    for parameter in model.parameters():
        # Large enough that no part of the model is negligible.
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model.to(dtype).eval()


def token_ids(b: int = 2, n: int = 11) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(5, 60, (b, n), generator=torch.Generator().manual_seed(1))}


@pytest.fixture(scope="module", params=["bert", "roberta"])
def classifier(request):
    model = hugging_face(request.param)
    return model, linearize(model, token_ids())


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("rule", [*RULES, *(f"bias_token then {split}" for split in [*SPLITS, "dot"])])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_adjoint_equals_reference_for_bert_and_roberta(classifier, rule, activation, variant):
    _, linearization = classifier
    bias, _, split = rule.partition(" then ")
    for tanh in ("zero_origin", "linear"):
        config = DecompXConfig(
            bias=bias, bias_token_split=split or None, variant=variant, activation=activation, tanh=tanh
        )
        assert_same(adjoint.attribute(linearization, config), reference.attribute(linearization, config))


@pytest.mark.parametrize("rule", RULES)
def test_adjoint_in_float32_equals_float64(classifier, rule):
    model, linearization = classifier
    single = linearize(model, token_ids(), dtype=torch.float32)
    result = adjoint.attribute(single, DecompXConfig(bias=rule))
    assert result.scores.dtype == torch.float32
    exact = adjoint.attribute(linearization, DecompXConfig(bias=rule))
    assert (result.scores - exact.scores).abs().max() < 1e-5 * exact.scores.abs().max()


# Against the authors' code.


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_adjoint_matches_released_code(family):
    model, expected, compared = golden.model(family), golden.expected(family), []
    for case, released in golden.cases(family).items():
        config = DecompXConfig(**golden.options(released))
        if config.bias not in RULES or not config.head:
            continue
        compared.append(case)
        for row, inputs in enumerate(golden.inputs(family)):
            result = adjoint.attribute(linearize(model, inputs), config)
            n = result.scores.shape[1]
            theirs = expected[f"{case}/classifier"][row]
            size = theirs.abs().max()
            assert (result.scores[0] - theirs[:n]).abs().max() < 1e-9 * size
            if result.bias_token is not None:
                assert (result.bias_token[0] - theirs[-1]).abs().max() < 1e-9 * size
    assert compared == [
        "bias-equal",
        "bias-cls",
        "no-bias",
        "bias-token",
        "bias-token-then-absdot",
        "no-ffn-no-bias",
    ]


# Against autograd.


@pytest.mark.parametrize("gate", ["half", "value"])
@pytest.mark.parametrize("activation", ["zero_origin", "linear"])
@pytest.mark.parametrize("kind", KINDS)
def test_adjoint_scores_equal_autograd_and_sites_the_value_at_zero(kind, activation, gate):
    config = DecompXConfig(bias="none", activation=activation, tanh=activation, gate=gate)
    model = random_model(kind, seed=11, position=4)
    x = model.embedding.clone().requires_grad_()
    y = frozen_logits(model, x, config)
    assert (y - model.logits).abs().max() < EXACT * model.logits.abs().max()
    grads = [torch.autograd.grad(y[:, c].sum(), x, retain_graph=True)[0] for c in range(y.shape[1])]
    scores = torch.stack([(grad * model.embedding).sum(-1) for grad in grads], -1)
    result = adjoint.attribute(model, config)
    assert (result.scores - scores).abs().max() < EXACT * scores.abs().max()
    at_zero = frozen_logits(model, torch.zeros_like(x), config)
    assert (site_sum(result) - at_zero).abs().max() < EXACT * at_zero.abs().max()


# What must always hold.


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_adjoint_is_complete(kind, rule):
    model = random_model(kind, seed=7, n=8, layers=3)
    for activation, gate in itertools.product(["zero_origin", "linear"], ["value", "half"]):
        config = DecompXConfig(bias=rule, activation=activation, tanh=activation, gate=gate)
        result = adjoint.attribute(model, config)
        total = result.scores.sum(1)
        if rule in ("none", "bias_token"):
            total = total + site_sum(result)
        assert (total - model.logits).abs().max() < 1e-11 * model.logits.abs().max()
        if rule == "bias_token":
            assert torch.allclose(site_sum(result), result.bias_token, rtol=EXACT, atol=EXACT)
        if rule == "none":
            assert torch.allclose(result.gap, site_sum(result).abs().amax(-1), rtol=1e-11)
        else:
            assert result.gap.max() < 1e-11 * model.logits.abs().max()


def test_adjoint_names_every_site_in_forward_order():
    def places(kind, **options):
        config = DecompXConfig(bias="bias_token", **options)
        return [(s.layer, s.place) for s in adjoint.attribute(random_model(kind, layers=1), config).sites]

    head = [(-1, "head.0"), (-1, "head.1"), (-1, "head.2")]
    layer = ["attention", "ln1", "ffn.in", "ffn.out", "ln2"]
    assert places("post_norm") == [(0, place) for place in layer] + head
    layer = ["pre_ln1", "attention", "out_ln1", "pre_ln2", "ffn.in", "ffn.gate", "ffn.out", "out_ln2"]
    assert places("around", gate="half") == [(0, place) for place in layer] + head
    layer.remove("ffn.gate")
    assert places("around", gate="value") == [(0, place) for place in layer] + head
    assert (0, "ffn.intercept") in places("post_norm", activation="linear")
    assert (-1, "head.0.intercept") in places("post_norm", tanh="linear")
    assert (-1, "head.1.intercept") in places("post_norm", activation="linear")


@pytest.mark.parametrize("rule", RULES)
def test_adjoint_without_sites_gives_the_same_scores(rule):
    model = random_model("post_norm")
    result = adjoint.attribute(model, DecompXConfig(bias=rule), sites=False)
    assert result.sites is None
    assert torch.equal(result.scores, adjoint.attribute(model, DecompXConfig(bias=rule)).scores)


@pytest.mark.parametrize("rule", [*RULES, "split"])
def test_adjoint_directions_are_combinations_of_classes(rule):
    options = dict(bias="bias_token", bias_token_split="absdot") if rule == "split" else dict(bias=rule)
    config = DecompXConfig(**options)
    model = random_model("post_norm", classes=3)
    every = adjoint.attribute(model, config)
    directions = torch.tensor([[1.0, -1, 0], [0.2, 0.3, 0.5], [0, 0, 2], [1, 1, 1]])
    for m in (1, 2, 4):  # less than there are classes, and more
        asked = directions[:m]
        result = adjoint.attribute(model, config, terms=Terms.of_classes(2, 3, asked))
        expected = torch.einsum("bkc,mc->bkm", every.scores, asked.double())
        assert result.scores.shape == (2, 7, m)
        assert (result.scores - expected).abs().max() < EXACT * expected.abs().max()
        for ours, theirs in zip(result.sites, every.sites, strict=True):
            assert (ours.layer, ours.place) == (theirs.layer, theirs.place)
            assert torch.allclose(ours.value, theirs.value @ asked.double().T, rtol=1e-10, atol=EXACT)
        if rule == "bias_token":
            assert torch.allclose(result.bias_token, every.bias_token @ asked.double().T, rtol=1e-10)
        if rule != "none":
            assert result.gap.max() < 1e-11


@pytest.mark.parametrize("kind", KINDS)
def test_adjoint_of_a_batch_is_that_of_its_rows(kind):
    model = random_model(kind, b=3)
    for rule in RULES:
        together = adjoint.attribute(model, DecompXConfig(bias=rule))
        for row in range(3):
            alone = replace(model, embedding=model.embedding[row : row + 1])
            scores = adjoint.attribute(alone, DecompXConfig(bias=rule)).scores
            assert (together.scores[row] - scores[0]).abs().max() < EXACT * scores.abs().max()


def test_adjoint_gives_no_score_to_what_is_out_of_reach():
    # Causal, window 3, two layers: position 8 sees sources 4 to 8.
    for rule in ("none", "bias_token", "equal"):
        result = adjoint.attribute(random_model("around", n=12, position=8), DecompXConfig(bias=rule))
        seen = result.scores.abs().amax((0, 2)) > 0
        assert seen.nonzero().flatten().tolist() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("kind", KINDS)
def test_adjoint_in_the_smallest_blocks_equals_reference(monkeypatch, kind):
    model = random_model(kind, seed=2, b=2, n=9)
    expected = reference.attribute(model, DecompXConfig(bias="equal"))
    for rows, n_bytes in ((1, 1), (3, 8 * 9 * 7), (9, 8 * 2 * 9 * 9)):
        monkeypatch.setattr(pullback, "MIX_ROWS", rows)
        monkeypatch.setattr(pullback, "CPU_ALPHA_BYTES", n_bytes)
        monkeypatch.setattr(pullback, "CPU_HIDDEN_BYTES", n_bytes)
        assert_same(adjoint.attribute(model, DecompXConfig(bias="equal")), expected)


def test_adjoint_works_in_every_autograd_mode_and_leaves_nothing(classifier):
    model, linearization = classifier
    config = DecompXConfig(bias="equal")
    assert all(parameter.requires_grad for parameter in model.parameters())
    expected = adjoint.attribute(linearization, config).scores
    assert not expected.requires_grad
    with torch.no_grad():
        assert torch.equal(adjoint.attribute(linearization, config).scores, expected)
    with torch.inference_mode():
        assert torch.equal(adjoint.attribute(linearization, config).scores, expected)
        inside = linearize(model, token_ids())
        assert torch.equal(adjoint.attribute(inside, config).scores, expected)
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


# Errors.


@pytest.mark.parametrize("rule", ["absdot", "abssim", "norm", "dot"])
def test_adjoint_refuses_rules_that_need_the_vectors(rule):
    message = f"bias='{rule}'.*forward engine.*'equal', 'cls', 'none', 'bias_token'"
    with pytest.raises(OptionError, match=message):
        adjoint.attribute(random_model("post_norm"), DecompXConfig(bias=rule))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(head=False), "head=False.*reference engine"),
        (dict(head=False, aggregation="rollout"), "reference engine"),
        (dict(stages=("attention",)), "stages=.*'attention'.*reference engine"),
    ],
)
def test_adjoint_refuses_what_has_no_logit(options, message):
    with pytest.raises(OptionError, match=message):
        adjoint.attribute(random_model("post_norm"), DecompXConfig(bias="none", **options))


def test_adjoint_refuses_bad_arguments():
    model, config = random_model("post_norm"), DecompXConfig(bias="none")
    for shape in ((3,), (2, 4), (0, 3), (1, 2, 3)):
        with pytest.raises(InputError, match=r"directions has the shape .*give \[m, 3\]"):
            adjoint.attribute(model, config, terms=Terms.of_classes(2, 3, torch.zeros(shape)))
    with pytest.raises(InputError, match="NaN or infinity"):
        adjoint.attribute(model, config, terms=Terms.of_classes(2, 3, torch.tensor([[0.0, float("nan"), 0]])))
