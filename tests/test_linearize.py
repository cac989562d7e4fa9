"""Every family and every way a model can be loaded: explained as it is, left as it was, or refused by name."""

from __future__ import annotations

import contextlib
import copy
import threading

import models
import pytest
import torch
from models import classifier, snapshot, token_ids
from torch import nn
from torch.nn.utils import parametrize

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.errors import NumericalError, UnsupportedModelError
from decompx_fast.linearize import registry
from decompx_fast.linearize.registry import input_limits, linearize, supported_architectures

#: Rounding of a few layers in float64, and room: a wrong weight shows as 1e-3 at the least.
EXACT = 1e-10

PAPER = DecompXConfig()


@contextlib.contextmanager
def unchanged(model: nn.Module):
    """Whatever happens inside, the model and torch's settings are as before."""
    before = snapshot(model)
    try:
        yield
    finally:
        after = snapshot(model)
        assert {name for name in before if before[name] != after.get(name)} == set()
        assert before.keys() == after.keys()


def logits_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids).logits


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


def test_every_supported_architecture_is_tested():
    assert sorted(model_class.__name__ for _, model_class in models.FAMILIES.values()) == supported_architectures()


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
        with registry.undisturbed(model):
            inside.set()
            leave.wait(10)

    with registry.undisturbed(model):
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


# What is not what it should be is refused.


def hook_a_layer(model):
    model.bert.encoder.layer[1].register_forward_hook(lambda module, args, output: 1.001 * output)
    return r"layer 1 .*differs by [0-9.]+e-0[34]"


def hook_a_linear(model):
    attention_of(model).output.dense.register_forward_hook(lambda module, args, output: 1.01 * output)
    return "layer 0 .*differs by"


def hook_the_input_of_a_layer(model):
    model.bert.encoder.layer[1].register_forward_pre_hook(lambda module, args: (args[0] + 0.01, *args[1:]))
    return "layer 1 .*differs by"


def hook_the_encoder(model):
    def change(module, args, output):
        output.last_hidden_state = output.last_hidden_state + 0.1
        return output

    model.bert.encoder.register_forward_hook(change)
    return "the head .*differs by"


def hook_the_model(model):
    def change(module, args, output):
        output.logits = 2 * output.logits
        return output

    model.register_forward_hook(change)
    return "the head .*differs by"


def patch_a_method(model):
    dense = attention_of(model).output.dense
    dense.forward = lambda x: nn.functional.linear(x, dense.weight)
    return "layer 0 .*differs by"


def patch_an_activation(model):
    layer = model.bert.encoder.layer[0].intermediate
    layer.intermediate_act_fn = nn.GELU("tanh")
    layer.intermediate_act_fn.approximate = "none"
    layer.intermediate_act_fn.forward = nn.functional.silu
    return "layer 0 .*differs by"


def another_forward(model):
    class Tempered(type(model)):
        def forward(self, **inputs):
            output = super().forward(**inputs)
            output.logits = output.logits / 1.3
            return output

    model.__class__ = Tempered
    return "the head .*differs by"


def return_no_logits(model):
    class Bare(type(model)):
        def forward(self, **inputs):
            return super().forward(**inputs).logits.argmax(-1)

    model.__class__ = Bare
    return r"gave no logits of the shape \[b, c\], but tensor"


def skip_a_layer(model):
    model.bert.encoder.layer[1].forward = lambda hidden_states, *args, **kwargs: hidden_states
    return "layer 1 .*differs by"


def run_fewer_layers(model):
    layers = model.bert.encoder.layer
    model.bert.encoder.forward = type(model.bert.encoder).forward.__get__(_Fewer(layers, model.config))
    return "has 2 layers, but 1 were run"


class _Fewer:
    def __init__(self, layers, config):
        self.layer, self.config = layers[:1], config


