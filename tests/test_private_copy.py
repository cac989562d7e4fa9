"""The copy that a model is run on: it shares all tensors, refers to no module of the user's, and changes none."""

from __future__ import annotations

import copy
import functools
import gc
import types
import weakref

import models
import pytest
import torch
from linearized import explained
from models import classifier, logits_of, token_ids
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.parametrizations import spectral_norm

from decompx_fast import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.errors import UnsupportedModelError
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.private_copy import original, private_copy

EXACT = 1e-10


def trained(**options) -> nn.Module:
    rates = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5, "classifier_dropout": 0.5}
    return classifier(**rates, **options).train()


@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_copy_computes_the_same_with_the_same_tensors(family):
    model = classifier(family)
    copied = private_copy(model.train())
    assert torch.equal(logits_of(copied, token_ids()), logits_of(classifier(family), token_ids()))
    assert not {id(module) for module in copied.modules()} & {id(module) for module in model.modules()}
    assert [original(module) for module in copied.modules()] == list(model.modules())
    for kind in ("named_parameters", "named_buffers"):
        found, expected = dict(getattr(copied, kind)()), dict(getattr(model, kind)())
        assert found.keys() == expected.keys() and all(found[name] is expected[name] for name in expected)
    assert not copied.training and all(module.training for module in model.modules())


def test_a_copy_is_gone_when_it_is_let_go():
    gc.collect()
    gc.disable()
    try:
        alive = weakref.ref(private_copy(classifier()))
        assert alive() is None
    finally:
        gc.enable()


def test_hooks_of_the_copy_and_of_the_model_are_each_their_own():
    model, calls = classifier(), []
    model.bert.register_forward_hook(lambda *_: calls.append("model"))
    copied = private_copy(model)
    copied.bert.register_forward_hook(lambda *_: calls.append("copy"))
    logits_of(copied, token_ids())
    assert calls == ["model", "copy"]
    logits_of(model, token_ids())
    assert calls == ["model", "copy", "model"]


# What the user put in place of a forward.


def by_closure(module):
    inner = module.forward

    @functools.wraps(inner)
    def timed(*args, **kwargs):
        return inner(*args, **kwargs)

    module.forward = timed


def by_closures(module):
    by_closure(module)
    by_closure(module)


def by_method(module):
    module.forward = types.MethodType(type(module).forward, module)


def by_partial(module):
    """As accelerate does it."""

    def forward(module, *args, **kwargs):
        return module._old_forward(*args, **kwargs)

    module._old_forward = module.forward
    module.forward = functools.update_wrapper(functools.partial(forward, module), module._old_forward)


def by_itself(module):
    def forward(*args, again=True, **kwargs):
        return forward(*args, again=False, **kwargs) if again else type(module).forward(module, *args, **kwargs)

    module.forward = forward


@pytest.mark.parametrize("place", ["", "bert", "bert.embeddings", "bert.encoder", "bert.encoder.layer.0", "classifier"])
@pytest.mark.parametrize("how", [by_closure, by_closures, by_method, by_partial, by_itself])
def test_a_forward_that_was_replaced_is_run_on_the_copy(how, place):
    model = trained()
    how(model.get_submodule(place))
    assert torch.equal(explained(model), explained(classifier()))


def test_what_a_replaced_forward_counts_is_counted():
    model, count = classifier(), 0
    inner = model.bert.forward

    def counted(*args, **kwargs):
        nonlocal count
        count += 1
        return inner(*args, **kwargs)

    model.bert.forward = counted
    explained(model)
    assert count == 1


class Output(types.SimpleNamespace):
    """Whatever else is asked of it is not there."""

    def __getattr__(self, name):
        return None


def test_modules_in_lists_and_attributes_are_the_copys():
    model = trained()
    encoder = model.bert.encoder
    encoder.all_layers, vars(encoder)["parent"] = list(encoder.layer), model.bert

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        for layer in self.all_layers:
            hidden_states = layer(self.parent.embeddings.dropout(hidden_states), attention_mask)
        return Output(last_hidden_state=hidden_states, hidden_states=None, attentions=None)

    encoder.forward = types.MethodType(forward, encoder)
    assert torch.equal(explained(model), explained(classifier()))


MODEL = None


def test_a_forward_that_finds_the_users_modules_is_refused_in_train_mode():
    global MODEL
    MODEL = classifier(hidden_dropout_prob=0.5)
    embeddings = MODEL.bert.embeddings
    embeddings.forward = lambda *args, **kwargs: type(MODEL.bert.embeddings).forward(
        MODEL.bert.embeddings, *args, **kwargs
    )
    assert torch.equal(explained(MODEL), explained(classifier()))
    MODEL.train()
    with pytest.raises(UnsupportedModelError, match=r"'bert.embeddings' was replaced.*train mode: call model.eval\(\)"):
        linearize(MODEL, {"input_ids": token_ids()})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_part_in_train_mode_is_refused():
    model = classifier()
    model.bert.embeddings.dropout = torch.jit.script(nn.Dropout(0.5))
    model.eval()
    assert torch.equal(explained(model), explained(classifier()))
    model.train()
    with pytest.raises(UnsupportedModelError, match=r"'bert.embeddings.dropout'.* in train mode.*model.eval\(\)"):
        explained(model)
    assert model.bert.embeddings.dropout.training


# Weights that are made anew whenever the model runs.


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("place", ["attention.self.query", "attention.output.dense", "intermediate.dense"])
@pytest.mark.parametrize("how", ["pruning", "weight_norm", "spectral_norm"])
def test_weights_that_a_hook_renews_are_right_at_once(how, place):
    model = classifier().train()
    linear = model.bert.encoder.layer[1].get_submodule(place)
    if how == "pruning":
        prune.random_unstructured(linear, "weight", 0.4)
        changed = linear.weight_orig
    elif how == "weight_norm":
        changed = nn.utils.weight_norm(linear).weight_v
    else:
        changed = nn.utils.spectral_norm(linear).weight_orig
    with torch.no_grad():
        changed.mul_(torch.linspace(0.5, 2, len(changed), dtype=torch.float64)[:, None])  # a step of training
    scores = linearize(model, {"input_ids": token_ids()}, record=True)
    scores = reference.attribute(scores, DecompXConfig()).scores
    expected = logits_of(model.eval(), token_ids())
    assert (scores.sum(1) - expected).abs().max() < EXACT
    assert (scores - explained(model)).abs().max() < EXACT  # layers beside the renewed one may have been recorded


def test_parametrizations_are_read_as_in_eval_mode():
    model, twin = classifier().train(), classifier()
    for one in (model, twin):
        torch.manual_seed(0)
        spectral_norm(one.bert.encoder.layer[0].intermediate.dense)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(explained(model), explained(twin.eval()))


def test_what_torch_keeps_of_parametrizations_is_of_this_call():
    model = classifier()
    for layer in model.bert.encoder.layer:
        parametrize.register_parametrization(layer.intermediate.dense, "weight", nn.Identity())
    states = []
    for n in range(6):  # of two parametrised weights, one changes
        changed = model.bert.encoder.layer[n % 2].intermediate.dense.parametrizations.weight.original
        with torch.no_grad():
            changed *= 1.1
        states.append((copy.deepcopy(model.state_dict()), explained(model)))
    with parametrize.cached():
        for state, expected in states:
            model.load_state_dict(state)
            assert torch.equal(explained(model), expected)
        own = {id(module) for module in model.modules()}
        assert {key[0] for key in parametrize._cache} <= own
