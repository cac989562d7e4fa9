"""On a GPU: the same numbers as on the CPU, by every engine, path and backend. Counted, not run, elsewhere."""

from __future__ import annotations

import copy

import models
import pytest

from decompx_fast import DecompX

pytestmark = pytest.mark.gpu

TEXTS = ["a gripping film, and a moving one.", "why?", "not bad at all!"]

#: Largest difference to float64 on the CPU, relative to the largest score: rounding of the state's dtype.
TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 5e-2}

CASES = [
    ("reference", "absdot", "float64"),
    ("reference", "absdot", "float32"),
    ("forward", "absdot", "float64"),
    ("forward", "absdot", "float32"),
    ("forward", "absdot", "bfloat16"),
    ("forward", "equal", "float32"),
    ("adjoint", "bias_token", "float64"),
    ("adjoint", "none", "float32"),
]


@pytest.fixture(scope="module")
def pair():
    # A tokenizer that is made here: on a machine that is lent for minutes the package with another is not installed.
    model = models.classifier("roberta", vocab=320, positions=80, hidden_size=64, intermediate_size=128, layers=3)
    on_gpu = copy.deepcopy(model).cuda()
    return DecompX(model, models.byte_pair()), DecompX(on_gpu, models.byte_pair())


@pytest.mark.parametrize(("engine", "bias", "dtype"), CASES)
def test_gpu_equals_cpu(pair, engine, bias, dtype):
    cpu, gpu = pair
    expected = cpu.explain(TEXTS, engine="reference", bias=bias, dtype="float64")
    found = gpu.explain(TEXTS, engine=engine, bias=bias, dtype=dtype)
    for ours, theirs in zip(found, expected, strict=True):
        gap = (ours.scores.double() - theirs.scores).abs().max() / theirs.scores.abs().max()
        assert gap < TOLERANCE[dtype]


@pytest.mark.parametrize("path", ["direct", "operator"])
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_paths_and_backends_agree_on_the_gpu(pair, path, backend):
    cpu, gpu = pair
    expected = cpu.explain(TEXTS[0], engine="reference", dtype="float64").scores
    found = gpu.explain(TEXTS[0], engine="forward", dtype="float32", path=path, backend=backend).scores
    assert (found.double() - expected).abs().max() / expected.abs().max() < TOLERANCE["float32"]
