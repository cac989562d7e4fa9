"""Layers made of what the model multiplied: the same as those computed from its weights, or not made at all."""

from __future__ import annotations

import weakref
from dataclasses import replace
from types import SimpleNamespace

import models
import pytest
import torch
import torch.nn.functional as F
from live_bytes import LiveBytes
from models import classifier, logits_of, token_ids
from naive_layers import naive_layers
from random_models import KINDS, RandomModel, random_model
from recording import CONFIG, EXACT, assert_same, assert_same_layers, outcome, recorded, scores
from torch import Tensor, nn

from decompx_fast import DecompX
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.adjoint import tape
from decompx_fast.linearize import record
from decompx_fast.linearize.layer import Attention
from decompx_fast.linearize.linearization import HuggingFaceLinearization, linearize
from decompx_fast.linearize.model_run import run_model
from decompx_fast.linearize.spec import Affine, AttentionSpec, InputLimits, LayerSpec, ModelSpec

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


def test_what_was_recorded_is_let_go_where_there_is_no_room_for_it():
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
        patch.setattr(tape, "KEEP_BYTES", 0)
        found = adjoint.attribute(linearization, CONFIG).scores
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
