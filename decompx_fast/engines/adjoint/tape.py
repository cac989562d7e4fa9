"""The forward pass of the adjoint engine, and what of it is kept for the way back."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...config import DecompXConfig
from ...linearize.layer import KEEP_BYTES, HoldsLayers, Linearization, LinearizedLayer, Shelf
from ..reach import Reach, equal_shares_at_head, reach_after
from ..terms import Terms, head_for, layer_weights_of


class Tape:
    """The forward pass, and what of it is needed on the way back."""

    def __init__(self, linearization: Linearization, config: DecompXConfig, terms: Terms | None = None) -> None:
        self._linearization = linearization
        self._layers: list[LinearizedLayer] = []
        self._reaches: list[Reach | None] = []
        shelf = Shelf(KEEP_BYTES)
        output = linearization.embedding
        reach: Reach | None = Reach.at_start(linearization)
        self.encoder = encoder = linearization.encoder
        layers = linearization.take_layers() if isinstance(linearization, HoldsLayers) else linearization.layers()
        for layer in layers:
            if encoder is not None and layer.index == encoder.layers:
                reach = Reach.at_start(linearization, layer.index)
            self._reaches.append(reach)
            for sublayer in layer.sublayers:
                reach = reach_after(sublayer, reach, config)
            self._layers.append(shelf.keep(layer, always=layer.index == linearization.num_layers - 1))
            output = layer.output
        self.head = head_for(linearization, output, terms)
        self.reach_of_head = reach
        self.weights = layer_weights_of(linearization)

    def equal_shares_at_head(self) -> Tensor:
        """``[b, r, k]``, an equal share for each token that reaches the row that the head reads, or one of those whose
        mean is asked for."""
        b, n, _ = self._linearization.embedding.shape
        member = torch.arange(n, device=self._linearization.embedding.device).expand(b, n)
        dtype = self._linearization.embedding.dtype
        rows = None if self.head.reading.averaged else self.head.reading.rows
        return equal_shares_at_head(self.reach_of_head, rows, member, n, dtype)

    def backwards(self, *, keep: bool) -> Iterator[tuple[LinearizedLayer, Reach | None]]:
        """The layers from the last to the first, each with what its input reaches; ``keep``: to be read once more."""
        for index in reversed(range(len(self._layers))):
            layer = self._layers[index] if keep else self._layers.pop()
            yield layer if layer.complete else self._linearization.restore(layer), self._reaches[index]
