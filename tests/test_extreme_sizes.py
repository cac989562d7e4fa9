"""Shares, norms and scores where numbers are so small or large that their squares or sums leave float32.

Expected values are computed in float64, where nothing is lost; tolerances are some roundings of float32 (6e-8).
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import KINDS, random_model

from decompx_fast.config import LINEAR_BIAS_RULES, DecompXConfig
from decompx_fast.engines import bias, reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.errors import NumericalError
from decompx_fast.ops import bias_split_, layernorm_, vector_shares
from decompx_fast.ops.shares import bias_shares

ROUNDING = 1e-5
SIZES = (1e-37, 1e-30, 1e-22, 1e-10, 1.0, 1e10, 1e25, 1e37)


def vectors(seed: int = 0, sources: int = 6, d: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors ``[1, 2, k, d]`` of very different sizes, one of them zero, and a bias ``[d]``; in float64."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(1, 2, sources, d, generator=generator, dtype=torch.float64)
    u[0, 1, 2] = 0
    return u, torch.randn(d, generator=generator, dtype=torch.float64)


def expected_shares(u: torch.Tensor, vector: torch.Tensor, rule: str) -> torch.Tensor:
    """By the definition, in float64."""
    dots, norms = (u * vector).sum(-1), u.square().sum(-1).sqrt()
    weights = {"absdot": dots.abs(), "dot": dots, "norm": norms, "abssim": (dots.abs() / norms).nan_to_num(0.0)}[rule]
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("rule", ["absdot", "abssim", "norm"])
@pytest.mark.parametrize("size", SIZES)
def test_shares_do_not_depend_on_the_size_of_the_vectors(size, rule):
    u, vector = vectors()
    vector = vector * 1e-3  # dots of the largest vectors stay within the range, their sum may not
    single = (u * size).float()
    expected = expected_shares(single.double(), vector, rule)
    for found in (vector_shares(single, vector.float(), rule=rule), bias.bias_shares(single, vector.float(), rule)):
        assert (found.double() - expected).abs().max() < (1e-3 if size == 1e-37 else ROUNDING)


def test_similarity_weighs_vectors_of_all_sizes_alike():
    u, vector = vectors()
    sizes = torch.tensor([1e-37, 1e-25, 1e-19, 1.0, 1e19, 1e30], dtype=torch.float64)
    single = (u * sizes[:, None]).float()
    expected = expected_shares(single.double(), vector, "abssim")
    assert (expected[0, 0] > 0.005).all()
    for found in (
        vector_shares(single, vector.float(), rule="abssim"),
        bias.bias_shares(single, vector.float(), "abssim"),
    ):
        assert (found.double() - expected).abs().max() < 1e-4  # the first vector has few digits left
    split = bias_split_(single.clone(), vector.float() * 1e36, rule="abssim").double() - single.double()
    given = split[..., 0] / (vector[0].float().double() * 1e36)
    assert (given - expected)[..., :3].abs().max() < 1e-4


def test_the_sum_of_dots_may_leave_the_range():
    dots = torch.tensor([3e38, 1e38, 3e38, -3e38])
    expected = torch.tensor([0.3, 0.1, 0.3, 0.3])
    assert (bias_shares(dots) - expected).abs().max() < ROUNDING
    u = torch.zeros(1, 1, 4, 2)
    u[..., 0] = dots
    vector = torch.tensor([1.0, 1.0])
    assert (vector_shares(u, vector) - expected).abs().max() < ROUNDING
    assert (vector_shares(u, vector, rule="norm") - expected).abs().max() < ROUNDING
    assert (bias.bias_shares(u, vector, "absdot") - expected).abs().max() < ROUNDING


@pytest.mark.parametrize("rule", ["abssim", "norm"])
def test_a_norm_shares_its_bias_among_tiny_vectors(rule):
    u, vector = vectors()
    single = (u * 1e-25).float()
    scale = torch.ones(1, 2)
    found = layernorm_(single.clone(), scale, None, vector.float(), rule=rule, backend="torch")
    centred = single.double() - single.double().mean(-1, keepdim=True)
    expected = centred + expected_shares(centred, vector, rule).unsqueeze(-1) * vector
    assert (found.double() - expected).abs().max() < ROUNDING


@pytest.mark.parametrize("attribute", [forward.attribute, reference.attribute])
@pytest.mark.parametrize("rule", ["abssim", "norm", "absdot"])
def test_scores_where_attention_is_tiny(attribute, rule):
    """One head whose logits differ by 60: weights of 1e-26, whose vectors have no squares in float32."""
    exact = random_model("post_norm", n=5, layers=2)
    single = random_model("post_norm", n=5, layers=2, dtype=torch.float32)
    for model in (exact, single):
        model.embedding[:, 2] = 0
        model.embedding[:, 2, 0] = 8
        for layer in model.specs:
            layer[0].ops[0].query.bias.copy_(torch.ones_like(layer[0].ops[0].query.bias) * 4)
        model.__post_init__()
    config = DecompXConfig(bias=rule)
    expected = reference.attribute(exact, config).scores
    found = attribute(single, config).scores
    assert (found.double() - expected).abs().max() < 1e-3 * expected.abs().max()


@pytest.mark.parametrize("size", [1e-25, 1e-21, 1e21, 1e30])
def test_norms_of_rows_and_stages_are_right_at_any_size(size):
    """A last norm of this gain: the norms of what is left are that large, in float32 too."""
    exact, single = (random_model("post_norm", dtype=dtype) for dtype in (torch.float64, torch.float32))
    for model in (exact, single):
        norm = model.specs[-1][-1].post_norm
        model.specs = (
            *model.specs[:-1],
            (
                model.specs[-1][0],
                dataclasses.replace(
                    model.specs[-1][1],
                    post_norm=dataclasses.replace(norm, weight=norm.weight * size, bias=norm.bias * size),
                ),
            ),
        )
        model.__post_init__()
    config = DecompXConfig(head=False, stages=("encoder",), bias="cls")
    expected = reference.attribute(exact, config)
    for engine in (forward, reference):
        found = engine.attribute(single, config)
        gap = (found.scores.double() - expected.scores).abs().max()
        assert gap < 1e-4 * expected.scores.abs().max()
        stage = expected.stages["encoder.1"]
        assert (found.stages["encoder.1"].double() - stage).abs().max() < 1e-4 * stage.abs().max()


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_engines_agree_or_raise_on_extreme_models(data):
    """Tiny and huge gains of every part, saturated attention, rows without variance: the same numbers, or an error."""
    kind, seed = data.draw(st.sampled_from(list(KINDS))), data.draw(st.integers(0, 2**16))
    n = data.draw(st.integers(1, 6))
    model = random_model(kind, seed, b=1, n=n, layers=data.draw(st.sampled_from([1, 2])))
    gains = st.sampled_from([1e-30, 1e-12, 1e-3, 1.0, 1.0, 1.0, 1e3, 1e12, 1e30])
    for layer in model.specs:
        for sublayer in layer:
            for op in sublayer.ops:
                maps = [op.query, op.value, op.out] if hasattr(op, "query") else [op.into, op.out]
                for part in maps:
                    part.weight.mul_(data.draw(gains))
    if data.draw(st.booleans()):
        model.embedding[:, data.draw(st.integers(0, n - 1))] = 1.0  # no variance
    model.__post_init__()
    if not torch.isfinite(model.logits).all():
        return
    rule = data.draw(st.sampled_from([*LINEAR_BIAS_RULES, "absdot", "abssim", "norm"]))
    config = DecompXConfig(bias=rule, variant=data.draw(st.sampled_from(["paper", "released"])))
    engines = [reference, forward] + ([adjoint] if rule in LINEAR_BIAS_RULES else [])
    found = []
    for engine in engines:
        try:
            found.append(engine.attribute(model, config))
        except NumericalError:
            continue
    size = max([1.0, *(result.scores.abs().max().item() for result in found)])
    for result in found[1:]:
        assert torch.isfinite(result.scores).all()
        assert (result.scores - found[0].scores).abs().max() <= 1e-6 * size
