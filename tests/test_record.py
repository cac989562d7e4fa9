"""Layers made of what the model multiplied: the same as those computed from its weights, or not made at all."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import models
import pytest
import torch
import torch.nn.functional as F
from live_bytes import LiveBytes
from models import classifier, logits_of, token_ids, unchanged
from naive_layers import naive_layers
from random_models import KINDS, RandomModel, random_model
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from decompx_fast import DecompX
from decompx_fast.config import DecompXConfig
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.errors import UnsupportedModelError
from decompx_fast.linearize import record
from decompx_fast.linearize.layer import Attention, LinearizedLayer
from decompx_fast.linearize.linearization import HuggingFaceLinearization, linearize
from decompx_fast.linearize.model_run import run_model
from decompx_fast.linearize.spec import Affine, AttentionSpec, InputLimits, LayerSpec, ModelSpec

CONFIG = DecompXConfig(bias="bias_token")

#: Rounding of two layers; float32 with some hundred roundings of 6e-8.
EXACT = {torch.float64: 1e-12, torch.float32: 1e-5}


def recorded(model: nn.Module, **inputs) -> HuggingFaceLinearization:
    with unchanged(model):
        return linearize(model, {"input_ids": token_ids(b=2), **inputs}, record=True)


def scores(linearization) -> Tensor:
    return adjoint.attribute(linearization, CONFIG).scores


def assert_same(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()


def assert_same_layers(found: LinearizedLayer, expected: LinearizedLayer, tolerance: float) -> None:
    assert_same(found.input, expected.input, tolerance)
    assert_same(found.output, expected.output, tolerance)
    for ours, theirs in zip(found.constants, expected.constants, strict=True):
        assert_same(ours, theirs, tolerance)
    for ours, theirs in zip(found.sublayers, expected.sublayers, strict=True):
        assert_same(ours.input, theirs.input, tolerance)
        for name in ("pre_norm", "out_norm", "post_norm"):
            norms = getattr(ours, name), getattr(theirs, name)
            assert (norms[0] is None) == (norms[1] is None)
            if norms[0] is not None:
                assert_same(norms[0].std, norms[1].std, tolerance)


# The same layers.


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("family", models.FAMILIES)
def test_recorded_layers_equal_those_computed_from_the_weights(family, dtype):
    model = classifier(family, layers=3, dtype=dtype)
    ours, theirs = recorded(model), linearize(model, {"input_ids": token_ids(b=2)})
    assert ours.recorded_layers == (0, 1, 2) and theirs.recorded_layers == ()
    for found, expected in zip(ours.layers(), theirs.layers(), strict=True):
        assert_same_layers(found, expected, EXACT[dtype])
    assert 0 < ours.max_gap < record.STEP_TOLERANCE[dtype] / 2
    assert_same(scores(ours), scores(theirs), EXACT[dtype])


def test_recorded_layers_are_those_of_the_definition():
    model, ids = classifier(), token_ids()
    ours = linearize(model, {"input_ids": ids}, record=True)
    assert ours.recorded_layers == (0, 1)
    for layer, naive in zip(ours.layers(), naive_layers(model, {"input_ids": ids}), strict=True):
        attention, feed = layer.sublayers
        alpha = attention.ops[0].pattern.weights()[0]
        for found, expected in (
            (alpha, naive.alpha),
            (attention.post_norm.std[0], (naive.pre1.var(1) + 1e-12) ** 0.5),
            (feed.input[0], naive.y),
            (feed.ops[0].preactivation[0], naive.into(naive.y)),
            (layer.output[0], naive.output),
        ):
            assert_same(found, torch.from_numpy(expected), 1e-12)


class AnyLayer(nn.Module):
    """A layer of any shape, run as its specification reads, by modules of its own."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        self.maps = nn.ModuleList()
        self.spec = tuple(replace(part, ops=tuple(self._with_modules(op) for op in part.ops)) for part in spec)

    def _with_modules(self, op):
        names = [name for name, value in vars(op).items() if isinstance(value, Affine)]
        return replace(op, **{name: self._module(getattr(op, name)) for name in names})

    def _module(self, map_: Affine) -> Affine:
        linear = nn.Linear(*map_.weight.shape, bias=map_.bias is not None, dtype=map_.weight.dtype)
        linear.load_state_dict({"weight": map_.weight.T} | ({} if map_.bias is None else {"bias": map_.bias}))
        self.maps.append(linear)
        return Affine(linear.weight.detach().T, None if map_.bias is None else linear.bias.detach(), linear)

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states
        for part in self.spec:
            norms = [getattr(op, "norm", None) or part.pre_norm for op in part.ops]
            branch = sum(self._op(op, self._norm(norm, x)) for op, norm in zip(part.ops, norms, strict=True))
            x = self._norm(part.post_norm, x + self._norm(part.out_norm, branch))
        return x

    def _norm(self, norm, x: Tensor) -> Tensor:
        if norm is None:
            return x
        x = x - x.mean(-1, keepdim=True) if norm.centre else x
        x = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        return x * norm.weight + (0 if norm.bias is None else norm.bias)

    def _op(self, op, u: Tensor) -> Tensor:
        act = {"gelu": F.gelu, "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"), "relu": F.relu, "silu": F.silu}
        if not isinstance(op, AttentionSpec):
            value = op.into.module(u)
            hidden = act[op.activation](value if op.gate is None else op.gate.module(u))
            return op.out.module(hidden if op.gate is None else hidden * value)
        n, group = u.shape[1], op.heads // op.kv_heads
        query, key, value = (m.module(u).unflatten(-1, (h, -1)) for m, h in self._projections(op))
        key, value = key.repeat_interleave(group, 2), value.repeat_interleave(group, 2)
        i, j = torch.arange(n)[:, None], torch.arange(n)[None]
        seen = (j <= i if op.causal else j >= 0) & ((i - j).abs() < (op.window or n))
        logits = torch.einsum("bihv,bjhv->bhij", query, key) * op.scale
        alpha = logits.where(seen, float("-inf")).softmax(-1)
        return op.out.module(torch.einsum("bhij,bjhv->bihv", alpha, value).flatten(2))

    @staticmethod
    def _projections(op):
        return (op.query, op.heads), (op.key, op.kv_heads), (op.value, op.kv_heads)


