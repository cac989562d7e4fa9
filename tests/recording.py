"""What the tests of recorded layers share: layers compared, and changes to a model that must not be recorded."""

from __future__ import annotations

import torch
from models import token_ids, unchanged
from torch import Tensor, nn

from decompx_fast.config import DecompXConfig
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.errors import UnsupportedModelError
from decompx_fast.linearize.layer import LinearizedLayer
from decompx_fast.linearize.linearization import HuggingFaceLinearization, linearize

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


def edited(output: Tensor) -> Tensor:
    return edit_in_place(output.clone())


def edit_in_place(output: Tensor) -> Tensor:
    output[0, 3] += 1e-3 * output[0, 3].roll(1, -1)
    return output


def edit_unseen(output: Tensor) -> Tensor:
    edit_in_place(output.data)
    return output


EDITS = {"a copy": edited, "in place": edit_in_place, "behind torch's back": edit_unseen}


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
