"""A head that is applied to each token and whose outputs are averaged, as EuroBERT's are by default."""

from __future__ import annotations

import naive
import pytest
import torch
from models import randomized
from refusals import refuses
from torch import nn
from transformers import EuroBertConfig, EuroBertForSequenceClassification

from decompx_fast import DecompX, DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.terms import Terms
from decompx_fast.errors import UnsupportedModelError
from decompx_fast.evaluation.method import Problem, get_method
from decompx_fast.evaluation.methods import relevance
from decompx_fast.linearize.linearization import linearize, specification
from decompx_fast.request.encoded import Encoded

#: Its norms compute in float32 whatever the dtype.
TOLERANCE = 1e-5

B, N = 2, 5


def model_of(labels: int = 3, **options) -> nn.Module:
    config = EuroBertConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=20,
        num_labels=labels,
        pad_token_id=1,
        **options,
    )
    return randomized(EuroBertForSequenceClassification(config).double())


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(5, 40, (B, N), generator=torch.Generator().manual_seed(0))}


#: Some outputs, the mean of all among them, and a difference of two; and more outputs than the head is wide.
OUTPUTS = torch.tensor([[2, 0, -1], [1, 1, 2]])
COLUMNS = torch.tensor([[[1.0, -1.0, 0.0], [0.0, 0.5, 2.0]]]).double().expand(B, -1, -1)


@pytest.mark.parametrize("labels", [3, 21])
@pytest.mark.parametrize("columns", [None, COLUMNS], ids=["terms", "columns"])
@pytest.mark.parametrize("rule", ["absdot", "norm", "equal", "bias_token", "none"])
def test_some_of_the_outputs(labels, columns, rule):
    model, given = model_of(labels), inputs()
    terms = Terms(None, OUTPUTS, columns)
    with torch.no_grad():
        own = model(**given).logits
    own = torch.cat((own, own.mean(-1, keepdim=True)), dim=-1).gather(1, OUTPUTS % (labels + 1))
    own = terms.combine(own)
    config = DecompXConfig(bias=rule)
    truth = reference.attribute(linearize(model, given), config, terms=terms)
    assert (terms.combine(linearize(model, given).values(terms)) - own).abs().max() <= 1e-12 * own.abs().max()
    if rule != "none":
        total = truth.scores.sum(1) + (0 if truth.bias_token is None else truth.bias_token)
        assert (total - own).abs().max() <= TOLERANCE * truth.scores.abs().sum(1).max()
    for engine in (forward, adjoint) if rule in ("equal", "bias_token", "none") else (forward,):
        found = engine.attribute(linearize(model, given, record=True), config, terms=terms)
        assert (found.scores - truth.scores).abs().max() <= 1e-10 * truth.scores.abs().max()
        if rule == "bias_token":
            assert (found.bias_token - truth.bias_token).abs().max() <= 1e-10 * truth.bias_token.abs().max()


@pytest.mark.parametrize("split", ["absdot", "equal"])
def test_collected_biases_are_split_at_the_very_end(split):
    """By what the sources add to the averaged outputs, not at each token."""
    model, config = model_of(), DecompXConfig(bias="bias_token", bias_token_split=split)
    one = {"input_ids": inputs()["input_ids"][:1]}
    expected, _ = naive.decompose(linearize(model, one), config)
    for engine in (reference, forward, adjoint):
        found = engine.attribute(linearize(model, one), config).scores[0].numpy()
        assert abs(found - expected).max() <= 1e-10 * abs(expected).max()


def test_the_stage_of_the_head_is_told_of_each_token():
    config = DecompXConfig(bias="none", stages=("pooler",), stage_output="vector")
    for engine in (reference, forward):
        result = engine.attribute(linearize(model_of(), inputs()), config)
        assert result.stages["pooler.1"].shape == (B, N, N, 16)


def test_a_text_is_explained_by_default():
    config = EuroBertConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=8)
    assert config.classifier_pooling == "late"
    model = model_of()
    explanation = DecompX(model)(inputs()["input_ids"][0].tolist(), bias="absdot")
    with torch.no_grad():
        own = model(input_ids=inputs()["input_ids"][:1]).logits[0]
    assert torch.allclose(explanation.scores.sum(0).double(), own, atol=1e-4 * own.abs().max().item())
    assert explanation.engine == "forward" and explanation.completeness_error < 1e-4


def test_another_pooling_and_a_changed_head_are_refused():
    model = model_of()
    model.dense.register_forward_hook(lambda _module, _args, output: output * 1.01)
    changed = linearize(model, inputs())
    refuses(reference.attribute, changed, DecompXConfig(), match=("the head",), error=UnsupportedModelError)
    model = model_of()
    model.classifier_pooling = "max"
    refuses(
        linearize, model, inputs(), match=("classifier_pooling='max'", "bos, mean, late"), error=UnsupportedModelError
    )


def test_relevance_is_the_mean_over_the_tokens():
    """Of another method, whose rules are linear in what is passed back."""
    model, ids, target = model_of(), inputs()["input_ids"][0].tolist(), 1
    encoded = Encoded({"input_ids": torch.tensor(ids)}, tuple(map(str, ids)), (None,) * N, (False,) * N, ())
    (found,) = get_method("attn-lrp").score(Problem(model, None, [encoded], [target]))
    linearization, spec = linearize(model, {"input_ids": torch.tensor([ids])}), specification(model)
    expected = torch.zeros(N, dtype=torch.float64)
    for position in range(N):
        x = linearization.embedding.clone().requires_grad_()
        state = relevance.forward(spec.layers, x, linearization.contexts)
        logits = relevance.head(spec.head, state[:, position])
        expected += relevance.gradient_times_input(logits[:, target], x)[0] / N
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)
