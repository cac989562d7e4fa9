"""The layers of a described model on some embedding, computed from its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from ..errors import InputError
from .encoder import Encoder, with_memory
from .evaluate import linearize_layer, restore_layer
from .evaluate_head import Read, linearize_head, read_terms
from .layer import Head, LinearizedLayer
from .spec import Context, ModelSpec
from .terms import Terms
from .values import ModelValues


class Recomputed:
    """The layers of a model on some embedding, in its dtype, computed from the weights and compared with nothing.

    To measure what a computation in one precision is wrong by; satisfies
    :class:`decompx_fast.linearize.layer.ReadsTerms`, but for ``logits`` and ``values``, which are those of the model
    itself.
    """

    def __init__(
        self,
        spec: ModelSpec,
        contexts: Sequence[Context],
        embedding: Tensor,
        values: ModelValues,
        read: Read,
        encoder: Encoder | None = None,
    ) -> None:
        self._spec = spec
        self._values = values
        self._read = read
        self.contexts = contexts
        self.embedding = embedding
        self.num_layers = len(spec.layers)
        self.reads_all = spec.reads_all
        self.encoder = encoder
        self._memory: Tensor | None = None  # the encoder's last state, once its layers have been iterated

    @property
    def layer_weights(self) -> Tensor | None:
        """``[layers + 1]``, of the states whose sum the head reads; ``None``: it reads the last alone."""
        weights = self._spec.layer_weights
        return None if weights is None else weights().to(self.embedding.dtype)

    @property
    def logits(self) -> Tensor:
        """``[b, c]``, the model's own, of the head's own reading.

        Raises:
            InputError: if the head reads each position by itself.
        """
        if self._values.own is None:
            raise InputError(
                "this model has outputs at each position, and no logits of the whole input: ask for values(terms)"
            )
        return self._values.own.to(self.embedding.dtype)

    def values(self, terms: Terms) -> Tensor:
        """The model's own values of the terms, ``[b, t]``, in the dtype of the computation.

        Raises:
            InputError: for positions or outputs that do not exist.
        """
        own = terms if self.encoder is None else self.encoder.terms_in_decoder(terms)
        reading = read_terms(self._spec.head, self._read, self._start(self.num_layers), own)
        return reading.pick(self._values.at(reading, self.embedding.dtype))

    def layers(self) -> Iterator[LinearizedLayer]:
        """Yield the layers in order."""
        x = self._start(0)
        for index in range(self.num_layers):
            layer = self._layer(index, self._before(index, x))
            yield layer
            x = layer.output

    def _start(self, index: int) -> Tensor:
        """The embedding that the layers begin with among which is the layer ``index``."""
        return self.embedding if self.encoder is None else self.embedding[:, self.encoder.part(index)]

    def _before(self, index: int, x: Tensor) -> Tensor:
        """The state before a layer, after which the one before it has given ``x``: where the decoder begins, its
        embedding, and ``x`` is the memory from there on."""
        if self.encoder is None or index != self.encoder.layers:
            return x
        self._memory = x
        return self._start(index)

    def _context(self, index: int) -> Context:
        context = self.contexts[index]
        if self.encoder is None or index < self.encoder.layers:
            return context
        if self._memory is None:
            raise ValueError("a decoder's layers are asked for before the encoder's have been iterated")
        return with_memory(context, self._memory)

    def _layer(self, index: int, x: Tensor) -> LinearizedLayer:
        """The layer ``index`` on the state ``x`` ``[b, i, d]``, unchecked."""
        return linearize_layer(self._spec.layers[index], index, x, self._context(index))

    def restore(self, layer: LinearizedLayer) -> LinearizedLayer:
        """A layer again of which only :meth:`LinearizedLayer.without_constants` was kept."""
        return restore_layer(self._spec.layers[layer.index], layer, self._context(layer.index))

    def head(self, x: Tensor, terms: Terms | None = None) -> Head:
        """The head where it is read for these terms, on the last layer's output ``x`` ``[b, i, d]``."""
        own = terms if self.encoder is None else self.encoder.terms_in_decoder(terms)
        return linearize_head(self._spec.head, self._read, x, own)
