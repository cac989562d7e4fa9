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
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..activations import get_activation
from .convolution import Convolution as Convolution  # engines take all that a layer is made of from here
from .head import Head as Head
from .head import HeadStep as HeadStep
from .head import WholeMap as WholeMap
from .hubs import Hubs
from .narrow import StateMap as StateMap
from .norm import Norm as Norm
from .routed import Routed as Routed
from .routed import RoutedPart as RoutedPart
from .terms import Reading as Reading
from .terms import Terms as Terms

#: How large a block of attention weights may be. Larger blocks leave the cache of a CPU and gain nothing on a GPU.
WORKSPACE_BYTES = 64 << 20

#: The same for weights that are only summed, so that this needs no room that anyone has to plan.
SUMMED_BYTES = 2 << 20

#: Blocks of a narrow window are at least this high, so that there are not too many of them.
MIN_BLOCK_ROWS = 64


@dataclass(frozen=True)
class AttentionPattern:
    """Attention weights by what they are computed from, so that no ``N x N`` matrix need exist.

    ``alpha[h,i,j] = softmax_j(cap(scale * query[h,i] . key[g(h),j]) + bias[h,i,j])`` over the ``j`` that ``causal``
    and ``window`` allow, and a sink if there is one; head ``h`` reads key-value head ``g(h) = h // (H / G)``.

    Attributes:
        query: ``[b, h, i, v]``, rotary positions applied.
        key: ``[b, g, j, v]``.
        scale: the factor of the logits.
        causal: whether position ``i`` attends ``j <= i`` only.
        window: if given, position ``i`` attends ``j`` with ``|i - j| < window`` only.
        bias: finite additive logits, broadcastable to ``[b, h, i, j]``, or ``None``.
        softcap: if given, logits are ``softcap * tanh(logits / softcap)`` before the bias.
        sink: ``[h]``, one more logit in each row, whose weight goes nowhere: rows then sum to less than 1. Or ``None``.
        hubs: a window with positions that are attended from everywhere, instead of ``causal`` and ``window``; then
            some rows are zero.
    """

    query: Tensor
    key: Tensor
    scale: float
    causal: bool = False
    window: int | None = None
    bias: Tensor | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    hubs: Hubs | None = None

    def allowed(self, rows: slice = slice(None), columns: slice | Tensor = slice(None)) -> Tensor | None:
        """Where position ``i`` of ``rows`` may attend ``j`` of ``columns``, ``[i, j]``, with hubs ``[b, i, j]``;
        ``None`` where all may."""
        if self.hubs is not None:
            return self.hubs.allowed(rows, columns)
        if not self.causal and self.window is None:
            return None
        i = torch.arange(self.query.shape[2], device=self.query.device)[rows, None]
        j = torch.arange(self.key.shape[2], device=self.key.device)[None, columns]
        allowed = j <= i if self.causal else torch.ones_like(i + j, dtype=torch.bool)
        return allowed if self.window is None else allowed & ((i - j).abs() < self.window)

    def weights(self, rows: slice = slice(None), columns: slice | Tensor = slice(None)) -> Tensor:
        """The attention weights ``alpha`` of some target positions, ``[b, h, i, j]``.

        Each row sums to 1, less the weight of the sink; with hubs some are zero.

        Args:
            rows: the target positions ``i``.
            columns: the attended positions ``j``, a range or an index; must hold every one that ``rows`` attend (see
                :meth:`columns`).
        """
        key = self._repeat(self.key[:, :, columns])
        logits = (self.query[:, :, rows] * self.scale) @ key.transpose(-1, -2)  # [b, h, i, j]
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        if self.bias is not None:
            bias = self.bias if self.bias.shape[-2] == 1 else self.bias[..., rows, :]
            logits = logits + (bias if bias.shape[-1] == 1 else bias[..., columns])
        allowed = self.allowed(rows, columns)
        if allowed is not None:
            allowed = allowed if allowed.ndim == 2 else allowed.unsqueeze(1)
            logits = logits.masked_fill(~allowed, float("-inf"))
        if self.sink is not None:
            sink = self.sink.to(logits.dtype)[None, :, None, None].expand(*logits.shape[:3], 1)
            logits = torch.cat((logits, sink), dim=-1)
        alpha = logits.softmax(-1)
        alpha = alpha if self.sink is None else alpha[..., :-1]
        return alpha if self.hubs is None else alpha * self.hubs.live(rows)[:, None, :, None]

    def row_sums(self, rows: slice = slice(None)) -> Tensor | None:
        """What the weights of some target positions sum to, ``[b, h, i]``; ``None`` where that is 1."""
        if self.sink is None:
            return None
        return torch.cat([alpha.sum(-1) for _, _, alpha in self.blocks(rows, SUMMED_BYTES)], dim=-1)

    def columns(self, rows: slice) -> slice:
        """The narrowest range of positions that holds all that ``rows`` (a slice with a start and a stop) attend."""
        n = self.key.shape[2]
        window = n if self.window is None else self.window
        first = max(rows.start - window + 1, 0)
        last = rows.stop - 1 if self.causal else rows.stop - 1 + window - 1
        return slice(first, min(last + 1, n))

    def of_heads(self, kv_heads: slice) -> AttentionPattern:
        """That of some key-value heads, and of the heads that read them."""
        first, last, _ = kv_heads.indices(self.key.shape[1])
        group = self.query.shape[1] // self.key.shape[1]
        heads = slice(first * group, last * group)
        bias = self.bias if self.bias is None or self.bias.shape[-3] == 1 else self.bias[..., heads, :, :]
        sink = None if self.sink is None else self.sink[heads]
        return replace(self, query=self.query[:, heads], key=self.key[:, kv_heads], bias=bias, sink=sink)

    def block_shape(self, n_rows: int) -> tuple[int, int]:
        """How high a block of so many rows is at the most, and how wide it is then."""
        n = self.key.shape[2]
        window, beside = self.window, 0
        if self.hubs is not None and not self.hubs.own_rows:
            window, beside = self.hubs.block * (self.hubs.radius + 1), len(self.hubs.positions)
        if window is None:
            return n_rows, n
        # Blocks as high as the window is wide: few, and little of each is masked.
        height = max(window, MIN_BLOCK_ROWS)
        return min(height, n_rows), min(height + 2 * window + beside, n)

    def live_rows(self, rows: slice) -> list[slice]:
        """The parts of ``rows`` outside of which all weights are zero."""
        return [rows] if self.hubs is None else self.hubs.runs(rows)

    def blocks(
        self, rows: slice = slice(None), most_bytes: int | None = None
    ) -> Iterator[tuple[slice, slice | Tensor, Tensor]]:
        """The attention weights of ``rows`` in blocks of at most so many bytes (but a row at the least).

        Args:
            rows: the target positions.
            most_bytes: :data:`WORKSPACE_BYTES` at the most, which ``None`` stands for.

        Yields:
            ``(rows, columns, alpha)``: ``alpha`` of these rows and columns, ``[b, h, i, j]``; in every other column
            it is 0, and so it is in rows that are in no block. With hubs, ``columns`` may be an index.
        """
        start, stop, _ = rows.indices(self.query.shape[2])
        b, heads = self.query.shape[:2]
        most, width = self.block_shape(stop - start)
        most_bytes = WORKSPACE_BYTES if most_bytes is None else min(most_bytes, WORKSPACE_BYTES)
        step = max(min(most_bytes // (b * heads * width * self.query.element_size()), most), 1)
        for run in self.live_rows(slice(start, stop)):
            for first in range(run.start, run.stop, step):
                block = slice(first, min(first + step, run.stop))
                columns = self.columns(block) if self.hubs is None else self.hubs.columns(block)
                yield block, columns, self.weights(block, columns)

    def mix(self, values: Tensor) -> Tensor:
        """``sum_j alpha[h,i,j] values[j,g(h)]``, in memory linear in the number of positions.

        Args:
            values: ``[b, j, g, v]``.

        Returns:
            ``[b, i, h, v]``.
        """
        values = self._repeat(values.transpose(1, 2))  # [b, h, j, v]
        plain = self.window is None and self.softcap is None and self.sink is None
        if self.hubs is not None:
            mixed = torch.zeros_like(values)
            for rows, columns, alpha in self.blocks():
                mixed[:, :, rows] = alpha @ values[:, :, columns]
        elif plain and (self.bias is None or not self.causal):
            key = self._repeat(self.key)
            mixed = F.scaled_dot_product_attention(
                self.query, key, values, attn_mask=self.bias, is_causal=self.causal, scale=self.scale
            )
        else:
            mixed = torch.cat([alpha @ values[:, :, columns] for _, columns, alpha in self.blocks()], dim=2)
        return mixed.transpose(1, 2)

    def _repeat(self, x: Tensor) -> Tensor:
        """Repeat ``[b, g, ...]`` to ``[b, h, ...]``."""
        heads, kv_heads = self.query.shape[1], self.key.shape[1]
        return x if heads == kv_heads else x.repeat_interleave(heads // kv_heads, dim=1)


@dataclass(frozen=True)
class HubAttention:
    """The values that hubs mix (:mod:`.hubs`), by a map that may be their own; see :class:`Attention`.

    Attributes:
        pattern: whose rows are zero but at hubs.
        w_value, b_value: as those of :class:`Attention`, which they are where hubs have no map of their own.
    """

    pattern: AttentionPattern
    w_value: Tensor
    b_value: Tensor | None

    def context(self, values: Tensor) -> Tensor:
        """``[b, i, (h v)]`` from the values ``[b, j, (g v)]``."""
        return self.pattern.mix(values.unflatten(-1, (self.pattern.key.shape[1], -1))).flatten(-2)


@dataclass(frozen=True)
class Attention:
    """Attention as a linear map of the values: ``sum_h sum_j alpha[h,i,j] (x[j] W_V^g(h) + b_V) W_O^h + b_O``.

    Attributes:
        pattern: where the attention weights come from.
        value_weight: what the model holds of ``W_V``: ``[d, (g v)]``; or of three axes, the last two to be flattened,
            where it is stored in turns with others, so that no view has two (:attr:`w_value`).
        b_value: ``[g v]`` or ``None``.
        w_out: ``[h v, d]``.
        b_out: ``[d]`` or ``None``.
        heads, kv_heads: ``H`` and ``G``.
        hubs: what the rows of hubs mix, where there are some: these rows of ``pattern`` are zero.
    """

    kind: ClassVar[str] = "attention"

    pattern: AttentionPattern
    value_weight: Tensor
    b_value: Tensor | None
    w_out: Tensor
    b_out: Tensor | None
    heads: int
    kv_heads: int
    hubs: HubAttention | None = None

    @property
    def parts(self) -> tuple[Attention | HubAttention, ...]:
        """The patterns, and the values that each mixes: their sum is what the output's map is applied to."""
        return (self,) if self.hubs is None else (self, self.hubs)

    @property
    def has_value_bias(self) -> bool:
        return any(part.b_value is not None for part in self.parts)

    @property
    def w_value(self) -> Tensor:
        """``W_V`` ``[d, (g v)]``: a view, or a copy for the moment where it is stored in turns with others."""
        return self.value_weight.flatten(1)

    @property
    def constants(self) -> dict[str, Tensor]:
        """What depends on the input."""
        found = {"query": self.pattern.query, "key": self.pattern.key, "bias": self.pattern.bias}
        if self.hubs is not None:
            found |= {"hubs.query": self.hubs.pattern.query, "hubs.key": self.hubs.pattern.key}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def replace_constants(self, constants: Mapping[str, Tensor]) -> Attention:
        """The same with other :attr:`constants`."""
        changes: dict[str, Any] = {name: value for name, value in constants.items() if "." not in name}
        of_hubs: dict[str, Any] = {
            name.removeprefix("hubs."): value for name, value in constants.items() if "." in name
        }
        hubs = self.hubs and replace(self.hubs, pattern=replace(self.hubs.pattern, **of_hubs))
        return replace(self, pattern=replace(self.pattern, **changes), hubs=hubs)

    def expand_heads(self, values: Tensor) -> Tensor:
        """Repeat ``[..., g, v]`` to ``[..., h, v]``."""
        return values if self.heads == self.kv_heads else values.repeat_interleave(self.heads // self.kv_heads, dim=-2)

    def bias(self, rows: slice = slice(None)) -> Tensor | None:
        """``b_att = b_V W_O + b_O``, ``[d]``: where attention weights sum to 1, the value bias passes unchanged.

        With a sink it is scaled by what the weights of each head sum to, and hubs may have a value bias of their own:
        then each position has its own, ``[b, i, d]`` of the positions ``rows``.
        """
        through = self._through(self.b_value, rows)
        if self.hubs is not None and self.hubs.w_value is not self.value_weight:
            of_hubs = self._through(self.hubs.b_value, rows)
            zero = torch.zeros_like(self.w_out[0])
            assert self.hubs.pattern.hubs is not None
            where = self.hubs.pattern.hubs.where[:, rows, None]
            through = torch.where(where, zero if of_hubs is None else of_hubs, zero if through is None else through)
        if through is None or self.b_out is None:
            return self.b_out if through is None else through
        return through + self.b_out

    def _through(self, b_value: Tensor | None, rows: slice) -> Tensor | None:
        """What a bias of the values, ``[(g v)]``, gives after the output's map, ``[d]``; with a sink ``[b, i, d]``."""
        if b_value is None:
            return None
        b_value = self.expand_heads(b_value.view(self.kv_heads, -1))  # [h, v]
        sums = self.pattern.row_sums(rows)
        if sums is not None:
            b_value = sums.transpose(1, 2).unsqueeze(-1) * b_value  # [b, i, h, v]
        return b_value.flatten(-2) @ self.w_out

    def __call__(self, x: Tensor) -> Tensor:
        """The forward value, ``[b, i, d]``, from the normed state ``[b, j, d]``."""
        mixed = torch.zeros((), dtype=x.dtype, device=x.device)
        for part in self.parts:
            values = x @ part.w_value
            mixed = mixed + part.context(values if part.b_value is None else values + part.b_value)
        out = mixed @ self.w_out
        return out if self.b_out is None else out + self.b_out

    def context(self, values: Tensor) -> Tensor:
        """What the output's map is applied to, but for hubs: ``[b, i, (h v)]`` from the values ``[b, j, (g v)]``."""
        return self.pattern.mix(values.unflatten(-1, (self.kv_heads, -1))).flatten(-2)


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward network with its activation's input known.

    Plain: ``act(x W_1 + b_1) W_2 + b_2``. Gated: ``(act(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2``, where the second
    factor may be clamped, and a number may be added to it.

    Attributes:
        w_in, b_in: ``[d, f]``, ``[f]`` or ``None``.
        w_out, b_out: ``[f, d]``, ``[d]`` or ``None``.
        activation: a name of :mod:`decompx_fast.activations`.
        preactivation: ``[b, i, f]``, the true input of the activation.
        w_gate, b_gate: the gate's map, for a gated network.
        value: ``[b, i, f]``, the true ``x W_1 + b_1`` that the gate multiplies; ``None`` without a gate.
        norm: its own, in place of the sublayer's ``pre_norm``, or ``None``.
        limit: what ``value`` is clamped to, from both sides, or ``None``.
        shift: what is added to it then: ``act(g) * (u + shift)`` is a gated network and ``shift`` times a plain one.
    """

    kind: ClassVar[str] = "ffn"

    w_in: Tensor
    b_in: Tensor | None
    w_out: Tensor
    b_out: Tensor | None
    activation: str
    preactivation: Tensor
    w_gate: Tensor | None = None
    b_gate: Tensor | None = None
    value: Tensor | None = None
    norm: Norm | None = None
    limit: float | None = None
    shift: float = 0.0

    def frozen_gate(self, rows: slice = slice(None)) -> Tensor:
        """What ``x W_1 + b_1`` is multiplied by with the gate frozen, ``[b, i, f]`` of the positions ``rows``.

        A clamp counts as an activation: the slope through the origin that gives its true value.
        """
        gate = get_activation(self.activation)(self.preactivation[:, rows])
        if self.limit is None or self.value is None:
            return gate
        return gate * (self.limit / self.value[:, rows].abs().clamp_min(self.limit))

    def gate_factor(self, half: bool, rows: slice = slice(None)) -> Tensor | float | None:
        """What multiplies the activation of the gate where that is decomposed too: half of the value if ``half``, and
        what is added to the value. ``None`` if the gate is only frozen."""
        value = self.gated(rows)
        if value is None or not (half or self.shift):
            return None
        return 0.5 * value + self.shift if half else self.shift

    def gated(self, rows: slice = slice(None)) -> Tensor | None:
        """The true second factor less its shift, ``[b, i, f]`` of the positions ``rows``; ``None`` without a gate."""
        if self.value is None:
            return None
        value = self.value[:, rows]
        return value if self.limit is None else value.clamp(-self.limit, self.limit)

    @property
    def constants(self) -> dict[str, Tensor]:
        """What depends on the input."""
        return {"preactivation": self.preactivation} | ({} if self.value is None else {"value": self.value})

    def replace_constants(self, constants: Mapping[str, Tensor]) -> FeedForward:
        """The same with other :attr:`constants`."""
        changes: dict[str, Any] = dict(constants)
        return replace(self, **changes)

    def __call__(self, x: Tensor) -> Tensor:
        """The forward value, ``[b, i, d]``; ``x`` is not read again, since the pre-activations are known."""
        out = self.hidden() @ self.w_out
        return out if self.b_out is None else out + self.b_out

    def hidden(self) -> Tensor:
        """What the output's map is applied to, ``[b, i, f]``."""
        hidden, value = get_activation(self.activation)(self.preactivation), self.gated()
        return hidden if value is None else hidden * (value + self.shift)


#: An operation of a sublayer; its ``kind`` is what engines choose their treatment of it by.
Op = Attention | FeedForward | Convolution | Routed | StateMap


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
        """``attention`` if one is among the operations, else what they are."""
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
        embedding: ``[b, i, d]``, the output of the embedding block: what the sources are parts of.
        logits: ``[b, c]``, as the user's model gave them, in the dtype of the computation.
        num_layers: how many layers :meth:`layers` yields.
        reads_all: whether the head reads the mean of all positions.
    """

    @property
    def embedding(self) -> Tensor: ...

    @property
    def logits(self) -> Tensor: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def reads_all(self) -> bool: ...

    def layers(self) -> Iterator[LinearizedLayer]:
        """Yield the layers in order; each is checked against the model's own hidden state."""
        ...

    def layer(self, index: int, x: Tensor) -> LinearizedLayer:
        """The layer ``index`` on the state ``x`` ``[b, i, d]``, unchecked: for engines that come back to a layer."""
        ...

    def restore(self, layer: LinearizedLayer) -> LinearizedLayer:
        """A layer again of which only :meth:`LinearizedLayer.without_constants` was kept."""
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
