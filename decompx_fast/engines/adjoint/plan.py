"""What an explanation by the adjoint engine costs: bytes held at one time, and operations beside the forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from ...config import DecompXConfig
from ...linearize.layer import KEEP_BYTES
from ..plan_text import PlanText, gib
from ..shape import ModelShape
from .pullback import CPU_ALPHA_BYTES, CPU_HIDDEN_BYTES
from .run import GRADIENTS_HELD, directions_at_once

#: Tensors of the size of the gradient that are held while it goes back through a network.
NETWORK_GRADIENTS = 4


@dataclass(frozen=True, repr=False)
class AdjointPlan(PlanText):
    """What an explanation by the adjoint engine will cost.

    Attributes:
        shape: the model's sizes.
        n, batch: positions of each input, inputs at once.
        directions: how many are pulled back: classes, or targets where those are fewer.
        dtype: of the constants, float32 or float64.
        config: the options.
        device: where it runs.
        available_bytes: what is free there, ``None`` if that is unknown.
        limit: how many positions the model has; ``None`` for any number.
    """

    shape: ModelShape
    n: int
    batch: int
    directions: int
    dtype: torch.dtype
    config: DecompXConfig
    device: torch.device
    available_bytes: int | None = None
    limit: int | None = None

    @property
    def at_once(self) -> int:
        """Directions that are pulled back together."""
        return min(self.directions, directions_at_once(self.batch, self.n, self.shape.d, self.dtype.itemsize))

    @property
    def peak_bytes(self) -> int:
        """The most that is allocated at one time, beside the model's weights."""
        return self.states_bytes + self.constants_bytes + self.gradients_bytes + self.results_bytes

    @property
    def states_bytes(self) -> int:
        """The input of every sublayer, and the model's own states."""
        return (2 * self.shape.layers + 2) * self._positions * self.shape.d * self.dtype.itemsize

    @property
    def constants_bytes(self) -> int:
        """Queries, keys and pre-activations: of all layers as far as they are kept, and of one that is made anew."""
        s = self.shape
        layer = s.f * s.networks * (1 + s.gated) + s.d * bool(s.taps) + (s.heads + s.kv_heads) * s.head_size
        layer_bytes = layer * self._positions * self.dtype.itemsize
        whole = s.layers * layer_bytes
        return whole if whole <= KEEP_BYTES else KEEP_BYTES + layer_bytes

    @property
    def gradients_bytes(self) -> int:
        """The gradients of the directions that are pulled back together, in an attention or a network, whose weights
        and hidden layer are made in blocks."""
        s, item = self.shape, self.dtype.itemsize
        gradient = self.at_once * self._positions * s.d * item
        alpha = min(self.batch * s.heads * self.n * self.n * item, CPU_ALPHA_BYTES)
        row = self.at_once * self.batch * s.f * item
        hidden = min(row * self.n, max(row, CPU_HIDDEN_BYTES))
        return max(GRADIENTS_HELD * gradient + 3 * alpha, NETWORK_GRADIENTS * gradient + 3 * hidden)

    @property
    def results_bytes(self) -> int:
        """Scores and what each component carries, twice where directions are pulled in blocks: a block's own are copied
        to their place, and so is all of an input's to its explanation."""
        numbers = self.directions * self._positions * (4 * self.shape.layers + 2)
        copies = 2 if self.at_once < self.directions else 1
        return copies * numbers * self.dtype.itemsize + 8 * self.at_once * self._positions

    @property
    def flops(self) -> Mapping[str, int]:
        """Floating-point operations of each part; a multiplication and an addition are two."""
        s = self.shape
        networks = s.networks if self.config.ffn else 0
        mixed, values = s.heads * s.head_size, s.kv_heads * s.head_size
        maps = 2 if s.opens_gates(self.config) else 1
        network = 2 * s.d * s.f * (1 + maps) * networks
        attended = 2 * self.batch * mixed
        everywhere = self._positions * (network + 2 * s.d * (mixed + values))
        dense = (s.layers - 1) * everywhere + attended * s.pairs(self.n, slice(s.layers - 1))
        row = self.batch * (network + 2 * s.d * mixed + 2 * self.n * mixed)
        whole = everywhere + attended * s.pairs(self.n, slice(s.layers - 1, None))
        last = min(s.rows * row + self._positions * 2 * s.d * values, whole)
        weights = attended * s.pairs(self.n)
        forward = self._positions * (4 * s.d * (mixed + values) + 2 * s.d * s.f * (2 + s.gated) * s.networks)
        convolution = 2 * self._positions * s.taps * s.d * s.d * (1 + self.directions)
        return {
            **({"convolution": convolution} if s.taps else {}),
            **({"vocabulary": s.vocabulary_flops(self.batch, self.config.bias)} if s.outputs else {}),
            "forward pass": s.layers * forward + 2 * weights,
            "attention weights": weights * -(-self.directions // self.at_once),
            "pull-backs": self.directions * (dense + last),
        }

    @property
    def total_flops(self) -> int:
        return sum(self.flops.values())

    @property
    def passes(self) -> float:
        """The whole, in forward passes of the model."""
        return self.total_flops / self.flops["forward pass"]

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """What it says, line by line."""
        parts = [("  states", self.states_bytes), ("  constants", self.constants_bytes)]
        parts += [("  gradients", self.gradients_bytes), ("  results", self.results_bytes)]
        together = f", {self.at_once} at once" if self.at_once < self.directions else ""
        return (
            ("engine", "adjoint: the decomposed state is not formed"),
            *(() if self.shape.biased else (("biases", "none, so that every rule gives the same scores"),)),
            ("input", f"{self.batch} x {self.n} tokens in {str(self.dtype).removeprefix('torch.')}"),
            ("directions", f"{self.directions}{together}"),
            ("peak", f"{gib(self.peak_bytes)} of tensors beside the model"),
            *((name, gib(size)) for name, size in parts),
            *self.rows_of_memory(),
            ("operations", f"{self.total_flops / 1e9:,.1f} GFLOP, {self.passes:,.1f} forward passes"),
            *((f"  {name}", f"{flops / 1e9:,.1f}") for name, flops in self.flops.items()),
            *self.rows_of_fit(),
        )

    def needs(self) -> str:
        return f"{self.batch} x {self.n} tokens and {self.directions} directions need {gib(self.peak_bytes)}"

    def find_ways_out(self) -> Iterator[str]:
        """What would need less memory: one input at a time, fewer classes; nothing that does not fit."""
        one, few = replace(self, batch=1), replace(self, directions=1)
        for words, other in (
            ("inputs one at a time", one),
            ("targets= of a single class", few),
            ("inputs one at a time, with targets= of a single class", replace(one, directions=1)),
        ):
            if other.peak_bytes < 0.9 * self.peak_bytes and other.fits:
                yield f"{words}, {gib(other.peak_bytes)}"
                return

    @property
    def _positions(self) -> int:
        return self.batch * self.n
