"""A sublayer on the way of a decomposed state through the layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...linearize.layer import Sublayer
from .convolution import Convolved
from .live import Live
from .sharing import Sharing


@dataclass(frozen=True)
class Step:
    """A sublayer, and how biases reach the sources before an attention in it, and after; of a cross attention also the
    shares ``[b, i, k]`` of its own, where they are known and others; for a convolution also what it gives each
    position; and which sources may have vectors before it and after it (``None``: all)."""

    sublayer: Sublayer
    before: Sharing
    after: Sharing
    within: Tensor | None = None
    convolved: Convolved | None = None
    live_before: Live | None = None
    live_after: Live | None = None
