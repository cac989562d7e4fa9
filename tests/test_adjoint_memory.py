"""What the adjoint engine holds, restores and computes anew, in how much memory, and that it computes no more."""

from __future__ import annotations

import pytest
import torch
from random_models import F_SIZE, KINDS, D, random_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.adjoint import tape
from decompx_fast.engines.adjoint.pullback import pull_attention
from decompx_fast.linearize import pattern as pattern_module


@pytest.mark.parametrize("kind", KINDS)
def test_adjoint_of_restored_layers_gives_the_same(monkeypatch, kind):
    model = random_model(kind, layers=4)
    expected = adjoint.attribute(model, DecompXConfig(bias="equal"))
    assert model.restored == [], "what fits is kept"
    monkeypatch.setattr(tape, "KEEP_BYTES", 0)
    result = adjoint.attribute(model, DecompXConfig(bias="equal"))
    assert torch.equal(result.scores, expected.scores)
    assert model.restored == [2, 1, 0]


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            # A broadcast view has many elements and no memory.
            if isinstance(tensor, Tensor) and tensor.numel():
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_adjoint_memory_is_linear_in_positions(monkeypatch, kind, dtype):
    workspace_bytes = 1 << 18
    monkeypatch.setattr(pattern_module, "WORKSPACE_BYTES", workspace_bytes)
    n = 1000
    model = random_model(kind, b=1, n=n, dtype=dtype)
    with LargestTensor() as largest:
        adjoint.attribute(model, DecompXConfig(bias="equal"))
    per_position = 3 * F_SIZE  # the widest rows there are, of three directions
    assert n * D < largest.numel <= max(per_position * n, workspace_bytes // dtype.itemsize)
    assert largest.numel < n * n / 8


@pytest.mark.parametrize(("kind", "reached"), [("pre_norm", (0, 5)), ("around", (2, 5)), ("parallel", (3, 6))])
def test_only_what_can_be_reached_is_pulled_back(kind, reached, monkeypatch):
    """Of 12 positions the head reads one: through a causal or windowed attention few others lead to it."""
    model, config = random_model(kind, n=12, layers=1, position=4), DecompXConfig(bias="none")
    found = []

    def spy(*arguments, **named):
        found.append(pull_attention(*arguments, **named))
        return found[-1]

    monkeypatch.setattr(adjoint, "pull_attention", spy)
    scores = adjoint.attribute(model, config).scores
    ((pulled, columns),) = found
    assert (columns.start, columns.stop) == reached and pulled.shape[2] == reached[1] - reached[0]
    expected = reference.attribute(model, config).scores
    assert (scores - expected).abs().max() < 1e-11 * expected.abs().max()
