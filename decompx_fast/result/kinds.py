"""The small types of an explanation: what its fields may say, and the rows that it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, SupportsIndex, TypeAlias

import torch

ProblemType = Literal["single_label", "multi_label", "regression", "positions"]
SourceUnit = Literal["token", "word", "sentence", "group", "patch", "frame"]
EngineName = Literal["reference", "forward", "adjoint"]

#: Under this name the metadata of an explanation say which tokens stayed sources of their own (``sources="focus"``).
FOCUS = "focus"

#: And under this one those of a difference say what it is of.
DIFFERENCE = "difference"

#: A target as users name it: a name, the index of a class, or None for the predicted class.
Target: TypeAlias = str | SupportsIndex | None


@dataclass(frozen=True, eq=False)
class Site:
    """The share of one bias, which belongs to a place in the model and to no token.

    Args:
        layer: index of the layer; -1 for the head.
        place: which bias of the layer, for example ``"attention"``.
        value: ``[c]``, what it adds to each target.
    """

    layer: int
    place: str
    value: torch.Tensor


class TopToken(NamedTuple):
    """One row of :meth:`Explanation.top`."""

    token: str
    score: float
    position: int
