"""A model's description is kept between calls, and no longer than it is true."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest
import torch
from models import classifier, token_ids
from torch import nn
from torch.nn.utils import parametrizations

from decompx_fast import DecompX
from decompx_fast.errors import UnsupportedModelError
from decompx_fast.linearize.copies import Copies
from decompx_fast.linearize.linearization import linearize, specification
from decompx_fast.linearize.remembered import Remembered

IDS = [7, 8, 9, 10]


def first_layer(model: nn.Module) -> nn.Module:
    return model.bert.encoder.layer[0]


def test_the_description_of_an_unchanged_model_is_made_once():
    model, copies = classifier(), Copies()
    spec = specification(model, copies)
    assert specification(model, copies) is spec
    linearization = linearize(model, {"input_ids": token_ids()}, copies=copies)
    assert linearization._spec is spec


def write_in_place(model):
    with torch.no_grad():
        first_layer(model).attention.self.value.weight.mul_(2)


def write_by_data(model):
    first_layer(model).attention.self.value.weight.data.mul_(2)


def write_by_numpy(model):
    array = first_layer(model).attention.self.value.weight.detach().numpy()
    np.multiply(array, 2, out=array)


def set_data(model):
    weight = first_layer(model).attention.self.value.weight
    weight.data = weight.data * 2


def turn_data(model):
    weight = first_layer(model).attention.self.value.weight
    weight.data = weight.data.T


def set_parameter(model):
    value = first_layer(model).attention.self.value
    value.weight = nn.Parameter(value.weight.detach() * 2)


def set_module(model):
    torch.manual_seed(0)
    first_layer(model).attention.self.value = nn.Linear(16, 16).double()


def set_attribute(model):
    first_layer(model).output.LayerNorm.eps = 0.1


def set_width(model):
    model.float()


def remove_bias(model):
    first_layer(model).attention.self.value.bias = None


CHANGES = [
    write_in_place,
    write_by_data,
    write_by_numpy,
    set_data,
    turn_data,
    set_parameter,
    set_module,
    set_attribute,
    set_width,
    remove_bias,
]


@pytest.mark.parametrize("engine", ["adjoint", "forward"])
@pytest.mark.parametrize("change", CHANGES)
def test_after_any_change_scores_are_those_of_a_new_explainer(change, engine):
    explainer = DecompX(classifier(), engine=engine, bias="none")
    before = explainer(IDS)
    change(explainer.model)
    found, expected = explainer(IDS), DecompX(explainer.model, engine=engine, bias="none")(IDS)
    rounding = 1e-4 if expected.scores.dtype == torch.float32 else 1e-10  # of layers recorded and computed from weights
    torch.testing.assert_close(found.scores, expected.scores, rtol=rounding, atol=rounding)
    assert found.scores.dtype != before.scores.dtype or (found.scores - before.scores).abs().max() > 1e-3


def change_attention(model):
    model.set_attn_implementation("eager" if model.config._attn_implementation == "sdpa" else "sdpa")


def change_a_list_in_the_configuration(model):
    model.config.pruned_heads[0] = [1]


def change_the_configuration(model):
    model.config.hidden_act = "relu"


def hook(model):
    first_layer(model).register_forward_hook(lambda *_: None)


@pytest.mark.parametrize(
    "change", [change_attention, change_a_list_in_the_configuration, change_the_configuration, hook]
)
def test_what_may_be_described_otherwise_is_described_again(change):
    model, copies = classifier(), Copies()
    model.config.pruned_heads = {0: [0]}
    spec = specification(model, copies)
    assert specification(model, copies) is spec
    change(model)
    assert specification(model, copies) is not spec


def test_a_model_that_became_unsupported_is_refused_though_it_was_described_before():
    explainer = DecompX(classifier(), bias="none")
    explainer(IDS)
    first_layer(explainer.model).register_forward_hook(lambda _m, _a, output: output * 1.01)
    with pytest.raises(UnsupportedModelError):
        explainer(IDS)


def test_weights_that_are_computed_are_read_anew():
    model, copies = classifier(), Copies()
    parametrizations.weight_norm(first_layer(model).intermediate.dense)
    spec = specification(model, copies)
    assert specification(model, copies) is not spec


class Scaled:
    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_numbers_that_are_no_views_are_not_kept():
    layer = nn.Linear(2, 2)
    assert Remembered([layer], {"weight": layer.weight.T, "bias": [layer.bias]}).holds()
    assert not Remembered([layer], [layer.weight * 2]).holds()
    scale = layer.weight * 2
    assert not Remembered([layer], lambda x: x * scale).holds()
    assert not Remembered([layer], functools.partial(torch.mul, scale)).holds()
    assert not Remembered([layer], Scaled(scale).apply).holds()


def test_threads_share_what_is_kept():
    explainer = DecompX(classifier(), engine="adjoint", bias="none")
    expected, found = explainer(IDS).scores, []

    def explain() -> None:
        found.extend(explainer(IDS).scores for _ in range(10))

    threads = [threading.Thread(target=explain) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40 and all(torch.equal(one, expected) for one in found)
