"""What every architecture must keep, whatever its layers are made of: for the tests of families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from decompx_fast import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.errors import UnsupportedModelError
from decompx_fast.linearize.layer import Routed
from decompx_fast.linearize.linearization import linearize

RULES = ("absdot", "bias_token", "none", "equal", "cls")

#: Rounding of float64 through a few layers of random weights.
ROUNDING = 1e-10

#: What a linearised operation holds of the model's weights.
WEIGHTS = ("value_weight", "b_value", "w_out", "b_out", "w_in", "b_in", "w_gate", "b_gate")


def engines_agree(model: nn.Module, given: Mapping[str, Tensor], rule: str, *, record: bool) -> Tensor:
    """The scores of the reference engine, ``[b, k, c]``, which all engines that can answer must give."""
    config = DecompXConfig(bias=rule, gate="value")  # as the second decompositions have it
    expected = reference.attribute(linearize(model, given), config)
    size = expected.scores.abs().max().item()
    for engine in (forward,) if rule == "absdot" else (forward, adjoint):
        found = engine.attribute(linearize(model, given, record=record), config)
        assert (found.scores - expected.scores).abs().max().item() <= ROUNDING * size
        if rule == "bias_token":
            assert (found.bias_token - expected.bias_token).abs().max().item() <= ROUNDING * size
    return expected.scores


def is_decomposition(found: np.ndarray, expected: Tensor, rule: str, size: float) -> None:
    """Whether another decomposition of one input, ``[k, c]``, is the same, its bias token aside."""
    tokens = found[:-1] if rule == "bias_token" else found
    assert np.abs(tokens - expected.numpy()).max() <= ROUNDING * size


def all_layers_are_recorded(model: nn.Module, given: Mapping[str, Tensor]) -> None:
    linearization = linearize(model, given, record=True)
    assert linearization.recorded_layers == tuple(range(linearization.num_layers))


def weights_are_views(model: nn.Module, given: Mapping[str, Tensor], names: Iterable[str] = WEIGHTS) -> None:
    """Whether no layer holds a copy of a weight."""
    storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    for layer in linearize(model, given).layers():
        ops: list[Any] = [op for sublayer in layer.sublayers for op in sublayer.ops]
        ops += [part.network for op in ops if isinstance(op, Routed) for part in op.parts]
        for weight in (getattr(op, name, None) for op in ops for name in names):
            assert weight is None or weight.untyped_storage().data_ptr() in storages


def changed_parts_are_refused(
    model: nn.Module, given: Mapping[str, Tensor], names: Iterable[str], change: Callable[..., Any]
) -> None:
    """Whether the model is refused while a hook changes what one of these modules gives."""
    for name in names:
        handle = model.get_submodule(name).register_forward_hook(change)
        try:
            with pytest.raises(UnsupportedModelError):
                for _layer in linearize(model, given).layers():
                    pass
        finally:
            handle.remove()
