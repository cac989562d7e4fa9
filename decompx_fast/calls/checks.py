"""What can be wrong with a call of the explainer, or with the model that it is given."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..config import DecompXConfig
from ..errors import InputError, OptionError, UnsupportedModelError
from ..linearize.architectures import find_family, supported_architectures
from ..models.tasks import task_of_model, task_of_name
from .arguments import TELLING, Arguments, Options

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

#: Arguments of a call besides the options of the method.
ARGUMENTS = (
    *(name for name in Arguments.__annotations__ if name not in Options.__annotations__),
    *TELLING,
    "measure",
    "side",
)


def refuse_misspelt_arguments(options: Mapping[str, Any]) -> None:
    """Point to the argument of a call that an unknown option was probably meant to be."""
    known = [field.name for field in dataclasses.fields(DecompXConfig)]
    for name in options:
        near = [] if name in known else difflib.get_close_matches(name, [*known, *ARGUMENTS], n=1)
        if near and near[0] in ARGUMENTS:
            if near[0] == name:
                raise OptionError(f"{name!r} is no option of this call: leave it out")
            raise OptionError(f"unknown option {name!r}: did you mean {near[0]!r}?")


def refuse_of_texts(**arguments: bool) -> None:
    """Refuse what is for texts where a model reads something else."""
    for name, value in arguments.items():
        if value:
            raise OptionError(f"{name}={value!r} is for texts, and this model reads none: leave it out")


def check_head(model: nn.Module) -> None:
    """Refuse a model that is not supported, or whose head gives nothing that can be explained by itself.

    Raises:
        UnsupportedModelError: with what to do instead.
    """
    find_family(model)
    if task_of_model(model) is None:
        known = [name for name in supported_architectures() if task_of_name(name) is not None]
        architecture = type(model).__name__.removesuffix("Model").rpartition("For")
        prefix = architecture[0] or architecture[2]
        supported = ", ".join([name for name in known if name.startswith(prefix)] or known)
        raise UnsupportedModelError(
            f"{type(model).__name__} has no head whose answers can be explained: to compare two texts, say how its "
            "states are pooled, DecompX(model, tokenizer, pooling='mean'), and use similarity(a, b); for classes, "
            f"labels, answers or masks, load a model with such a head. Supported are {supported}"
        )


def to_device(model: nn.Module, device: str | torch.device | None) -> nn.Module:
    if device is None:
        return model
    try:
        torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"device={str(device)!r} is no device: use 'cpu', 'cuda' or the like") from error
    try:
        return model.to(device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"device={str(device)!r} cannot be used here ({reason}): use 'cpu'") from error


def check_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and found not in DTYPES.values():
        raise OptionError(f"dtype={dtype!r} cannot be used: use one of {', '.join(map(repr, DTYPES))}")
    return found


def check_positions(positions: Sequence[int]) -> tuple[int, ...]:
    if isinstance(positions, (str, bytes)) or not isinstance(positions, Sequence):
        raise OptionError(f"positions={positions!r}: give a list of whole numbers, such as [0, 5]")
    if any(isinstance(position, bool) or not isinstance(position, int) for position in positions):
        raise OptionError(f"positions={list(positions)!r}: give whole numbers only")
    return tuple(positions)


def check_batch_size(batch_size: int | None, name: str = "batch_size") -> int | None:
    if batch_size is None:
        return None
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise OptionError(f"{name}={batch_size!r}: use a whole number from 1, or None for what fits")
    return batch_size
