"""A narrower state beside the residual stream, for a part of a layer: MobileBERT's bottlenecks.

``h <- norm(x W + b)`` makes it (``narrow``), sublayers then work on ``h`` as they do on ``x``, and
``x <- norm(x + h W + b)`` adds it to the stream again (``widen``). An attention in between may read ``x``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

#: The way into the narrower state, and the way out of it.
Way = Literal["narrow", "widen"]


@dataclass(frozen=True)
class StateMap:
    """A map from one state to the other, ``[d_in, d_out]``, alone in its sublayer.

    Attributes:
        kind: the way.
        weight: ``[d_in, d_out]``.
        bias: ``[d_out]`` or ``None``.
    """

    kind: Way
    weight: Tensor
    bias: Tensor | None

    @property
    def constants(self) -> dict[str, Tensor]:
        """Nothing depends on the input."""
        return {}

    def replace_constants(self, constants: Mapping[str, Tensor]) -> StateMap:
        """The same."""
        return self