CHANGES = [
    hook_a_layer,
    hook_a_linear,
    hook_the_input_of_a_layer,
    hook_the_encoder,
    hook_the_model,
    patch_a_method,
    patch_an_activation,
    another_forward,
    return_no_logits,
    skip_a_layer,
    run_fewer_layers,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_computes_something_else_is_refused(change):
    model = classifier()
    message = change(model)
    with pytest.raises(UnsupportedModelError, match=message):
        explained(model)


def test_a_hook_on_the_embeddings_is_part_of_them():
    model = classifier()
    model.bert.embeddings.register_forward_hook(lambda module, args, output: 2 * output)
    assert_close(explained(model).sum(1), logits_of(model, token_ids()))


def test_a_hook_that_only_looks_is_let_be():
    model, seen = classifier(), []
    model.bert.encoder.layer[0].register_forward_hook(lambda module, args, output: seen.append(output))
    explained(model)
    assert len(seen) == 1


class Wrapped(nn.Module):
    """A module with one parameter, so that it has a dtype and a device."""

    def __init__(self, function) -> None:
        super().__init__()
        self.unused, self.function = nn.Parameter(torch.ones(1, dtype=torch.float64)), function

    def forward(self, x):
        return self.function(x)


def replace_by_layers(linear):
    return nn.Sequential(linear, nn.Tanh(), nn.Linear(linear.out_features, linear.out_features).double())


def replace_by_noise(linear):
    return Wrapped(lambda x: linear(x) + 1e-3 * torch.randn_like(x[..., :1]))


def replace_by_nothing(linear):
    return nn.Identity()


def replace_by_failure(linear):
    return Wrapped(lambda x: x.no_such_method())


REPLACEMENTS = [replace_by_layers, replace_by_noise, replace_by_nothing, replace_by_failure]


@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_what_is_no_linear_layer_is_refused_by_name(replacement):
    model = classifier()
    block = attention_of(model, 1).self
    block.key = replacement(block.key)
    name = f"'bert.encoder.layer.1.attention.self.key' is a {type(block.key).__name__}, where a linear layer"
    with pytest.raises(UnsupportedModelError, match=name):
        linearize(model, {"input_ids": token_ids()})


@pytest.mark.parametrize("norm", [nn.Identity(), nn.RMSNorm(16), nn.GroupNorm(2, 16)])
def test_what_is_no_layer_norm_is_refused_by_name(norm):
    for part in ("attention.output", "output"):
        model = classifier()
        model.bert.encoder.layer[1].get_submodule(part).LayerNorm = norm
        name = f"'bert.encoder.layer.1.{part}.LayerNorm' is a {type(norm).__name__}, where a LayerNorm"
        with pytest.raises(UnsupportedModelError, match=name):
            linearize(model, {"input_ids": token_ids()})


@pytest.mark.parametrize("activation", ["gelu_10", "mish", "leaky_relu", "relu2", "sigmoid", "linear", "relu6"])
def test_unknown_activations_are_refused_by_name(activation):
    message = r"bert.encoder.layer.0.intermediate uses the activation \w+.*supported are gelu, .*relu, silu"
    with pytest.raises(UnsupportedModelError, match=message):
        explained(classifier(hidden_act=activation))


def test_relative_positions_are_refused_by_name():
    model = classifier()
    attention_of(model).self.position_embedding_type = "relative_key"
    with pytest.raises(UnsupportedModelError, match="layer.0.attention .*'relative_key'.*'absolute'"):
        explained(model)


def test_missing_parts_are_refused():
    model = classifier()
    model.bert.pooler = None
    with pytest.raises(UnsupportedModelError, match="BertForSequenceClassification has not the parts"):
        linearize(model, {"input_ids": token_ids()})
    with pytest.raises(UnsupportedModelError, match="no layers"):
        linearize(classifier(layers=0), {"input_ids": token_ids()})


def test_unsupported_architectures_list_what_is_supported():
    with pytest.raises(UnsupportedModelError, match="Linear cannot be explained yet: supported are Bert.*, Camembert"):
        linearize(nn.Linear(2, 2), {"input_ids": token_ids()})


# Quantised weights.


class Packed(nn.Module):
    """What a quantised linear layer looks like: whole numbers, and a scale."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", linear.weight.detach().mul(50).to(dtype))
        self.register_buffer("scale", torch.tensor(0.02, dtype=torch.float64))

    def forward(self, x):
        return x @ (self.weight.to(x.dtype) * self.scale).T


class Linear8bit(nn.Linear):
    """Recognised by its name, whatever its parameters look like."""

    def forward(self, x):
        return super().forward(x)


class DequantisedTensor(torch.Tensor):
    """A weight that only looks like a tensor of floating-point numbers."""


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn])
def test_quantised_weights_are_refused_by_name(dtype):
    model = classifier()
    block = attention_of(model, 1).self
    block.query = Packed(block.query, dtype)
    message = rf"'bert.encoder.layer.1.attention.self.query' is quantised \(Packed, .*{dtype}.*\): .*load the model in"
    with pytest.raises(UnsupportedModelError, match=message):
        explained(model)


def test_quantised_layers_are_recognised_by_their_names():
    model = classifier()
    model.classifier = Linear8bit(16, 2).double()
    with pytest.raises(UnsupportedModelError, match=r"'classifier' is quantised \(Linear8bit, torch.float64\)"):
        linearize(model, {"input_ids": token_ids()})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor:UserWarning")
def test_dynamically_quantised_models_are_refused():
    model = classifier(dtype=torch.float32)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    assert not isinstance(quantised.classifier, nn.Linear)
    with pytest.raises(UnsupportedModelError, match="linear layer '.*' is quantised"):
        linearize(quantised, {"input_ids": token_ids()})


def test_weights_that_are_no_plain_tensors_are_refused():
    model = classifier()
    weight = model.classifier.weight.detach().as_subclass(DequantisedTensor)
    model.classifier.weight = nn.Parameter(weight)
    with pytest.raises(UnsupportedModelError, match="'classifier' stores its weight as a DequantisedTensor"):
        linearize(model, {"input_ids": token_ids()})


# Numbers that are none.


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["bert.encoder.layer.1.output.dense.weight", "classifier.bias"])
def test_weights_that_are_not_finite_are_named(name, value):
    model = classifier()
    model.get_parameter(name).data.view(-1)[0] = value
    with pytest.raises(NumericalError, match=f"the weight '{name}' holds NaN or infinity"):
        linearize(model, {"input_ids": token_ids()})


def test_activations_that_overflow_name_the_layer():
    model = classifier(dtype=torch.float32).half()
    model.bert.encoder.layer[1].intermediate.dense.weight.data.fill_(3e4)
    message = "the output of layer 1 holds NaN or infinity in torch.float16: load the model in a wider dtype"
    with pytest.raises(NumericalError, match=message):
        linearize(model, {"input_ids": token_ids()})


def test_activations_that_overflow_where_the_head_does_not_look():
    def overflow(module, args, output):
        output[:, 2] = float("inf")
        return output

    model = classifier()
    model.bert.encoder.layer[1].register_forward_hook(overflow)
    assert logits_of(model, token_ids()).isfinite().all()
    with pytest.raises(NumericalError, match="the output of layer 1 holds NaN or infinity in torch.float64"):
        linearize(model, {"input_ids": token_ids()})


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
        monkeypatch.setattr("decompx_fast.linearize.bert.activation_name", raises(error))
    elif where == "check":
        monkeypatch.setattr(registry.HuggingFaceLinearization, "_check", raises(error))
    else:
        monkeypatch.setattr(reference, "add_bias", raises(error))
    with pytest.raises(error):
        explained(model)
