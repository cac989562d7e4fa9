"""Compiled code, the settings of the caller and errors: a model and PyTorch are left as they were."""

from __future__ import annotations

import threading

import models
import pytest
import torch
from linearized import PAPER, LowRank, attention_of, explained
from models import classifier, logits_of, token_ids

from decompx_fast.engines import reference
from decompx_fast.errors import UnsupportedModelError
from decompx_fast.linearize import linearization as registry
from decompx_fast.linearize import model_run
from decompx_fast.linearize.linearization import linearize


class CountingBackend:
    """Runs the graph as it is, and counts how often."""

    def __init__(self) -> None:
        self.compiled = self.ran = 0

    def __call__(self, graph, example_inputs):
        self.compiled += 1

        def run(*inputs):
            self.ran += 1
            return graph(*inputs)

        return run


def compile_whole(model, backend):
    return torch.compile(model, backend=backend)


def compile_in_place(model, backend):
    model.compile(backend=backend)
    return model


def compile_a_part_in_place(model, backend):
    model.bert.encoder.layer[0].compile(backend=backend)
    return model


def compile_a_part(model, backend):
    model.bert.encoder.layer[1] = torch.compile(model.bert.encoder.layer[1], backend=backend)
    return model


def compile_a_method(model, backend):
    layer = model.bert.encoder.layer[1].intermediate
    layer.forward = torch.compile(layer.forward, backend=backend)
    return model


COMPILE = [compile_whole, compile_in_place, compile_a_part_in_place, compile_a_part, compile_a_method]


@pytest.mark.parametrize("how", COMPILE)
def test_compiled_code_is_not_run(how):
    backend = CountingBackend()
    model = how(classifier(), backend)
    assert torch.equal(explained(model), explained(classifier()))
    assert (backend.compiled, backend.ran) == (0, 0)


def test_code_that_is_compiled_already_is_not_run_and_stays():
    backend = CountingBackend()
    model, ids = classifier(), token_ids()
    model.bert.encoder.layer[0].intermediate.compile(backend=backend)
    expected = logits_of(model, ids)
    assert (backend.compiled, backend.ran) == (1, 1)
    assert torch.equal(explained(model), explained(classifier()))
    assert (backend.compiled, backend.ran) == (1, 1)
    assert torch.equal(logits_of(model, ids), expected)
    assert (backend.compiled, backend.ran) == (1, 2)


def test_overlapping_threads_leave_the_compilers_stance():
    model = classifier()
    before = models._stance()
    inside, leave = threading.Event(), threading.Event()

    def stay():
        with model_run.undisturbed(model):
            inside.set()
            leave.wait(10)

    with model_run.undisturbed(model):
        thread = threading.Thread(target=stay)
        thread.start()
        assert inside.wait(10)
    assert models._stance() == "force_eager", "the other thread is still inside"
    leave.set()
    thread.join()
    assert models._stance() == before == "default"


def test_autocast_is_off_inside():
    model = classifier(dtype=torch.float32)
    expected = explained(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linearization = linearize(model, {"input_ids": token_ids()})
    assert torch.equal(reference.attribute(linearization, PAPER).scores, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_default_dtype_does_not_matter(dtype):
    model = classifier(dtype=torch.float32)
    attention_of(model).self.query = LowRank(attention_of(model).self.query)
    expected = explained(model)
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(explained(model), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_default_device_does_not_matter():
    model = classifier()
    attention_of(model).self.query = LowRank(attention_of(model).self.query)
    ids = token_ids()
    expected = explained(model)
    with torch.device("meta"):
        linearization = linearize(model, {"input_ids": ids})
    assert torch.equal(reference.attribute(linearization, PAPER).scores, expected)


class Stop(Exception):
    pass


def raises(error):
    def fail(*args, **kwargs):
        raise error

    return fail


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt, UnsupportedModelError])
@pytest.mark.parametrize("where", ["model", "describe", "check", "engine"])
def test_an_error_leaves_nothing_behind(monkeypatch, where, error):
    model = classifier(hidden_dropout_prob=0.3)
    for n, module in enumerate(model.modules()):
        module.training = n % 2 == 0
    if where == "model":
        model.bert.encoder.layer[1].output.dense.forward = raises(error)
    elif where == "describe":
        monkeypatch.setattr("decompx_fast.linearize.reading.parts.activation_name", raises(error))
    elif where == "check":
        monkeypatch.setattr(registry.HuggingFaceLinearization, "_check", raises(error))
    else:
        monkeypatch.setattr(reference, "_attention", raises(error))
    with pytest.raises(error):
        explained(model)