class AnyClassifier(nn.Module):
    def __init__(self, random: RandomModel) -> None:
        super().__init__()
        self.layers = nn.ModuleList(AnyLayer(spec) for spec in random.specs)
        self.random = random

    def forward(self, embedding: Tensor, **_options):
        x = embedding
        for layer in self.layers:
            x = layer(x)
        return SimpleNamespace(logits=self.random.head(x).logits)

    def linearize(self) -> HuggingFaceLinearization:
        layers = tuple(layer.spec for layer in self.layers)
        listener = record.Record(layers, None)
        limits = InputLimits(None, {})
        spec = ModelSpec(tuple(self.layers), layers, self.random.steps, self.random.position, limits)
        with torch.no_grad():
            run = run_model(self, spec, {"embedding": self.random.embedding}, listener)
        return HuggingFaceLinearization(spec, run, self.random.embedding.dtype, listener)


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_every_shape_can_be_recorded(monkeypatch, kind, dtype):
    for seed in range(4):
        random = random_model(kind, seed, layers=3, n=9, position=8, dtype=dtype)
        model = AnyClassifier(random)
        ours = model.linearize()
        assert ours.recorded_layers == (0, 1, 2)
        for found, expected in zip(ours.layers(), random.layers(), strict=True):
            assert_same_layers(found, expected, EXACT[dtype])
        expected = scores(random)
        assert_same(scores(ours), expected, EXACT[dtype])
        monkeypatch.setattr(record, "KEEP_BYTES", 0)
        assert_same(scores(model.linearize()), expected, EXACT[dtype])
        monkeypatch.undo()


# The check of a product.


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


# What was tampered with.

#: Every module of a layer whose output can be edited.
PLACES = (
    "attention.self.query attention.self.key attention.self.value attention.self attention.output.dense "
    "attention.output.dropout attention.output.LayerNorm attention.output attention intermediate.dense "
    "intermediate.intermediate_act_fn intermediate output.dense output.dropout output.LayerNorm output"
).split()


def edited(output: Tensor) -> Tensor:
    return edit_in_place(output.clone())


def edit_in_place(output: Tensor) -> Tensor:
    output[0, 3] += 1e-3 * output[0, 3].roll(1, -1)
    return output


def edit_unseen(output: Tensor) -> Tensor:
    edit_in_place(output.data)
    return output


EDITS = {"a copy": edited, "in place": edit_in_place, "behind torch's back": edit_unseen}


def on_first(edit: Callable[[Tensor], Tensor], output):
    return (edit(output[0]), *output[1:]) if isinstance(output, tuple) else edit(output)


def edit_output(module: nn.Module, edit: Callable[[Tensor], Tensor]) -> None:
    module.register_forward_hook(lambda module, args, output: on_first(edit, output))


def edit_input(module: nn.Module, edit: Callable[[Tensor], Tensor]) -> None:
    module.register_forward_pre_hook(lambda module, args: (edit(args[0]), *args[1:]))


def patch_forward(module: nn.Module, edit: Callable[[Tensor], Tensor]) -> None:
    original = module.forward
    module.forward = lambda *args, **kwargs: on_first(edit, original(*args, **kwargs))


def outcome(model: nn.Module, **options) -> Tensor | str:
    """Scores, or what the refusal says, less the gap."""
    try:
        return scores(linearize(model, {"input_ids": token_ids(b=2)}, **options))
    except UnsupportedModelError as error:
        return str(error).partition("differs by")[0]


