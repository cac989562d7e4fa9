"""Layers that are right, but ran in another way than their modules one by one; and models that are wrapped."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from linearized import LowRank
from models import classifier, token_ids
from recording import assert_decided_by_the_weights, assert_same, outcome, recorded, scores
from torch import Tensor, nn

from decompx_fast.linearize.linearization import linearize


def bypass_a_linear(layer):
    query = copy.deepcopy(layer.attention.self.query)
    layer.attention.self.forward = type(layer.attention.self).forward.__get__(
        SimpleNamespace(**vars(layer.attention.self), **layer.attention.self._modules | {"query": query})
    )


def bypass_the_feed_forward(layer):
    dense = layer.intermediate.dense
    layer.intermediate.forward = lambda x: F.gelu(F.linear(x, dense.weight, dense.bias))


def run_a_linear_twice(layer):
    layer.output.dense.register_forward_pre_hook(lambda module, args: module.forward(args[0]) and None)
    layer.intermediate.register_forward_pre_hook(lambda module, args: module.dense(args[0]) is None or None)


def overwrite_in_place(layer):
    layer.intermediate.intermediate_act_fn = nn.ReLU(inplace=True)


def in_chunks(layer):
    layer.chunk_size_feed_forward = 1


def return_a_subclass(layer):
    class Labelled(Tensor):
        pass

    layer.output.dense.register_forward_hook(lambda module, args, output: output.as_subclass(Labelled))
    layer.output.register_forward_hook(lambda module, args, output: output.as_subclass(Tensor))


WAYS = [
    bypass_a_linear,
    bypass_the_feed_forward,
    run_a_linear_twice,
    overwrite_in_place,
    in_chunks,
    return_a_subclass,
]


@pytest.mark.parametrize("way", WAYS)
def test_what_ran_in_another_way_is_computed_from_the_weights(way):
    model = classifier(layers=3)
    if way is run_a_linear_twice:
        intermediate = model.bert.encoder.layer[1].intermediate
        intermediate.register_forward_pre_hook(lambda m, args: m.dense(args[0]) is None or None)
    else:
        way(model.bert.encoder.layer[1])
    assert recorded(model).recorded_layers == (0, 2)
    decision = assert_decided_by_the_weights(model, 1e-12)
    assert isinstance(decision, Tensor)


def test_a_module_that_plays_two_parts_is_computed_from_the_weights():
    model = classifier()
    attention = model.bert.encoder.layer[1].attention.self
    attention.key = attention.query
    assert recorded(model).recorded_layers == (0,)
    assert isinstance(assert_decided_by_the_weights(model, 1e-12), Tensor)


def test_layers_that_share_a_module_are_recorded():
    model = classifier(layers=3)
    model.bert.encoder.layer[2] = model.bert.encoder.layer[0]
    assert recorded(model).recorded_layers == (0, 1, 2)
    assert isinstance(assert_decided_by_the_weights(model, 1e-12), Tensor)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_from_the_weights(dtype):
    model = classifier(dtype=dtype)
    assert recorded(model).recorded_layers == ()
    assert torch.equal(outcome(model, record=True), outcome(model))


def test_another_dtype_than_the_models_is_computed_from_the_weights():
    for of_model, wanted in ((torch.float32, torch.float64), (torch.float64, torch.float32)):
        model = classifier(dtype=of_model)
        for record_ in (True, False):
            linearization = linearize(model, {"input_ids": token_ids()}, dtype=wanted, record=record_)
            assert linearization.recorded_layers == ()
            assert scores(linearization).dtype == wanted


def adapt(model):
    for layer in model.bert.encoder.layer:
        layer.attention.self.query = LowRank(layer.attention.self.query)
        layer.output.dense = LowRank(layer.output.dense)
    return model


def compile_a_part(model):
    model.bert.encoder.layer[1] = torch.compile(model.bert.encoder.layer[1], backend="eager")
    model.bert.encoder.layer[0].intermediate.compile(backend="eager")
    return model


WRAPPERS = [adapt, nn.DataParallel, compile_a_part, lambda model: torch.compile(model, backend="eager")]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_wrapped_models_are_recorded(wrap):
    model = wrap(classifier())
    assert recorded(model).recorded_layers == (0, 1)
    assert_same(outcome(model, record=True), outcome(model), 1e-12)


def test_a_model_made_in_inference_mode_is_recorded():
    with torch.inference_mode():
        model = classifier()
        assert recorded(model).recorded_layers == (0, 1)
        assert_same(outcome(model, record=True), outcome(model), 1e-12)
