"""Every family and every way a model can be loaded: explained as it is, and left as it was."""

from __future__ import annotations

import copy
import threading

import models
import pytest
import torch
import transformers
from models import classifier, logits_of, token_ids, unchanged
from torch import nn
from torch.nn.utils import parametrize

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.errors import UnsupportedModelError
from decompx_fast.linearize import linearization as registry
from decompx_fast.linearize import model_run
from decompx_fast.linearize.architectures import supported_architectures
from decompx_fast.linearize.linearization import input_limits, linearize

#: Rounding of a few layers in float64, and room: a wrong weight shows as 1e-3 at the least.
EXACT = 1e-10

PAPER = DecompXConfig()


def explained(model: nn.Module, ids: torch.Tensor | None = None, config: DecompXConfig = PAPER, **inputs):
    """Scores ``[b, k, c]`` of the reference engine; the model must be left as it was."""
    ids = token_ids() if ids is None else ids
    with unchanged(model):
        linearization = linearize(model, {"input_ids": ids, **inputs})
        return reference.attribute(linearization, config).scores


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = EXACT) -> None:
    assert found.shape == expected.shape
    assert (found.double() - expected.double()).abs().max() < tolerance * expected.abs().max()


# Families.

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


# The model is used as it was loaded.


class LowRank(nn.Module):
    """A linear layer with a low-rank change, as adapters make it."""

    def __init__(self, base_layer: nn.Linear, rank: int = 2, scale: float = 0.5) -> None:
        super().__init__()
        self.base_layer, self.scale = base_layer, scale
        generator = torch.Generator().manual_seed(1)
        shape_a, shape_b = (rank, base_layer.in_features), (base_layer.out_features, rank)
        self.a = nn.Parameter(torch.randn(shape_a, generator=generator).to(base_layer.weight))
        self.b = nn.Parameter(torch.randn(shape_b, generator=generator).to(base_layer.weight))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.base_layer(x) + self.scale * self.dropout(x) @ self.a.T @ self.b.T

    def merged(self) -> nn.Linear:
        linear = copy.deepcopy(self.base_layer)
        with torch.no_grad():
            linear.weight += self.scale * self.b @ self.a
        return linear


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


def attention_of(model: nn.Module, layer: int = 0) -> nn.Module:
    return model.bert.encoder.layer[layer].attention


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


# Compiled models.


class CountingBackend:
    """Runs the graph as it is, and counts how often."""

    def __init__(self) -> None:
        self.compiled = self.ran = 0

    def __call__(self, graph, example_inputs):
        self.compiled += 1

        def run(*inputs):
            self.ran += 1
            return graph(*inputs)

        return run


def compile_whole(model, backend):
    return torch.compile(model, backend=backend)


def compile_in_place(model, backend):
    model.compile(backend=backend)
    return model


def compile_a_part_in_place(model, backend):
    model.bert.encoder.layer[0].compile(backend=backend)
    return model


def compile_a_part(model, backend):
    model.bert.encoder.layer[1] = torch.compile(model.bert.encoder.layer[1], backend=backend)
    return model


def compile_a_method(model, backend):
    layer = model.bert.encoder.layer[1].intermediate
    layer.forward = torch.compile(layer.forward, backend=backend)
    return model


COMPILE = [compile_whole, compile_in_place, compile_a_part_in_place, compile_a_part, compile_a_method]


@pytest.mark.parametrize("how", COMPILE)
def test_compiled_code_is_not_run(how):
    backend = CountingBackend()
    model = how(classifier(), backend)
    assert torch.equal(explained(model), explained(classifier()))
    assert (backend.compiled, backend.ran) == (0, 0)


def test_code_that_is_compiled_already_is_not_run_and_stays():
    backend = CountingBackend()
    model, ids = classifier(), token_ids()
    model.bert.encoder.layer[0].intermediate.compile(backend=backend)
    expected = logits_of(model, ids)
    assert (backend.compiled, backend.ran) == (1, 1)
    assert torch.equal(explained(model), explained(classifier()))
    assert (backend.compiled, backend.ran) == (1, 1)
    assert torch.equal(logits_of(model, ids), expected)
    assert (backend.compiled, backend.ran) == (1, 2)


def test_overlapping_threads_leave_the_compilers_stance():
    model = classifier()
    before = models._stance()
    inside, leave = threading.Event(), threading.Event()

    def stay():
        with model_run.undisturbed(model):
            inside.set()
            leave.wait(10)

    with model_run.undisturbed(model):
        thread = threading.Thread(target=stay)
        thread.start()
        assert inside.wait(10)
    assert models._stance() == "force_eager", "the other thread is still inside"
    leave.set()
    thread.join()
    assert models._stance() == before == "default"


# Settings of the caller's.


def test_autocast_is_off_inside():
    model = classifier(dtype=torch.float32)
    expected = explained(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linearization = linearize(model, {"input_ids": token_ids()})
    assert torch.equal(reference.attribute(linearization, PAPER).scores, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_default_dtype_does_not_matter(dtype):
    model = classifier(dtype=torch.float32)
    attention_of(model).self.query = LowRank(attention_of(model).self.query)
    expected = explained(model)
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(explained(model), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_default_device_does_not_matter():
    model = classifier()
    attention_of(model).self.query = LowRank(attention_of(model).self.query)
    ids = token_ids()
    expected = explained(model)
    with torch.device("meta"):
        linearization = linearize(model, {"input_ids": ids})
    assert torch.equal(reference.attribute(linearization, PAPER).scores, expected)


# Nothing is left behind by what goes wrong.


class Stop(Exception):
    pass


def raises(error):
    def fail(*args, **kwargs):
        raise error

    return fail


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt, UnsupportedModelError])
@pytest.mark.parametrize("where", ["model", "describe", "check", "engine"])
def test_an_error_leaves_nothing_behind(monkeypatch, where, error):
    model = classifier(hidden_dropout_prob=0.3)
    for n, module in enumerate(model.modules()):
        module.training = n % 2 == 0
    if where == "model":
        model.bert.encoder.layer[1].output.dense.forward = raises(error)
    elif where == "describe":
        monkeypatch.setattr("decompx_fast.linearize.families.parts.activation_name", raises(error))
    elif where == "check":
        monkeypatch.setattr(registry.HuggingFaceLinearization, "_check", raises(error))
    else:
        monkeypatch.setattr(reference, "_attention", raises(error))
    with pytest.raises(error):
        explained(model)


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
