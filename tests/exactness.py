"""What every architecture must keep, whatever its layers are made of: for the tests of families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

import naive
import numpy as np
import pytest
import torch
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


def with_rules(cases: Iterable[str]) -> list[tuple[str, str]]:
    """Each case with the rule that shares by the vectors and the one that collects, and with one of the others in turn:
    what a rule does to a layer is tested for each, whichever family the layer is of."""
    both, others = RULES[:2], RULES[2:]
    return [(case, rule) for n, case in enumerate(cases) for rule in (*both, others[n % len(others)])]


def close(found: Tensor, expected: Tensor, rounding: float = ROUNDING) -> bool:
    """Whether no number differs by more than this part of the largest."""
    return bool((found - expected).abs().max() <= rounding * expected.abs().max())


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a part of the largest number."""
    assert found.shape == expected.shape
    return ((found.double() - expected.double()).abs().max() / expected.abs().max().clamp_min(1e-30)).item()


def spearman(a: Tensor, b: Tensor) -> float:
    """How far two tensors order their numbers alike: the correlation of ranks."""
    ranks = [t.flatten().double().argsort().argsort().double() for t in (a, b)]
    return torch.corrcoef(torch.stack(ranks))[0, 1].item()


def by_definition(linearization: Any, config: DecompXConfig, sources: list[int] | None = None) -> Tensor:
    """The scores ``[k, c]`` of one input by the method's definition, its bias token aside."""
    scores, _ = naive.decompose(linearization, config, sources)
    return torch.tensor(scores[:-1] if config.bias == "bias_token" else scores)


def engines_agree(
    model: nn.Module, given: Mapping[str, Tensor], rule: str, *, record: Iterable[bool] = (False, True)
) -> Tensor:
    """The scores of the reference engine, ``[b, k, c]``, which all engines that can answer must give, in each of these
    ways to have what the model computes."""
    config = DecompXConfig(bias=rule)
    expected = reference.attribute(linearize(model, given), config)
    size = expected.scores.abs().max().item()
    for engine, way in product((forward,) if rule == "absdot" else (forward, adjoint), record):
        found = engine.attribute(linearize(model, given, record=way), config)
        assert (found.scores - expected.scores).abs().max().item() <= ROUNDING * size
        if rule == "bias_token":
            assert (found.bias_token - expected.bias_token).abs().max().item() <= ROUNDING * size
    return expected.scores


def item_for(rule: str) -> int:
    """Which of two inputs is decomposed a second time, so that with its rules every case has both."""
    return RULES.index(rule) % 2


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
