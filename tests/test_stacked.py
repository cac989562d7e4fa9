"""A map that the model keeps as several, one below the other: no copy of all of it where some outputs are asked for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decompx_fast.linearize.affine import Affine, Stacked
from decompx_fast.linearize.evaluate_head import linearize_head
from decompx_fast.linearize.head import WholeMap
from decompx_fast.linearize.spec import HeadStepSpec
from decompx_fast.linearize.terms import Terms


def maps(outputs: int = 11, dtype: torch.dtype = torch.float64) -> tuple[Stacked, Affine]:
    """The same map, kept as three and as one; the first is a view of how embeddings are stored."""
    torch.manual_seed(0)
    parts = (
        torch.randn(outputs, 3, dtype=dtype).T,
        torch.randn(2, outputs, dtype=dtype),
        torch.randn(1, outputs, dtype=dtype),
    )
    bias = torch.randn(outputs, dtype=dtype)
    return Stacked.of(parts, bias), Affine(torch.cat(parts), bias)


def test_it_is_the_map_of_all_inputs():
    stacked, whole = maps()
    x = torch.randn(2, 6, dtype=torch.float64)
    assert stacked.weight.shape == whole.weight.shape == (6, 11)
    assert torch.allclose(stacked(x), whole(x), rtol=1e-14)
    assert type(stacked.to(torch.float32)) is Affine and stacked.to(torch.float32).weight.dtype == torch.float32
    which = torch.tensor([[4, 0], [10, 4]])
    assert torch.equal(stacked.rows_of(which), whole.rows_of(which))
    assert torch.equal(stacked.block(slice(2, 7)), whole.block(slice(2, 7)))
    ours, theirs = WholeMap(stacked), WholeMap(whole)
    assert torch.equal(ours.gram(), theirs.gram())
    assert torch.equal(ours.functional(torch.float32), theirs.functional(torch.float32))
    assert torch.equal(ours.mean(torch.float64)[0], theirs.mean(torch.float64)[0])


def test_only_the_outputs_that_are_asked_for_are_formed(monkeypatch):
    stacked, whole = maps()
    x = torch.randn(1, 4, 6, dtype=torch.float64)
    terms = Terms(torch.tensor([[0, 2, 2]]), torch.tensor([[7, 1, -1]]))
    expected = linearize_head((HeadStepSpec(whole),), "each", x, terms)
    monkeypatch.setattr(Stacked, "matrix", property(lambda self: pytest.fail("all of it was formed")))
    found = linearize_head((HeadStepSpec(stacked),), "each", x, terms)
    assert isinstance(found.steps[-1].weight, Tensor) and torch.equal(found.logits, expected.logits)
