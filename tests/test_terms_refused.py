"""Heads and terms that cannot be explained position by position are refused."""

from __future__ import annotations

import pytest
import torch
from models import token_ids
from random_models import random_model
from terms_of import OUTPUTS, POSITIONS, bert, terms_at
from torch import nn
from transformers import BertForTokenClassification

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.terms import Terms
from decompx_fast.errors import InputError, NumericalError, UnsupportedModelError
from decompx_fast.linearize.linearization import linearize


def test_a_head_that_computes_something_else_is_refused():
    model = bert()
    model.classifier.register_forward_hook(lambda module, args, output: 2 * output)
    linearization = linearize(model, {"input_ids": token_ids(7, b=2, vocab=60)})
    with pytest.raises(UnsupportedModelError, match="the head does not compute .*differs by"):
        reference.attribute(linearization, DecompXConfig(), terms=terms_at(POSITIONS, OUTPUTS))


def test_an_encoder_that_goes_on_after_its_layers_is_refused():
    model = bert()

    def change(module, args, output):
        output.last_hidden_state = output.last_hidden_state + 0.1
        return output

    model.bert.register_forward_hook(change)
    linearization = linearize(model, {"input_ids": token_ids(7, b=2, vocab=60)})
    with pytest.raises(UnsupportedModelError, match="the head does not compute .*differs by"):
        reference.attribute(linearization, DecompXConfig(), terms=terms_at(POSITIONS, OUTPUTS))


def hooked(model: nn.Module) -> nn.Module:
    model.register_forward_hook(lambda module, args, output: output)
    return model


def replaced(model: nn.Module) -> nn.Module:
    model.forward = lambda **inputs: None
    return model


class Own(BertForTokenClassification):
    def forward(self, **inputs):
        return super().forward(**inputs)


def inherited(model: nn.Module) -> nn.Module:
    model.__class__ = Own
    return model


@pytest.mark.parametrize("change", [hooked, replaced, inherited])
def test_what_the_whole_model_adds_would_not_be_seen(change):
    with pytest.raises(UnsupportedModelError, match="has hooks, or a forward that is not that of transformers"):
        linearize(change(bert()), {"input_ids": token_ids(7, vocab=60)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64)), r"positions must be int64 .*\[2, 3\], got float32"),
        (
            (torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64)),
            r"positions .*got int64 \[2, 1\]",
        ),
        ((None, torch.zeros(3, dtype=torch.int64)), r"outputs must be int64 of the shape \[b, t\], got int64 \[3\]"),
        ((None, torch.zeros(2, 0, dtype=torch.int64)), r"outputs must be int64"),
        (
            (None, torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 1, 3)),
            r"columns must be float64 of .*\[2, m, 3\]",
        ),
        (
            (None, torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 0, 3, dtype=torch.float64)),
            r"columns must be float64 of .*\[2, m, 3\]",
        ),
        (
            (None, torch.zeros(2, 3, dtype=torch.int64), torch.full((2, 1, 3), float("nan"), dtype=torch.float64)),
            "columns holds NaN or infinity",
        ),
    ],
)
def test_terms_of_a_wrong_shape_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Terms(*arguments)


def test_what_does_not_exist_is_refused():
    linearization = linearize(bert(), {"input_ids": token_ids(7, vocab=60)})
    for positions, outputs, message in (
        ([[7]], [[0]], "positions holds 7: give whole numbers from 0 to 6"),
        ([[-1]], [[0]], "positions holds -1: give whole numbers from 0 to 6"),
        ([[0]], [[3]], "outputs holds 3: give whole numbers from -1 to 2"),
        ([[0]], [[-2]], "outputs holds -2: give whole numbers from -1 to 2"),
    ):
        for ask in (linearization.values, lambda terms: forward.attribute(linearization, DecompXConfig(), terms=terms)):
            with pytest.raises(InputError, match=message):
                ask(terms_at(positions, outputs))
    for engine in (reference, adjoint):
        with pytest.raises(InputError, match="outputs at each position: say which"):
            engine.attribute(linearization, DecompXConfig(bias="none"))
    with pytest.raises(InputError, match="no logits of the whole input"):
        linearization.logits  # noqa: B018
    with pytest.raises(InputError, match="this model has a head, which says what is read"):
        linearize(bert(), {"input_ids": token_ids(7, vocab=60)}, read=3)
    with pytest.raises(InputError, match="positions are given, but the head of this model reads by itself"):
        reference.attribute(random_model("post_norm"), DecompXConfig(), terms=terms_at(POSITIONS, OUTPUTS))


def test_nan_in_a_head_is_an_error():
    model = bert()
    with torch.no_grad():
        model.classifier.bias[1] = float("nan")
    linearization = linearize(model, {"input_ids": token_ids(7, b=2, vocab=60)})
    with pytest.raises(NumericalError, match="the weight 'classifier.bias' holds NaN or infinity"):
        reference.attribute(linearization, DecompXConfig(), terms=terms_at(POSITIONS, OUTPUTS))
