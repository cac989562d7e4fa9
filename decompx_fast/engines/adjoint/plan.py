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
        s = self.shape
        return min(self.directions, directions_at_once(self.batch, self.n, s.d, self.dtype.itemsize, s.layers))

    @property
    def peak_bytes(self) -> int:
        """The most that is allocated at one time, beside the model's weights."""
        back = self.gradients_bytes + self.results_bytes
        return self.states_bytes + self.constants_bytes + max(back, self._hidden_bytes)

    @property
    def states_bytes(self) -> int:
        """The input of every sublayer, and the model's own states."""
        return (2 * self.shape.layers + 2) * self._positions * self.shape.d * self.dtype.itemsize

    @property
    def constants_bytes(self) -> int:
        """Queries, keys and pre-activations: of all layers as far as they are kept, and of one that is made anew."""
        whole = self.shape.layers * self._layer_bytes
        return whole if whole <= KEEP_BYTES else KEEP_BYTES + self._layer_bytes

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
        mixed, values = s.heads * s.head_size, s.kv_heads * s.head_size
        anew = self._positions * (2 * s.d * (mixed + values) + 2 * s.d * s.f * (1 + s.gated) * s.networks)
        forward = anew + self._positions * 2 * (s.d * (mixed + values) + s.d * s.f * s.networks)
        mixing = 2 * 2 * self.batch * mixed * s.pairs(self.n)
        weights, pulled = self._flops_back()
        convolution = 2 * self._positions * s.taps * s.d * s.d * (1 + self.directions)
        return {
            **({"convolution": convolution} if s.taps else {}),
            **({"vocabulary": s.vocabulary_flops(self.batch, self.config.bias)} if s.outputs else {}),
            "forward pass": s.layers * forward + mixing,
            "checks of mixing": mixing,
            "layers made anew": self._runs * self._layers_anew * anew,
            "attention weights": self._runs * weights,
            "pull-backs": self.directions * pulled,
        }

    def _flops_back(self) -> tuple[int, int]:
        """Of the attention weights for directions that are pulled together, and of one direction's pull-back.

        Rows that are read are taken to be the last ones. Of a causal model nothing comes back to what is after them,
        and of the last layer nothing is pulled through but they.
        """
        s = self.shape
        mixed, values = s.heads * s.head_size, s.kv_heads * s.head_size
        causal = s.masked and all(mask.causal for mask in s.masks)
        # What is pulled together reads neighbouring rows: each time as many, and on the average those in the middle.
        rows = -(-s.rows // self._runs)
        n = self.n - max(s.rows // self.batch - rows, 0) // 2 if causal else self.n
        networks = s.networks if self.config.ffn else 0
        network = 2 * s.d * s.f * (3 if s.opens_gates(self.config) else 2) * networks
        everywhere = self.batch * n * (network + 2 * s.d * (mixed + values))
        pairs = 2 * self.batch * mixed * s.pairs(n, slice(s.layers - 1))
        pairs_of_rows = min(rows * n, s.pairs(n, slice(s.layers - 1, None)))
        weights = pairs + 2 * self.batch * mixed * pairs_of_rows
        last = self.batch * (min(rows, n) * (network + 2 * s.d * mixed) + n * 2 * s.d * values)
        return weights, (s.layers - 1) * everywhere + last + weights

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

    @property
    def _runs(self) -> int:
        """How many times directions go back through the model."""
        return -(-self.directions // self.at_once)

    @property
    def _layer_bytes(self) -> int:
        """The constants of one layer."""
        s = self.shape
        numbers = s.f * s.networks * (1 + s.gated) + s.d * bool(s.taps) + (s.heads + s.kv_heads) * s.head_size
        return numbers * self._positions * self.dtype.itemsize

    @property
    def _hidden_bytes(self) -> int:
        """What a layer's networks make of the pre-activations, on the way forward: of them all at once."""
        s = self.shape
        return s.f * s.networks * (1 + s.gated) * self._positions * self.dtype.itemsize

    @property
    def _layers_anew(self) -> int:
        """Of how many layers the constants are not kept; those of the last one always are."""
        return max(self.shape.layers - 1 - KEEP_BYTES // self._layer_bytes, 0)
