"""Llama-like decoders and mixtures of experts: random odd configurations in float64, all engines, NumPy beside them."""

from __future__ import annotations

import llama_like
import naive
import numpy as np
import pytest
import torch
from exactness import ROUNDING, changed_parts_are_refused, engines_agree, weights_are_views, with_rules
from llama_like import CASES, IN_FLOAT32, decoder, inputs
from torch import nn

from decompx_fast import DecompXConfig, UnsupportedModelError
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.linearize.linearization import linearize


def rounding_of(case: str) -> float:
    return 1e-5 if case in IN_FLOAT32 else ROUNDING


@pytest.mark.parametrize(("case", "rule"), with_rules(CASES))
def test_engines_agree(case, rule):
    engines_agree(decoder(case), inputs(), rule, record=[False])


@pytest.mark.parametrize("rule", ["absdot", "bias_token"])
@pytest.mark.parametrize("case", CASES)
def test_a_second_decomposition_agrees(case, rule):
    linearization, config = linearize(decoder(case), inputs(1, 5)), DecompXConfig(bias=rule)
    expected, _ = naive.decompose(linearization, config)
    tokens = expected[:-1] if rule == "bias_token" else expected
    scores = reference.attribute(linearization, config).scores[0].numpy()
    assert np.abs(tokens - scores).max() <= ROUNDING * np.abs(tokens).max()


@pytest.mark.parametrize("case", CASES)
def test_scores_sum_to_the_logits_at_every_length(case):
    model = decoder(case, seed=1)
    for tokens in (1, 2, 13):
        linearization = linearize(model, inputs(1, tokens))
        result = forward.attribute(linearization, DecompXConfig())
        assert result.gap.max().item() <= rounding_of(case) * linearization.logits.abs().max().item()
        assert linearization.max_gap <= rounding_of(case)


@pytest.mark.parametrize("case", CASES)
def test_all_layers_are_recorded_in_float32(case):
    linearization = linearize(decoder(case, dtype=torch.float32), inputs(), record=True)
    assert linearization.recorded_layers == tuple(range(linearization.num_layers))
    found = adjoint.attribute(linearization, DecompXConfig(bias="bias_token"))
    assert found.gap.max().item() <= 1e-4 * linearization.logits.abs().max().item()


@pytest.mark.parametrize("case", CASES)
def test_weights_are_not_copied(case):
    weights_are_views(decoder(case), inputs())


@pytest.mark.parametrize("case", CASES)
def test_a_replaced_part_is_refused(case):
    model = decoder(case)
    kinds = ("Linear", "Experts", "Attention", "MLP", "Norm")
    inner = [n for n, m in model.named_modules() if "layers" in n and type(m).__name__.endswith(kinds)]
    changed_parts_are_refused(model, inputs(), inner[:: max(len(inner) // 5, 1)], _changed)


def _changed(_module: nn.Module, _args, output):
    first = output[0] if isinstance(output, tuple) else output  # changed in direction too, which no norm undoes
    first = first * torch.linspace(0.9, 1.1, first.shape[-1], dtype=first.dtype)
    return (first, *output[1:]) if isinstance(output, tuple) else first


@pytest.mark.parametrize("case", ["llama_biases", "olmo", "gemma2", "qwen2_moe", "gpt_oss"])
@pytest.mark.parametrize(
    "options",
    [
        {"gate": "half"},
        {"gate": "half", "activation": "linear"},
        {"activation": "linear", "bias": "norm"},
        {"bias": "abssim"},
        {"variant": "released"},
        {"variant": "released", "bias": "cls"},
        {"ln2": False, "bias": "bias_token"},
    ],
    ids=str,
)
def test_options_agree_between_engines_and_with_numpy(case, options):
    linearization, config = linearize(decoder(case), inputs(1, 5)), DecompXConfig(**options)
    expected, _ = naive.decompose(linearization, config)
    expected = torch.from_numpy(expected)
    engines = [reference, forward] + [adjoint] * (config.bias in ("cls", "bias_token"))
    for engine in engines:
        found = engine.attribute(linearization, config).scores[0]
        assert (found - expected[: len(found)]).abs().max() <= ROUNDING * expected.abs().max()


@pytest.mark.parametrize("workspace", [1, None])
@pytest.mark.parametrize("case", ["gemma2", "qwen2_moe", "gpt_oss"])
def test_groups_positions_and_small_blocks_agree(case, workspace):
    linearization = linearize(decoder(case, seed=2), inputs(2, 9))
    sources = torch.tensor([[0, 0, 1, 1, 1, 2, 3, 3, 3]] * 2)
    config = DecompXConfig()
    expected = reference.attribute(linearization, config, sources=sources)
    found = forward.attribute(linearization, config, sources=sources, positions=[2, -1], workspace_bytes=workspace)
    assert (found.scores - expected.scores).abs().max() <= ROUNDING * expected.scores.abs().max()


@pytest.mark.parametrize("case", ["llama", "gemma2", "qwen3_moe", "gpt_oss"])
def test_models_in_bfloat16_are_explained_to_their_precision(case):
    """Where a router is nearly undecided, float32 would choose other experts than the model did: its choice is kept."""
    for seed in range(3):
        linearization = linearize(decoder(case, seed=seed, dtype=torch.bfloat16), inputs())
        assert linearization.embedding.dtype == torch.float32
        result = forward.attribute(linearization, DecompXConfig())
        assert linearization.max_gap < 0.05  # 8 bits, a few dozen roundings
        assert result.gap.max() <= 0.05 * result.scores.abs().sum(1).max()


def test_clipped_values_are_refused():
    with pytest.raises(UnsupportedModelError, match="clip_qkv=0.5"):
        linearize(decoder("olmo", clip_qkv=0.5), inputs())


def test_the_architectures_are_supported():
    from decompx_fast.linearize.architectures import supported_architectures

    names = {f"{name}ForSequenceClassification" for name, _ in llama_like.CASES.values()}
    assert names <= set(supported_architectures())
