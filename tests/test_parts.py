"""Wrapped and adapted modules: the part that does the work is read, or the map is probed, once while it stays."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from linearized import LowRank, assert_close, attention_of, explained
from models import classifier, logits_of, token_ids
from torch import nn

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.linearize import probing as parts
from decompx_fast.linearize.architectures import describe
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.readers import affine


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_rank_adapters_of_half_precision_are_read_exactly(dtype):
    """A weight is the difference of two outputs, in which a large bias leaves few of the 8 or 11 bits."""
    module = LowRank(nn.Linear(16, 16).to(dtype))
    with torch.no_grad():
        module.base_layer.bias.fill_(30.0)
    found = affine(module.eval(), "adapted", 16)
    exact = module.base_layer.weight.double().T + module.scale * module.a.double().T @ module.b.double().T
    assert_close(found.weight.detach().double(), exact.detach(), 1e-5)


class Counted(LowRank):
    """Counts the rows that it is run on."""

    def forward(self, x):
        self.rows.append(x.shape[:-1].numel())
        return super().forward(x)


def change_in_place(adapted):
    with torch.no_grad():
        adapted.a.mul_(1.5)


def change_behind_torchs_back(adapted):
    adapted.a.data.mul_(1.5)


def change_the_tensor(adapted):
    adapted.base_layer.weight = nn.Parameter(1.5 * adapted.base_layer.weight.detach())


def change_an_attribute(adapted):
    adapted.scale *= 1.5


def change_by_a_hook(adapted):
    adapted.register_forward_hook(lambda module, args, output: 1.5 * output)


@pytest.mark.parametrize(
    "change",
    [change_in_place, change_behind_torchs_back, change_the_tensor, change_an_attribute, change_by_a_hook],
)
def test_a_map_is_probed_again_when_it_changed_and_only_then(change):
    model, rows = classifier(), []
    adapted = attention_of(model).self.query = Counted(attention_of(model).self.query).eval()
    adapted.rows = rows
    first = explained(model)
    assert max(rows) == 16, "run on the unit vectors"
    rows.clear()
    for _ in range(3):
        assert torch.equal(explained(model), first)
    assert max(rows) < 16
    change(adapted)
    fresh = classifier()
    attention_of(fresh).self.query = copy.deepcopy(adapted)
    found = explained(model)
    assert_close(found.sum(1), logits_of(model, token_ids()))
    assert torch.equal(found, explained(fresh)) and not torch.equal(found, first)


def test_a_probed_map_goes_with_its_module():
    model = classifier()
    attention_of(model).self.query = LowRank(attention_of(model).self.query)
    before = len(parts._probed)
    explained(model)
    assert len(parts._probed) == before + 1
    del model
    gc.collect()
    assert len(parts._probed) <= before


class Choosing(nn.Module):
    """As adapters do it that train a module of their own beside the original."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.original, self.tuned, self.use = module, copy.deepcopy(module), True
        with torch.no_grad():
            for parameter in self.tuned.parameters():
                parameter.add_(0.1)

    def forward(self, x):
        return (self.tuned if self.use else self.original)(x)


@pytest.mark.parametrize(
    "place", ["attention.output.LayerNorm", "output.LayerNorm", "output.dense", "attention.self.key"]
)
def test_the_part_of_a_wrapper_that_does_the_work_is_taken(place):
    model, twin = classifier(), classifier()
    layer, plain = model.bert.encoder.layer[1], twin.bert.encoder.layer[1]
    parent, _, name = place.rpartition(".")
    wrapped = Choosing(getattr(layer.get_submodule(parent), name))
    setattr(layer.get_submodule(parent), name, wrapped)
    for wrapped.use in (True, False):
        setattr(plain.get_submodule(parent), name, wrapped.tuned if wrapped.use else wrapped.original)
        assert torch.equal(explained(model.train()), explained(twin))


def test_norms_that_differ_by_eps_alone_are_told_apart():
    model = classifier()
    output = model.bert.encoder.layer[0].output
    wrapped = output.LayerNorm = Choosing(output.LayerNorm)
    wrapped.tuned = copy.deepcopy(wrapped.original)
    wrapped.tuned.eps = 1e-3
    assert describe(model).layers[0][1].post_norm.eps == 1e-3


@pytest.mark.parametrize("engine", [reference, forward, adjoint])
def test_vectors_may_be_rows_with_gaps(engine):
    model, twin = classifier(), classifier()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 1:
                gaps = torch.zeros(len(parameter), 3, dtype=torch.float64)
                gaps[:, 1] = parameter.detach()
                setattr(module, name, nn.Parameter(gaps[:, 1]))
    config = DecompXConfig(bias="none" if engine is adjoint else "absdot")
    found, expected = (
        engine.attribute(linearize(one, {"input_ids": token_ids()}), config).scores for one in (model, twin)
    )
    assert_close(found, expected)
