"""What computes something else than its architecture says is refused, by the name of the module or layer."""

from __future__ import annotations

import pytest
import torch
from linearized import explained
from models import classifier, logits_of, token_ids
from torch import nn

from decompx_fast.errors import NumericalError, UnsupportedModelError
from decompx_fast.linearize.linearization import linearize


def attention_of(model: nn.Module, layer: int = 0) -> nn.Module:
    return model.bert.encoder.layer[layer].attention


# Changed behind its back.


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
    encoder = model.bert.encoder
    encoder.forward = lambda *args, **kwargs: type(encoder).forward(_Fewer(encoder), *args, **kwargs)
    return "has 2 layers, but 1 were run"


class _Fewer:
    def __init__(self, encoder):
        self.layer, self.config = encoder.layer[:1], encoder.config


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
    expected = logits_of(model, token_ids())
    assert (explained(model).sum(1) - expected).abs().max() < 1e-10 * expected.abs().max()


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


@pytest.mark.parametrize("activation", ["gelu_10", "mish", "leaky_relu", "sigmoid", "linear", "relu6"])
def test_unknown_activations_are_refused_by_name(activation):
    message = r"layer.0.intermediate.intermediate_act_fn uses the activation \w+.*supported are gelu, .*relu, .*silu"
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
    with pytest.raises(
        UnsupportedModelError, match="Linear cannot be explained yet: supported are AST.*, Albert.*, Bert"
    ):
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
