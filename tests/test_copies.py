"""A private copy that is kept from call to call: lent again while nothing has changed, and to one thread at a time."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from models import classifier, logits_of, token_ids
from torch import nn

from decompx_fast.linearize.copies import Copies


def lent(copies: Copies, model: nn.Module) -> nn.Module:
    with copies.lend(model) as copied:
        return copied


def test_a_copy_is_lent_again_while_nothing_has_changed():
    model, copies = classifier(), Copies()
    first = lent(copies, model)
    logits_of(first, token_ids())
    assert lent(copies, model) is first


def freeze(model):
    model.bert.pooler.dense.weight.requires_grad_(False)


def new_weight(model):
    model.bert.pooler.dense.weight = nn.Parameter(torch.zeros_like(model.bert.pooler.dense.weight))


def hook(model):
    model.bert.pooler.register_forward_hook(lambda *_: None)


def buffer(model):
    model.bert.register_buffer("more", torch.zeros(1))


def module(model):
    model.bert.pooler.activation = nn.ReLU()


def attribute(model):
    model.bert.encoder.layer[0].attention.self.is_causal = True


def mode(model):
    model.train()


def forward(model):
    model.bert.forward = model.bert.forward


def renamed(model):
    model.bert.one = model.bert.pop = object()
    del model.bert.one


CHANGES = [new_weight, hook, buffer, module, attribute, mode, forward, renamed]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_copied_anew(change):
    model, copies = classifier(), Copies()
    first = lent(copies, model)
    change(model)
    assert lent(copies, model) is not first


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_done_to_a_copy_is_not_met_again(change):
    model, copies = classifier(), Copies()
    first = lent(copies, model)
    change(first)
    assert lent(copies, model) is not first


def test_tensors_are_shared_so_that_their_values_may_change():
    model, copies = classifier(), Copies()
    first = lent(copies, model)
    freeze(model)
    with torch.no_grad():
        model.classifier.bias.add_(1)
    assert lent(copies, model) is first
    assert torch.equal(logits_of(first, token_ids()), logits_of(model.eval(), token_ids()))


@pytest.mark.parametrize("value", [[nn.Linear(2, 2)], {"a": [1]}, [[1]]], ids=["module", "in-dict", "in-list"])
def test_what_cannot_be_watched_is_copied_each_time(value):
    model, copies = classifier(), Copies()
    vars(model.bert)["parts"] = value
    assert lent(copies, model) is not lent(copies, model)


def test_a_copy_is_lent_to_one_at_a_time():
    model, copies = classifier(), Copies()
    with copies.lend(model) as first, copies.lend(model) as second:
        assert first is not second


def test_another_model_has_another_copy():
    copies = Copies()
    assert lent(copies, classifier()) is not lent(copies, classifier())


@pytest.mark.parametrize("again", [copy.deepcopy, lambda copies: pickle.loads(pickle.dumps(copies))])
def test_what_is_kept_is_neither_copied_nor_pickled(again):
    copies = Copies()
    lent(copies, classifier())
    assert len(pickle.dumps(again(copies))) < 200
