"""However a model was loaded, and whatever was made of it since: explained as it is, and left as it was."""

from __future__ import annotations

import models
import pytest
import torch
from linearized import PAPER, LowRank, assert_close, attention_of, explained
from models import classifier, logits_of, token_ids
from torch import nn
from torch.nn.utils import parametrize

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.errors import UnsupportedModelError
from decompx_fast.linearize.linearization import linearize


class Scaled(nn.Module):
    def forward(self, weight):
        return 1.5 * weight


class Peft(nn.Module):
    """What an adapted model looks like from outside."""

    def __init__(self, base: nn.Module, config: object = None) -> None:
        super().__init__()
        self.base, self.active_peft_config = base, config

    def get_base_model(self) -> nn.Module:
        return self.base


def test_both_attention_implementations_give_the_same():
    model = classifier()
    found = []
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        found.append(explained(model))
    assert torch.equal(*found)


def test_train_mode_and_dropout_change_nothing():
    expected = explained(classifier())
    model = classifier(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5, classifier_dropout=0.5)
    assert torch.equal(explained(model.train()), expected)
    for n, module in enumerate(model.modules()):
        module.training = n % 3 == 0
    assert torch.equal(explained(model), expected)


#: Largest differences from float64: the embeddings themselves are rounded to 11 (float16) and 8 (bfloat16) bits.
DTYPES = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_weights_may_have_any_floating_dtype(family, dtype):
    model = classifier(family).to(dtype)
    scores = explained(model)
    assert scores.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_close(scores, explained(classifier(family)), DTYPES[dtype])
    if dtype.itemsize < 4:  # the same rounded weights, computed exactly
        assert_close(scores, explained(model.double()), DTYPES[dtype])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_any_autograd_mode_gives_ordinary_numbers(mode):
    model = classifier()
    expected = explained(model)
    with mode():
        assert torch.equal(explained(model), expected)
        inside = linearize(model, {"input_ids": token_ids()})
    assert torch.equal(reference.attribute(inside, PAPER).scores, expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_made_in_inference_mode():
    with torch.inference_mode():
        model = classifier()
    assert model.classifier.weight.is_inference()
    assert torch.equal(explained(model), explained(classifier()))


@pytest.mark.parametrize("requires_grad", [True, False])
def test_parameters_may_require_gradients_or_not(requires_grad):
    model = classifier().requires_grad_(requires_grad)
    scores = explained(model)
    assert not scores.requires_grad
    linearization = linearize(model, {"input_ids": token_ids()})
    assert not linearization.embedding.requires_grad and not linearization.logits.requires_grad


@pytest.mark.filterwarnings("ignore:.*_checkpointing:FutureWarning")
def test_gradient_checkpointing_changes_nothing():
    model = classifier().train()
    model.gradient_checkpointing_enable()
    assert torch.equal(explained(model), explained(classifier()))
    assert model.is_gradient_checkpointing


def test_outputs_asked_for_by_the_configuration_change_nothing():
    model = classifier()
    model.set_attn_implementation("eager")
    model.config.output_attentions = model.config.output_hidden_states = True
    assert torch.equal(explained(model), explained(classifier()))


def test_tied_weights_and_shared_layers():
    model = classifier()
    attention_of(model, 1).self.query.weight = attention_of(model, 0).self.key.weight
    assert_close(explained(model).sum(1), logits_of(model, token_ids()))
    model.bert.encoder.layer[1] = model.bert.encoder.layer[0]
    assert_close(explained(model).sum(1), logits_of(model, token_ids()))


def test_a_parametrised_linear_layer_and_norm():
    model, expected = classifier(), classifier()
    output, twin = (m.bert.encoder.layer[0].output for m in (model, expected))
    for module, plain in ((output.dense, twin.dense), (output.LayerNorm, twin.LayerNorm)):
        parametrize.register_parametrization(module, "weight", Scaled())
        with torch.no_grad():
            plain.weight *= 1.5
    assert_close(explained(model), explained(expected))


@pytest.mark.parametrize("training", [False, True])
def test_low_rank_adapters_are_read_as_the_linear_maps_they_are(training):
    model, merged = classifier(), classifier()
    for n, name in ((0, "query"), (1, "value")):
        adapted = LowRank(getattr(attention_of(model, n).self, name))
        setattr(attention_of(model, n).self, name, adapted)
        setattr(attention_of(merged, n).self, name, adapted.merged())
    model.classifier = LowRank(model.classifier)
    merged.classifier = model.classifier.merged()
    model.train(training)
    assert_close(explained(model), explained(merged))
    assert_close(explained(Peft(model)), explained(merged))


def test_learned_prompts_are_refused():
    prompts = type("PromptConfig", (), {"is_prompt_learning": True})()
    with pytest.raises(UnsupportedModelError, match="learned prompts.*LoRA"):
        explained(Peft(classifier(), prompts))


def test_pruned_heads():
    model, ids = classifier(), token_ids()
    block, kept = attention_of(model), torch.tensor([0, 1, 2, 3, 8, 9, 10, 11])  # heads 0 and 2 of 4
    for name in ("query", "key", "value"):
        linear = getattr(block.self, name)
        pruned = nn.Linear(16, 8).double()
        pruned.load_state_dict({"weight": linear.weight[kept], "bias": linear.bias[kept]})
        setattr(block.self, name, pruned)
    out = nn.Linear(8, 16).double()
    out.load_state_dict({"weight": block.output.dense.weight[:, kept], "bias": block.output.dense.bias})
    block.output.dense = out
    block.self.num_attention_heads, block.self.all_head_size = 2, 8
    assert (logits_of(model, ids) - logits_of(classifier(), ids)).abs().max() > 1e-3
    assert_close(explained(model).sum(1), logits_of(model, ids))


@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_model_without_biases(family):
    model = classifier(family)
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.LayerNorm)):
            module.bias = None
    scores = explained(model)
    assert_close(scores.sum(1), logits_of(model, token_ids()))
    assert torch.equal(explained(model, config=DecompXConfig(bias="none")), scores)


def test_norms_without_weights():
    model = classifier()
    for layer in model.bert.encoder.layer:
        layer.output.LayerNorm = nn.LayerNorm(16, elementwise_affine=False)
    assert_close(explained(model).sum(1), logits_of(model, token_ids()))


def test_data_parallel():
    assert torch.equal(explained(nn.DataParallel(classifier())), explained(classifier()))