def assert_decided_by_the_weights(model: nn.Module, tolerance: float) -> Tensor | str:
    found, expected = outcome(model, record=True), outcome(model)
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
    else:
        assert_same(found, expected, tolerance)
    return expected


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


# What is right, but ran in another way.


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


# Modified after the fact.


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


# Wrapped models.


class LowRank(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.a = nn.Parameter(torch.linspace(-1, 1, 2 * linear.in_features).view(-1, 2).to(linear.weight))
        self.b = nn.Parameter(torch.linspace(-1, 1, 2 * linear.out_features).view(2, -1).to(linear.weight))

    def forward(self, x):
        return self.linear(x) + x @ self.a @ self.b


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


# How layers are held.


def test_layers_can_be_had_again_until_they_are_taken(monkeypatch):
    model = classifier(layers=4)
    expected = outcome(model)
    monkeypatch.setattr(record, "KEEP_BYTES", 0)
    linearization = recorded(model)
    for _ in range(2):
        assert all(layer.complete for layer in linearization.layers())
    assert [layer.complete for layer in linearization.take_layers()] == [False, False, False, True]
    assert linearization.recorded_layers == ()
    assert all(layer.complete for layer in linearization.take_layers()), "computed from the weights"
    for _ in range(2):
        assert_same(scores(linearization), expected, 1e-12)


def test_a_layer_without_constants_cannot_be_mistaken_for_one_with_them():
    layer = next(recorded(classifier()).layers()).without_constants()
    assert not layer.complete
    attention = layer.sublayers[0].ops[0]
    assert isinstance(attention, Attention) and attention.pattern.query.shape == (2, 4, 7, 4)
    with pytest.raises((RuntimeError, NotImplementedError)):
        attention(layer.input)
    assert sum(t.untyped_storage().nbytes() for t in layer.constants) <= 8 * len(layer.constants)


@pytest.mark.parametrize("checkpoint_every", [1, 2, 3])
def test_checkpoints_give_the_same_and_let_go_of_what_was_recorded(checkpoint_every):
    model = classifier(layers=6)
    expected = outcome(model)
    linearization = recorded(model)
    kept = [weakref.ref(layer.sublayers[1].ops[0].preactivation) for layer in linearization.layers()]
    steps: list[int] = []

    class Watched(adjoint.Tape):
        def backwards(self, **options):
            steps.append(sum(reference() is not None for reference in kept))
            yield from super().backwards(**options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adjoint, "Tape", Watched)
        found = adjoint.attribute(linearization, CONFIG, checkpoint_every=checkpoint_every).scores
    assert_same(found, expected, 1e-12)
    assert steps == [1], "of the last layer alone"


def test_recording_needs_memory_linear_in_positions():
    peaks = []
    for n in (100, 200, 400):
        model = classifier(layers=2, positions=400)
        with LiveBytes() as live:
            linearize(model, {"input_ids": token_ids(n)}, record=True)
        peaks.append(live.peak)
    assert peaks[2] - peaks[1] < 2.2 * (peaks[1] - peaks[0])


# Nothing is left behind.


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["Record.note", "Record.end_layer", "product_sketches", "linearize_layer"])
def test_an_error_while_recording_leaves_nothing_behind(monkeypatch, where, error):
    def fail(*args, **kwargs):
        raise error

    model = classifier()
    monkeypatch.setattr(f"decompx_fast.linearize.record.{where}", fail)
    with pytest.raises(error):
        recorded(model)
    monkeypatch.undo()
    assert recorded(model).recorded_layers == (0, 1)


def test_who_records(monkeypatch):
    """The adjoint engine always, the forward engine short inputs; the plan says what is held meanwhile."""
    asked = []

    class Spy(record.Record):
        def __init__(self, *args) -> None:
            asked.append(args)
            super().__init__(*args)

    monkeypatch.setattr("decompx_fast.linearize.linearization.Record", Spy)
    monkeypatch.setattr("decompx_fast.engines.choose.RECORDED_TOKENS", 4)
    model = classifier(dtype=torch.float32)
    for ids, recording in (([7, 8, 9, 10], ("forward", "adjoint")), ([7, 8, 9, 10, 11], ("adjoint",))):
        expected = logits_of(model, torch.tensor([ids]))[0]
        for engine in ("reference", "forward", "adjoint"):
            asked.clear()
            explanation = DecompX(model, engine=engine, bias="bias_token").explain(ids)
            assert bool(asked) == (engine in recording)
            total = explanation.scores.sum(0) + explanation.bias_token
            assert (total - expected).abs().max() < 1e-5
            assert explanation.metadata["largest_layer_gap"] < 1e-5
        assert (DecompX(model).plan(len(ids)).costs.recorded_bytes() > 0) == ("forward" in recording)
