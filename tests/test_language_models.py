"""Decoders with a head at each position: language models, token classification, question answering, and none."""

from __future__ import annotations

import naive
import numpy as np
import pytest
import torch
from llama_like import COMMON, IN_FLOAT32, LANGUAGE_MODELS, decoder, inputs

from decompx_fast import DecompXConfig, UnsupportedModelError
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.terms import Terms
from decompx_fast.errors import InputError
from decompx_fast.linearize.linearization import linearize

ROUNDING = 1e-10

#: Two outputs at the last position, and one before; and what the second column of it all is.
TERMS = Terms(
    torch.tensor([[6, 6, 3], [6, 5, 0]]),
    torch.tensor([[7, 31, 49], [0, 12, 12]]),
    torch.tensor([[[1.0, -1.0, 0.0], [0.0, 0.5, 2.0]]] * 2, dtype=torch.float64),
)


@pytest.mark.parametrize("case", LANGUAGE_MODELS)
def test_the_head_gives_what_the_model_gives(case):
    model, given = decoder(case, "CausalLM"), inputs()
    linearization = linearize(model, given)
    with torch.no_grad():
        logits = model(**given).logits
    rows = torch.arange(7).expand(2, -1)
    found = torch.cat([outputs for _, outputs in linearization.outputs(rows)], dim=1)
    assert torch.allclose(found, logits, rtol=0, atol=1e-12 * logits.abs().max())


@pytest.mark.parametrize("case", ["llama", "qwen2", "phi3", "gpt_oss", "cohere", "granite", "gemma2"])
def test_numbers_of_other_families_in_a_configuration_are_no_part_of_the_head(case):
    model, given = decoder(case, "CausalLM"), inputs()
    with torch.no_grad():
        logits = model(**given).logits
    for name in ("logit_scale", "logits_scaling", "final_logit_softcapping"):
        if not hasattr(model.config, name):
            setattr(model.config, name, 0.7)
    with torch.no_grad():
        assert torch.equal(model(**given).logits, logits)
    rows = torch.arange(7).expand(2, -1)
    found = torch.cat([outputs for _, outputs in linearize(model, given).outputs(rows)], dim=1)
    assert torch.allclose(found, logits, rtol=0, atol=1e-12 * logits.abs().max())


@pytest.mark.parametrize("rule", ["absdot", "norm", "bias_token", "equal"])
@pytest.mark.parametrize("case", LANGUAGE_MODELS)
def test_engines_agree_on_terms_and_columns_sum_to_their_values(case, rule):
    linearization, config = linearize(decoder(case, "CausalLM"), inputs()), DecompXConfig(bias=rule)
    values = TERMS.combine(linearization.values(TERMS))
    expected = reference.attribute(linearization, config, terms=TERMS)
    size = expected.scores.abs().max()
    for engine in (reference, forward) if rule in ("absdot", "norm") else (reference, forward, adjoint):
        found = engine.attribute(linearization, config, terms=TERMS)
        assert (found.scores - expected.scores).abs().max() <= ROUNDING * size
        total = found.scores.sum(1) if found.bias_token is None else found.scores.sum(1) + found.bias_token
        assert (total - values).abs().max() <= (1e-5 if case in IN_FLOAT32 else ROUNDING) * size


@pytest.mark.parametrize("case", LANGUAGE_MODELS)
def test_a_second_decomposition_agrees_at_a_position(case):
    """Of all outputs at one position, which is what a head of one row gives."""
    linearization = linearize(decoder(case, "CausalLM"), inputs(1, 5))
    every = Terms(torch.full((1, 50), 3), torch.arange(50)[None])
    *_, last = linearization.layers()
    head = linearization.head(last.output, every)
    x = naive.Naive(DecompXConfig(), list(range(5)))
    state = x.start(linearization.embedding[0].numpy())
    for layer in linearization.layers():
        state = x.layer(state, layer, layer.index == 0)
    u = state[3]
    for step in head.steps:
        u = u if step.weight is None else naive.add_bias(u @ step.weight.numpy(), None, "absdot")
        if step.activation is not None:
            zeta = step.preactivation[0, 0].numpy()
            u = u * naive.slope_and_intercept(step.activation, zeta, "zero_origin")[0]
        u = u if step.norm is None else u / step.norm.std[0, 0].item()
    scores = reference.attribute(linearization, DecompXConfig(), terms=every).scores[0].numpy()
    assert np.abs(scores - u).max() <= ROUNDING * np.abs(u).max()


@pytest.mark.parametrize("task", ["TokenClassification", "QuestionAnswering"])
@pytest.mark.parametrize("case", ["llama", "qwen3", "smollm3", "mixtral", "qwen2_moe"])
def test_other_heads_at_each_position(case, task):
    model, given, config = decoder(case, task), inputs(), DecompXConfig()
    linearization = linearize(model, given)
    with torch.no_grad():
        output = model(**given)
    ends = None if task == "TokenClassification" else (output.start_logits, output.end_logits)
    table = output.logits if ends is None else torch.stack(ends, dim=-1)
    terms = Terms(torch.tensor([[2, 6, 6]] * 2), torch.tensor([[1, 0, 1]] * 2))
    values = torch.stack([table[:, 2, 1], table[:, 6, 0], table[:, 6, 1]], dim=1)
    for engine in (reference, forward):
        found = engine.attribute(linearization, config, terms=terms)
        assert (found.scores.sum(1) - values).abs().max() <= ROUNDING * found.scores.abs().max()


def test_the_layers_alone_are_read_where_the_caller_says():
    import transformers

    model = transformers.LlamaModel(transformers.LlamaConfig(**COMMON)).double().eval()
    linearization = linearize(model, inputs(), read=-1)
    with torch.no_grad():
        state = model(**inputs()).last_hidden_state[:, -1]
    result = forward.attribute(linearization, DecompXConfig())
    assert (result.scores.sum(1) - state).abs().max() <= 1e-5 * state.abs().max()


def test_a_capped_head_refuses_the_mean_of_all_outputs():
    linearization = linearize(decoder("gemma2", "CausalLM"), inputs())
    with pytest.raises(InputError, match="ends with an activation"):
        linearization.values(Terms(torch.tensor([[1], [1]]), torch.tensor([[-1], [-1]])))


def test_a_hook_on_the_whole_model_is_refused():
    model = decoder("llama", "CausalLM")
    model.register_forward_hook(lambda _m, _a, output: output)
    with pytest.raises(UnsupportedModelError, match="hooks"):
        linearize(model, inputs())


@pytest.mark.parametrize("case", ["llama", "granite", "qwen2_moe"])
def test_the_vocabulary_is_not_copied(case):
    model = decoder(case, "CausalLM")
    linearization = linearize(model, inputs())
    *_, last = linearization.layers()
    (whole,) = [step.whole for step in linearization.head(last.output, TERMS).steps if step.whole is not None]
    assert whole.map.weight.untyped_storage().data_ptr() == model.lm_head.weight.untyped_storage().data_ptr()
