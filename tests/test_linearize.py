"""Every family of classifiers that read text: explained as it is, and left as it was."""

from __future__ import annotations

import models
import pytest
import torch
import transformers
from linearized import PAPER, assert_close, explained
from models import classifier, logits_of, token_ids
from torch import nn

from decompx_fast.engines import reference
from decompx_fast.errors import UnsupportedModelError
from decompx_fast.linearize.architectures import supported_architectures
from decompx_fast.linearize.linearization import input_limits, linearize

HEADS = {
    "two classes": {},
    "three classes": {"labels": 3},
    "regression": {"labels": 1, "problem_type": "regression"},
    "many labels": {"labels": 4, "problem_type": "multi_label_classification"},
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", models.FAMILIES)
def test_scores_add_up_to_the_models_logits(family, head):
    model, ids = classifier(family, **HEADS[head]), token_ids(b=2)
    linearization = linearize(model, {"input_ids": ids})
    scores = reference.attribute(linearization, PAPER).scores
    assert scores.shape == (2, 7, model.config.num_labels)
    assert_close(scores.sum(1), logits_of(model, ids))
    assert linearization.max_gap < 1e-13


def test_every_family_here_is_supported():
    """That every supported one is tested, ``test_families`` sees to."""
    assert {model_class.__name__ for _, model_class in models.FAMILIES.values()} <= set(supported_architectures())


def test_electra_may_have_narrow_embeddings():
    model, ids = classifier("electra", embedding_size=10), token_ids()
    assert_close(explained(model).sum(1), logits_of(model, ids))


ACTIVATIONS = "gelu gelu_new gelu_pytorch_tanh gelu_fast gelu_accurate gelu_python quick_gelu relu silu swish tanh"


@pytest.mark.parametrize("activation", ACTIVATIONS.split())
@pytest.mark.parametrize("family", ["bert", "electra"])  # Electra's head has it too
def test_activations_are_recognised(family, activation):
    model = classifier(family, hidden_act=activation)
    assert_close(explained(model).sum(1), logits_of(model, token_ids()))


def test_an_activation_may_be_a_function_or_a_torch_module():
    expected = explained(classifier())
    for function in (nn.functional.gelu, nn.GELU()):
        model = classifier()
        for layer in model.bert.encoder.layer:
            del layer.intermediate.intermediate_act_fn
            layer.intermediate.intermediate_act_fn = function
        assert_close(explained(model), expected)


def test_a_causal_bert_attends_backwards_only():
    model, ids = classifier(is_decoder=True), token_ids()
    for layer in linearize(model, {"input_ids": ids}).layers():
        weights = layer.sublayers[0].ops[0].pattern.weights()
        assert weights.triu(1).abs().max() == 0 and weights.tril(-1).abs().max() > 0
    scores = explained(model)
    assert_close(scores.sum(1), logits_of(model, ids))
    assert scores[:, 1:].abs().max() == 0, "the head reads position 0, which attends itself only"


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_token_types_and_positions_are_passed_on(family):
    model, ids = classifier(family), token_ids()
    types = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    positions = torch.arange(7).flip(0)[None]
    scores = explained(model, token_type_ids=types, position_ids=positions)
    with torch.no_grad():
        logits = model(input_ids=ids, token_type_ids=types, position_ids=positions).logits
    assert_close(scores.sum(1), logits)
    assert (logits - logits_of(model, ids)).abs().max() > 1e-3


def test_limits_are_those_of_the_embeddings():
    limits = input_limits(classifier(positions=40, vocab=200))
    assert limits.positions == 40
    assert limits.sizes == {"input_ids": 200, "token_type_ids": 2, "position_ids": 40}
    for family in models.OFFSET_POSITIONS:  # position numbers start at padding index + 1
        model = classifier(family, positions=40)
        assert input_limits(model).positions == 40
        logits_of(model, token_ids(40))
        with pytest.raises((IndexError, RuntimeError)):
            logits_of(model, token_ids(41))


def test_in_half_precision_a_state_that_was_larger_has_been_rounded_as_that():
    """As at the first token of language models: a layer takes away nearly all of a large state."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=1,
        num_key_value_heads=1,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        large = torch.randn(16)
        model.model.embed_tokens.weight[7] = 200 * large / large.norm()
        attention = model.model.layers[1].self_attn
        attention.v_proj.weight.copy_(torch.eye(16))
        attention.o_proj.weight.copy_(-199 / 4 * torch.eye(16))  # a normed state has the length 4
    ids = {"input_ids": torch.tensor([[7, 3, 5, 11]])}
    model.to(torch.bfloat16)
    linearization = linearize(model, ids)
    layers = list(linearization.layers())
    own = linearization._run.states[2].float()
    gap = (layers[1].output.float() - own).norm(dim=-1) / own.norm(dim=-1)
    assert gap[0, 0] > 0.1 and linearization.max_gap < 0.05
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.register_forward_hook(lambda _m, _a, y: 300 + y)
    with pytest.raises(UnsupportedModelError):
        list(linearize(model, ids).layers())
