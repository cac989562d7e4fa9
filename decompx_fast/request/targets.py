"""What is explained: classes by name or index, or any direction over the classes."""

from __future__ import annotations

import difflib
import math
import numbers
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..config import DecompXConfig
from ..errors import InputError, OptionError, shown
from .forms import as_tensor


@dataclass(frozen=True)
class Targets:
    """The columns of an explanation.

    Attributes:
        names: one per column.
        ids: the class of each column, ``None`` for a direction.
        directions: ``[m, C]`` float64, the weight of each class in each column.
    """

    names: tuple[str, ...]
    ids: tuple[int | None, ...]
    directions: Tensor

    @property
    def is_all(self) -> bool:
        """Whether the columns are all the classes in their order."""
        return self.ids == tuple(range(self.directions.shape[1]))

    def pulled(self, config: DecompXConfig) -> int:
        """How many directions the adjoint engine pulls back: the classes themselves where they are fewer, or where a
        split is weighed by the vectors over all of them."""
        columns, classes = self.directions.shape
        return classes if config.bias_token_split is not None else min(columns, classes)

    def only(self, column: int) -> Targets:
        """One of the columns."""
        own = slice(column, column + 1)
        return Targets(self.names[own], self.ids[own], self.directions[own])

    def select(self, values: Tensor) -> Tensor:
        """``[..., C]`` to ``[..., m]``: the columns' values from those of all classes."""
        return values if self.is_all else values @ self.directions.to(values).T


def resolve_targets(targets: Any, labels: Sequence[str]) -> Targets:
    """The columns that the user asked for.

    Args:
        targets: ``None`` for all classes; a class by name or index; a mapping of classes to weights, such as
            ``{"POSITIVE": 1, "NEGATIVE": -1}``, for a direction; a float tensor or array ``[C]``, the same; or a list
            of these.
        labels: names of all classes.

    Raises:
        OptionError: for a class that does not exist.
        InputError: for weights that are no finite numbers.
    """
    count = len(labels)
    if targets is None:
        return Targets(tuple(labels), tuple(range(count)), torch.eye(count, dtype=torch.float64, device="cpu"))
    items = list(targets) if isinstance(targets, (list, tuple)) else [targets]
    if not items:
        raise InputError("targets is an empty list: name at least one class, or leave it out for all")
    columns = [_column(item, labels) for item in items]
    return Targets(
        tuple(name for name, _, _ in columns),
        tuple(index for _, index, _ in columns),
        torch.stack([weights for _, _, weights in columns]),
    )


def _column(target: Any, labels: Sequence[str]) -> tuple[str, int | None, Tensor]:
    weights = torch.zeros(len(labels), dtype=torch.float64, device="cpu")
    if isinstance(target, Mapping):
        if not target:
            raise InputError("a direction in targets is empty: give each class its weight")
        for key, weight in target.items():
            index = _class(key, labels)
            weights[index] = finite_weight(weights[index].item() + finite_weight(weight, key), key)
        return _direction_name(weights, labels), None, weights
    if getattr(target, "ndim", 0) > 0:  # a tensor or an array
        weights = _weights(target, labels)
        return _direction_name(weights, labels), None, weights
    index = _class(target, labels)
    weights[index] = 1
    return labels[index], index, weights


def _weights(direction: Any, labels: Sequence[str]) -> Tensor:
    try:
        weights = as_tensor(direction).detach()
    except (TypeError, ValueError, RuntimeError):
        weights = torch.empty(0, device="cpu")
    if tuple(weights.shape) != (len(labels),) or weights.is_complex() or not bool(weights.isfinite().all()):
        raise InputError(
            f"a direction in targets must hold {len(labels)} finite weights, one per class, got {shown(direction)}"
        )
    return weights.double()


def _class(target: Any, labels: Sequence[str]) -> int:
    if isinstance(target, str):
        if target in labels:
            return labels.index(target)
        folded = {label.strip().casefold(): label for label in reversed(labels)}  # of equals the first
        near = difflib.get_close_matches(target.strip().casefold(), folded, n=1, cutoff=0.5)
        hint = f"did you mean {folded[near[0]]!r}? " if near else ""
        raise OptionError(f"there is no class {target!r}: {hint}{_listed(labels)}")
    try:
        index = operator.index(target)
    except (TypeError, ValueError, RuntimeError):
        index = None
    if index is None or isinstance(target, bool):
        raise InputError(
            f"targets holds {shown(target)}: use a class's name or index, or a mapping of classes to weights"
        )
    if not 0 <= index < len(labels):
        raise OptionError(f"there is no class {index}: {_listed(labels)}")
    return index


def _listed(labels: Sequence[str]) -> str:
    shown = ", ".join(f"{label!r} ({n})" for n, label in enumerate(labels[:12]))
    return f"classes are {shown}" + (f" and {len(labels) - 12} more" if len(labels) > 12 else "")


def finite_weight(weight: Any, key: Any) -> float:
    """A weight as a float.

    Raises:
        OptionError: for what is no number, or none that a float can hold.
    """
    is_number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
    try:
        found = float(weight) if is_number else math.nan
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise OptionError(f"the weight of {key!r} in targets must be a finite number, got {shown(weight)}")
    return found


def _direction_name(weights: Tensor, labels: Sequence[str]) -> str:
    parts = []
    for label, weight in zip(labels, weights.tolist(), strict=True):
        if weight:
            size = "" if abs(weight) == 1 else f"{abs(weight):g} "
            parts.append(("- " if weight < 0 else "+ ") + size + label)
    return " ".join(parts).removeprefix("+ ") or "0"
