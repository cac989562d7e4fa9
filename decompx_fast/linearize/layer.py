"""A Transformer on one input, linearised: plain dataclasses of tensors.

With its attention weights, norm statistics and activation slopes frozen, every component is affine. What is here is
what the engines need of a model and nothing else: weights by reference, and the constants of this input. A layer is a
list of sublayers ``x <- post_norm(x + out_norm(op(pre_norm(x))))``, which post-norm (BERT), pre-norm (GPT-2), RMSNorm
(Llama), norms around the branch (Gemma), parallel attention and MLP, gated MLPs, grouped-query, causal and windowed
attention all are.

Weights are stored for row vectors, ``y = x W + b``: a view of what the model holds, never a copy in the same dtype.

Axes: ``b`` batch, ``i`` target position, ``j`` attended position, ``d`` hidden, ``f`` FFN, ``h`` head, ``g`` key-value
head, ``v`` head size, ``c`` class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from .attention import Attention as Attention  # engines take all that a layer is made of from here
from .attention import HubAttention as HubAttention
from .convolution import Convolution as Convolution
from .encoder import Encoder as Encoder
from .feed_forward import FeedForward as FeedForward
from .head import Head as Head
from .head import HeadStep as HeadStep
from .head import WholeMap as WholeMap
from .narrow import StateMap as StateMap
from .norm import Norm as Norm
from .pattern import WORKSPACE_BYTES as WORKSPACE_BYTES
from .pattern import AttentionPattern as AttentionPattern
from .routed import Routed as Routed
from .routed import RoutedPart as RoutedPart
from .terms import Reading as Reading
from .terms import Terms as Terms

#: An operation of a sublayer; its ``kind`` is what engines choose their treatment of it by.
Op = Attention | FeedForward | Convolution | Routed | StateMap


def networks_of(op: Op) -> tuple[FeedForward, ...]:
    """The feed-forward networks of an operation: itself, or those that positions are sent to."""
    if isinstance(op, Routed):
        return tuple(part.network for part in op.parts)
    return (op,) if isinstance(op, FeedForward) else ()


@dataclass(frozen=True)
class Sublayer:
    """``x <- post_norm(x + out_norm(sum_op op(pre_norm(x))))``; each norm optional, several ops run in parallel.

    A network among several may have a norm of its own in place of ``pre_norm`` (:attr:`FeedForward.norm`).

    Attributes:
        ops: in parallel; a convolution stands alone, without ``pre_norm`` and ``out_norm``.
        pre_norm, out_norm, post_norm: or ``None``.
        input: ``[b, i, d]``, the true state ``x``; ``None`` where it was not kept.
        reads_wide: whether its attention reads the residual stream, though it is added to the narrower state.
    """

    ops: tuple[Op, ...]
    pre_norm: Norm | None = None
    out_norm: Norm | None = None
    post_norm: Norm | None = None
    input: Tensor | None = None
    reads_wide: bool = False

    @property
    def has_attention(self) -> bool:
        return any(isinstance(op, Attention) for op in self.ops)

    @property
    def kind(self) -> str:
        """``attention`` if one is among the operations, ``cross_attention`` if it reads the memory, else what they
        are."""
        if any(isinstance(op, Attention) and op.memory is not None for op in self.ops):
            return f"cross_{Attention.kind}"
        return Attention.kind if self.has_attention else self.ops[0].kind


@dataclass(frozen=True)
class LinearizedLayer:
    """One layer on one input.

    Attributes:
        index: from 0.
        sublayers: in order.
        input, output: ``[b, i, d]``, the true states before and after.
    """

    index: int
    sublayers: tuple[Sublayer, ...]
    input: Tensor
    output: Tensor

    @property
    def starts(self) -> bool:
        """Whether the stream starts here: the state is the embedding, where each token's vector is its own."""
        return self.index == 0

    @property
    def constants(self) -> list[Tensor]:
        """The constants of its ops, which are nearly all that it holds besides its weights."""
        found = [op.constants for sublayer in self.sublayers for op in sublayer.ops]
        return [tensor for constants in found for tensor in constants.values()]

    @property
    def complete(self) -> bool:
        """False if this is what :meth:`without_constants` left."""
        return not any(tensor.is_meta for tensor in self.constants)

    def without_constants(self) -> LinearizedLayer:
        """Less the :attr:`constants`, of which only the shapes are left; see :meth:`Linearization.restore`."""
        sublayers = []
        for sublayer in self.sublayers:
            ops = tuple(op.replace_constants(_shapes(op.constants)) for op in sublayer.ops)
            sublayers.append(replace(sublayer, ops=ops))
        return replace(self, sublayers=tuple(sublayers))


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the same shapes on the meta device, where they take no memory and no operation takes them amiss."""
    return {name: tensor.new_empty((), device="meta").expand(tensor.shape) for name, tensor in tensors.items()}


#: Constants of layers that fit in this, together, are kept for the way back rather than computed a second time.
KEEP_BYTES = 256 << 20


class Shelf:
    """Keeps the constants of layers while there is room, and their shapes alone thereafter."""

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes

    def keep(self, layer: LinearizedLayer, *, always: bool = False) -> LinearizedLayer:
        """The layer as it is to be held: complete if that fits, or in any case if ``always``."""
        size = sum(tensor.nbytes for tensor in layer.constants)
        if not layer.complete or (size > self._room_bytes and not always):
            return layer.without_constants()
        self._room_bytes -= size
        return layer


class Linearization(Protocol):
    """A model on one batch of equally long inputs without padding, as a stream of linearised layers.

    Attributes:
        embedding: ``[b, i, d]``, the output of the embedding block: what the sources are parts of. Of an
            encoder-decoder those of both, the encoder's first.
        logits: ``[b, c]``, as the user's model gave them, in the dtype of the computation.
        num_layers: how many layers :meth:`layers` yields.
        reads_all: whether the head reads the mean of all positions.
        encoder: which layers and tokens are those of an encoder, if the others are a decoder's.
    """

    @property
    def embedding(self) -> Tensor: ...

    @property
    def logits(self) -> Tensor: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def reads_all(self) -> bool: ...

    @property
    def encoder(self) -> Encoder | None: ...

    def layers(self) -> Iterator[LinearizedLayer]:
        """Yield the layers in order; each is checked against the model's own hidden state."""
        ...

    def restore(self, layer: LinearizedLayer) -> LinearizedLayer:
        """A layer again of which only :meth:`LinearizedLayer.without_constants` was kept, for engines that come back to
        it."""
        ...

    def head(self, x: Tensor) -> Head:
        """The head on the last layer's output ``x`` ``[b, i, d]``, checked against the model's logits."""
        ...


class ReadsTerms(Linearization, Protocol):
    """A linearisation that can be asked for any terms."""

    def head(self, x: Tensor, terms: Terms | None = None) -> Head:
        """The head where it is read for these terms, on the last layer's output ``x`` ``[b, i, d]``, checked against
        the model's own values."""
        ...

    def values(self, terms: Terms) -> Tensor:
        """The model's own values of the terms, ``[b, t]``, in the dtype of the computation."""
        ...


@runtime_checkable
class HoldsLayers(Protocol):
    """A linearisation that made its layers while the model ran, and holds them, some without their constants."""

    def take_layers(self) -> Iterator[LinearizedLayer]:
        """Yield the layers in order as they are held, and hold them no longer."""
        ...
