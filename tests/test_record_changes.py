"""What was changed while the model ran, or after, is not recorded; the check of a product tells."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from models import classifier, token_ids
from recording import EDITS, EXACT, assert_decided_by_the_weights, assert_same, edited, outcome, recorded, scores
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from decompx_fast.errors import UnsupportedModelError
from decompx_fast.linearize import record
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.spec import Affine


def affine(d_in: int, d_out: int, dtype: torch.dtype, seed: int = 0) -> Affine:
    torch.manual_seed(seed)
    linear = nn.Linear(d_in, d_out).to(dtype)
    return Affine(linear.weight.detach().T, linear.bias.detach(), linear)


def product_gap(map_, x: Tensor, y: Tensor) -> Tensor:
    return record.row_gap(*record.product_sketches(map_, x, y))


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize(("d_in", "d_out"), [(1, 1), (768, 64), (3, 300), (768, 768), (768, 3072), (3072, 768)])
def test_rounding_passes_the_check_and_one_wrong_row_does_not(d_in, d_out, dtype):
    map_ = affine(d_in, d_out, dtype)
    x = torch.randn(2, 40, d_in).to(dtype) * torch.logspace(-8, 8, 40)[:, None].to(dtype)
    with torch.no_grad():
        y = map_.module(x)
    assert product_gap(map_, x, y) < record.STEP_TOLERANCE[dtype] / 2
    for row in range(40):
        wrong = y.clone()
        wrong[1, row] += 1e-3 * y[1, row].norm() * F.normalize(torch.randn(d_out), dim=0).to(dtype)
        assert product_gap(map_, x, wrong) > record.STEP_TOLERANCE[dtype]


def test_false_acceptance_is_as_rare_as_said():
    # The ratio of two independent sums of 8 squares is below q with a probability of P(Beta(4, 4) < q / (1 + q)).
    map_ = affine(64, 64, torch.float64)
    x = torch.randn(200_000, 64).double()
    y = x @ map_.weight + map_.bias
    e = y.norm(dim=-1, keepdim=True) * F.normalize(torch.randn(200_000, 64), dim=-1)
    directions = record._directions(64, torch.float64, torch.device("cpu"))
    ratios = ((e @ directions.T).norm(dim=-1) / (y @ directions.T).norm(dim=-1)).square()
    for r in (2, 3, 4):
        q = 1 / r**2
        z = q / (1 + q)
        exact = 35 * z**4 - 84 * z**5 + 70 * z**6 - 20 * z**7
        missed = (ratios < q).double().mean().item()
        assert exact / 2 < missed < 2 * exact
        assert exact < 35 * r**-8


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_does_not_pass(value):
    map_ = affine(5, 7, torch.float64)
    x = torch.randn(1, 3, 5).double()
    y = x @ map_.weight + map_.bias
    y[0, 1, 2] = value
    assert not product_gap(map_, x, y) <= 1


#: Every module of a layer whose output can be edited.
PLACES = (
    "attention.self.query attention.self.key attention.self.value attention.self attention.output.dense "
    "attention.output.dropout attention.output.LayerNorm attention.output attention intermediate.dense "
    "intermediate.intermediate_act_fn intermediate output.dense output.dropout output.LayerNorm output"
).split()


def on_first(edit: Callable[[Tensor], Tensor], output):
    return (edit(output[0]), *output[1:]) if isinstance(output, tuple) else edit(output)


def edit_output(module: nn.Module, edit: Callable[[Tensor], Tensor]) -> None:
    module.register_forward_hook(lambda module, args, output: on_first(edit, output))


def edit_input(module: nn.Module, edit: Callable[[Tensor], Tensor]) -> None:
    module.register_forward_pre_hook(lambda module, args: (edit(args[0]), *args[1:]))


def patch_forward(module: nn.Module, edit: Callable[[Tensor], Tensor]) -> None:
    original = module.forward
    module.forward = lambda *args, **kwargs: on_first(edit, original(*args, **kwargs))


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("tamper", [edit_output, edit_input, patch_forward])
@pytest.mark.parametrize("place", PLACES)
def test_one_wrong_row_is_not_recorded(place, tamper, edit):
    for dtype in EXACT:
        model = classifier(layers=3, dtype=dtype)
        tamper(model.bert.encoder.layer[1].get_submodule(place), EDITS[edit])
        # A changed state is that of a neighbouring layer too, where it is changed in place.
        assert 1 not in recorded(model).recorded_layers
        decision = assert_decided_by_the_weights(model, EXACT[dtype])
        assert dtype == torch.float32 or isinstance(decision, str), "in float64 nothing as large is let through"


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("tamper", [edit_output, edit_input, patch_forward])
def test_one_wrong_row_between_layers_is_not_recorded(tamper, edit):
    for dtype in EXACT:
        model = classifier(layers=3, dtype=dtype)
        tamper(model.bert.encoder.layer[1], EDITS[edit])
        assert recorded(model).recorded_layers != (0, 1, 2)
        assert isinstance(assert_decided_by_the_weights(model, EXACT[dtype]), str)


@pytest.mark.parametrize("dtype", EXACT)
def test_another_attention_is_not_recorded(dtype):
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def tempered(module, query, key, value, mask, scaling=None, **options):
        out, weights = plain(module, query, key, value, mask, scaling=scaling, **options)
        return (edited(out) if module.layer_idx == 1 else out), weights

    model = classifier(layers=3, dtype=dtype)
    ALL_ATTENTION_FUNCTIONS["tempered"] = tempered
    try:
        model.config._attn_implementation = "tempered"
        assert recorded(model).recorded_layers == (0, 2)
        assert "layer 1" in assert_decided_by_the_weights(model, EXACT[dtype])
    finally:
        del ALL_ATTENTION_FUNCTIONS["tempered"]


def test_a_weight_that_is_another_while_the_model_runs_is_not_recorded():
    model = classifier(layers=3)
    dense = model.bert.encoder.layer[1].output.dense
    weight = dense.weight.detach().clone()

    def swap(module, args):
        module.weight.data.mul_(1.001)

    def restore(module, args, output):
        module.weight.data.copy_(weight)

    dense.register_forward_pre_hook(swap)
    dense.register_forward_hook(restore)
    assert recorded(model).recorded_layers == (0, 2)
    assert "layer 1" in assert_decided_by_the_weights(model, 1e-12)


@pytest.mark.parametrize("edit", ["in place", "behind torch's back"])
def test_a_state_that_is_modified_later_counts_as_it_is(edit):
    model, kept = classifier(layers=3), []
    model.bert.encoder.layer[1].register_forward_hook(lambda module, args, output: kept.append(output))
    linearization = linearize(model, {"input_ids": token_ids(b=2)}, record=True)
    assert linearization.recorded_layers == (0, 1, 2)
    EDITS[edit](kept[0].detach())
    assert linearization.recorded_layers == (0,)
    with pytest.raises(UnsupportedModelError, match="layer 1 does not compute"):
        scores(linearization)


@pytest.mark.parametrize("place", ["attention.self.query", "attention.self.key", "intermediate.dense"])
def test_a_product_that_is_modified_later_is_computed_anew(place):
    model, kept = classifier(layers=3), []
    expected = outcome(model)
    module = model.bert.encoder.layer[1].get_submodule(place)
    module.register_forward_hook(lambda module, args, output: kept.append(output))
    linearization = linearize(model, {"input_ids": token_ids(b=2)}, record=True)
    kept[0].detach().zero_()
    assert linearization.recorded_layers == (0, 2)
    assert_same(scores(linearization), expected, 1e-12)


def test_weights_that_change_between_two_calls():
    model = classifier()
    weight = model.bert.encoder.layer[1].output.dense.weight
    assert recorded(model).recorded_layers == (0, 1)
    with torch.no_grad():
        weight.mul_(1.5)
    assert recorded(model).recorded_layers == (0, 1)
    weight.data.mul_(1.5)  # what torch does not count costs one computation from the weights
    assert recorded(model).recorded_layers == (0,)
    assert recorded(model).recorded_layers == (0, 1)
    weight.data = 2 * weight.data
    assert_same(outcome(model, record=True), outcome(model), 1e-12)
