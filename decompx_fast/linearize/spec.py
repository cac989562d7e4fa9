"""A model's layers as data: which weights play which part. What a family's file has to say, and nothing about inputs.
Weights are views on the user's parameters (:mod:`.affine`); :mod:`.readers` has the functions that read modules, and
refuse by name what cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from .affine import Affine as Affine  # families take all that a model is described by from here
from .affine import Stacked as Stacked
from .limits import InputLimits as InputLimits
from .limits import PictureLimits as PictureLimits
from .limits import SoundLimits as SoundLimits
from .narrow import Way
from .terms import Pooled


@dataclass(frozen=True)
class NormSpec:
    """A LayerNorm (``centre``) or RMSNorm: ``weight`` and ``bias`` are ``[d]`` or ``None``; or ``fixed``: neither, but
    ``x * weight + bias``."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centre: bool = True
    fixed: bool = False


@dataclass(frozen=True)
class ScaleSpec:
    """A multiplication by a number, in the place of a norm: a norm whose statistics are the same for every input."""

    factor: float
    bias: ClassVar[None] = None


#: What a layer's module was called with besides the hidden state, by the names of its parameters.
Context = Mapping[str, Any]

#: What a layer is called with that needs nothing but the state.
NO_CONTEXT: Context = {}

#: From queries ``[b, h, i, v]``, keys ``[b, g, j, v]`` and what the layer was called with to queries, keys and what is
#: added to the logits, broadcastable to ``[b, h, i, j]``, or ``None``.
Positions = Callable[[Tensor, Tensor, Context], tuple[Tensor, Tensor, Tensor | None]]


@dataclass(frozen=True)
class HubSpec:
    """Positions that all others attend besides their window, and that attend all others (:mod:`.hubs`).

    Attributes:
        query, key, value: the maps of the hubs, for which positions are of no account; those of the attention itself
            where hubs have none of their own.
        radius, block: the window, as :class:`.hubs.Hubs` has it.
        where: from the number of positions and what the layer was called with, which positions are hubs, ``[b, j]``
            bool; or ``None`` for none, and then the attention is what it says without hubs.
    """

    query: Affine
    key: Affine
    value: Affine
    radius: int
    block: int
    where: Callable[[int, Context], Tensor | None]


@dataclass(frozen=True)
class AttentionSpec:
    """Self-attention: projections, the numbers of heads, and what restricts it.

    Attributes:
        query, key, value, out: the projections.
        heads, kv_heads: their numbers.
        scale: the factor of the logits.
        causal, window, softcap: as for :class:`.pattern.AttentionPattern`.
        positions: what the model does to queries and keys before they meet (rotary positions, norms), and what it adds
            to the logits (relative positions), or ``None``. Nothing that it does is decomposed: it changes the
            attention weights alone, and those are constants.
        sink: ``[h]``, a logit of each head whose weight goes nowhere, or ``None``.
        before: a map and a norm that queries and keys are read through, or ``None``.
        hubs: positions that are attended from everywhere, instead of ``causal`` and ``window`` where there are some.
        memory: whether keys and values are those of the encoder's last state (:mod:`.encoder`): cross attention.
    """

    kind: ClassVar[str] = "attention"

    query: Affine
    key: Affine
    value: Affine
    out: Affine
    heads: int
    kv_heads: int
    scale: float
    causal: bool = False
    window: int | None = None
    positions: Positions | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    hubs: HubSpec | None = None
    before: tuple[Affine, NormSpec] | None = None
    memory: bool = False


@dataclass(frozen=True)
class FeedForwardSpec:
    """A feed-forward network; gated where ``gate`` is given.

    Where it stands beside an attention, ``norm`` is its own, taken in place of the sublayer's ``pre_norm``. ``limit``
    and ``shift`` are those of the value that the gate multiplies, as for :class:`.feed_forward.FeedForward`.
    """

    kind: ClassVar[str] = "ffn"

    into: Affine
    out: Affine
    activation: str
    gate: Affine | None = None
    norm: NormSpec | None = None
    limit: float | None = None
    shift: float = 0.0


#: From the logits of a router ``[r, e]``, and perhaps the numbers ``[r, k]`` of the networks that each position is sent
#: to, to the weights and the numbers of these networks, both ``[r, k]``.
Route = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class RoutedSpec:
    """Networks of which each position goes through a few, by the logits of a router.

    Attributes:
        router: ``[d, e]``.
        experts: the networks.
        route: who goes where, and with which weight.
        active: how many networks a position is sent to.
        chooser: a module whose last output, when the model runs it, is who goes where, ``[r, k]``: two logits that are
            nearly the same may be told apart in one precision and not in another. ``None``: ``route`` decides.
    """

    kind: ClassVar[str] = "ffn"
    norm: ClassVar[None] = None

    router: Affine
    experts: tuple[FeedForwardSpec, ...]
    route: Route
    active: int
    chooser: nn.Module | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class ConvolutionSpec:
    """``act(conv(e) + b)`` over the embedding ``e``, not over the state that it is added to.

    Attributes:
        weight: ``[d_out, d_in / groups, t]`` of ``t`` taps, of which ``t // 2`` are before a position; beyond the ends
            are zeros.
        bias: ``[d_out]`` or ``None``.
        groups: how many parts of the hidden state are convolved apart.
        activation: a name.
    """

    kind: ClassVar[str] = "convolution"

    weight: Tensor
    bias: Tensor | None
    groups: int
    activation: str


@dataclass(frozen=True)
class StateMapSpec:
    """A map to a narrower state that some sublayers work on, or back from it (:mod:`.narrow`)."""

    kind: Way
    map: Affine


#: An operation as weights.
OpSpec = AttentionSpec | FeedForwardSpec | ConvolutionSpec | RoutedSpec | StateMapSpec


@dataclass(frozen=True)
class SublayerSpec:
    """``x <- post_norm(x + out_norm(sum_op op(pre_norm(x))))``; a convolution stands alone, in the first layer, and so
    does a map to or from a narrower state, of which there is one at the start and one at the end of a layer, if any.
    Without one at the end the state goes on as the narrower one, which is then as wide.

    ``reads_wide`` is as for :class:`.layer.Sublayer`.
    """

    ops: tuple[OpSpec, ...]
    pre_norm: NormSpec | None = None
    out_norm: NormSpec | ScaleSpec | None = None
    post_norm: NormSpec | None = None
    reads_wide: bool = False


LayerSpec = tuple[SublayerSpec, ...]


@dataclass(frozen=True)
class HeadStepSpec:
    """One step of a head, ``norm(act(x W + b))``; each part may be missing."""

    map: Affine | None = None
    activation: str | None = None
    norm: NormSpec | ScaleSpec | None = None


@dataclass(frozen=True)
class ModelSpec:
    """A whole model as data; of an encoder-decoder the layers of the encoder, and then those of the decoder.

    Attributes:
        layer_modules: the modules that are called with the hidden states, in the order of their calls: one that serves
            as several layers is there as often.
        layers: what each of them computes.
        head: the steps from what is read to the logits.
        read: the position that the head reads (negative ones count from the end); ``"mean"`` for the mean of all of
            them; :class:`.terms.Pooled` for means of some of them; ``"averaged"`` where it is applied to each, and its
            outputs are the mean of what it gives there; ``"each"`` where it is applied to each position by
            itself, so that there are outputs at all of them; or a function of the model's inputs that gives the
            position in each of them, ``[b]``.
        limits: what inputs the model has embeddings for.
        state_modules: whose outputs are the hidden states after the layers; those of ``layer_modules``, but for a
            layer that something else follows: a final norm is the last layer's ``post_norm``, and its module is here.
        in_float32: whether the model does some steps in float32 whatever its dtype, as most RMSNorms do: then it can
            be compared with no more closely.
        prepare: changes the private copy of the model as its ``forward`` would for these inputs, before it is run; or
            refuses them.
        in_place: whether the model goes on to change in place what leaves ``state_modules``, if only by a mask that
            hides nothing, or the maps of a layer: then copies are kept.
        pads: whether the model adds padding at the end that no position attends, so that its states are longer than
            its inputs: then that is cut off.
        backbone: what is run where the head is not; ``None``: the model.
        tail: what is run on the last state that the backbone gives, where modules of the head are parts of the last
            layer as it is described here; or ``None``.
        given: what the model, or the backbone, is called with besides these inputs, computed from them.
        layer_weights: gives ``[layers + 1]`` weights, where the head reads the sum of the states before the first layer
            and after each, so weighted, and not the last alone; ``read`` is the mean then, and the head linear.
        outputs_of: gives the outputs ``[r, C]`` of the states ``[r, d]`` by the head modules of the model that it is
            given. ``None``: the model is run with its head, and gives logits ``[b, C]``.
        encoder_layers: how many layers are those of an encoder, whose last state is what attentions with ``memory``
            read (:mod:`.encoder`); 0: there is no decoder apart.
        shifted: makes the ids that the decoder reads of those ``[b, i]`` that the encoder reads, where the model does
            so by itself; ``None``: they are an input of their own, ``decoder_input_ids``.
    """

    layer_modules: tuple[nn.Module, ...]
    layers: tuple[LayerSpec, ...]
    head: tuple[HeadStepSpec, ...]
    read: int | Literal["mean", "averaged", "each"] | Pooled | Callable[[Mapping[str, Tensor]], Tensor]
    limits: InputLimits
    state_modules: tuple[nn.Module, ...] = ()
    in_float32: bool = False
    prepare: Callable[[nn.Module, Mapping[str, Tensor]], None] | None = None
    in_place: bool = False
    pads: bool = False
    backbone: nn.Module | None = None
    tail: nn.Module | None = None
    given: Callable[[Mapping[str, Tensor]], Mapping[str, Any]] | None = None
    outputs_of: Callable[[nn.Module, Tensor], Tensor] | None = None
    layer_weights: Callable[[], Tensor] | None = None
    encoder_layers: int = 0
    shifted: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state_modules", self.state_modules or self.layer_modules)
        if self.read == "each" and self.outputs_of is None:
            raise ValueError("read='each' needs outputs_of: no head is run on all positions")
        linear = all(step.activation is None and step.norm is None for step in self.head)
        if self.layer_weights is not None and (self.read != "mean" or not linear):
            raise ValueError("layer_weights need read='mean' and a head without activations and norms")
        for index, layer in enumerate(self.layers):
            _check_convolutions(layer, index)
            _check_memory(layer, index, self.encoder_layers)

    @property
    def reads_all(self) -> bool:
        """Whether the head reads all positions, or a mean of them."""
        return self.read in ("mean", "averaged") or isinstance(self.read, Pooled)

    @property
    def width(self) -> int:
        """The size of a hidden state, ``d``."""
        op = self.layers[0][0].ops[0]
        if isinstance(op, ConvolutionSpec):
            return op.weight.shape[0]
        if isinstance(op, RoutedSpec):
            return op.router.weight.shape[0]
        if isinstance(op, StateMapSpec):
            return op.map.weight.shape[0]
        return (op.value if isinstance(op, AttentionSpec) else op.into).weight.shape[0]

    @property
    def has_bias(self) -> bool:
        """Whether any number is added between the embedding and the logits, so that there is something to share.

        Biases of queries, keys and routers do not count: they change weights, which are constants.
        """
        parts = [part for layer in self.layers for part in layer]
        norms = [norm for part in parts for norm in (part.pre_norm, part.out_norm, part.post_norm)]
        norms += [op.norm for part in parts for op in part.ops if isinstance(op, FeedForwardSpec)]
        norms += [step.norm for step in self.head]
        maps = [step.map for step in self.head] + [map_ for part in parts for op in part.ops for map_ in value_maps(op)]
        convolutions = [op for part in parts for op in part.ops if isinstance(op, ConvolutionSpec)]
        return any(found is not None and found.bias is not None for found in chain(norms, maps, convolutions))

    @property
    def classes(self) -> int:
        """How many outputs the head gives."""
        maps = [step.map for step in self.head if step.map is not None]
        return maps[-1].weight.shape[1] if maps else self.width


def choice_name(chooser: nn.Module) -> str:
    """Under which name a layer's context has what a chooser chose in it."""
    return f"choice of {id(chooser)}"


def networks_of(op: OpSpec) -> tuple[FeedForwardSpec, ...]:
    """The feed-forward networks of an operation, those that positions choose among included."""
    if isinstance(op, RoutedSpec):
        return op.experts
    return (op,) if isinstance(op, FeedForwardSpec) else ()


def value_maps(op: OpSpec) -> list[Affine | None]:
    """The linear maps that what is decomposed goes through: not those of queries, keys and routers."""
    if isinstance(op, AttentionSpec):
        return [op.value, op.out]
    return [map_ for network in networks_of(op) for map_ in (network.into, network.gate, network.out)]


def _check_convolutions(layer: LayerSpec, index: int) -> None:
    """What engines rely on: a convolution reads the embedding, which is the first layer's input, and stands alone."""
    for part in layer:
        if any(isinstance(op, ConvolutionSpec) for op in part.ops):
            if index or len(part.ops) > 1 or part.pre_norm is not None or part.out_norm is not None:
                raise ValueError(
                    f"layer {index} has a convolution: it must be in layer 0, the only operation of its sublayer, "
                    "without pre_norm and out_norm"
                )


def _check_memory(layer: LayerSpec, index: int, encoder_layers: int) -> None:
    """What engines rely on: a decoder's layer begins with an attention to all before, so that what has reached a
    position are the encoder's tokens and all of the decoder's up to it; a cross attention is alone in its sublayer."""
    if encoder_layers and any(isinstance(op, AttentionSpec) and op.hubs for part in layer for op in part.ops):
        raise ValueError(
            f"layer {index} of an encoder-decoder has an attention with hubs, whose reach is not described"
        )
    crossing = [part for part in layer if any(isinstance(op, AttentionSpec) and op.memory for op in part.ops)]
    if not crossing:
        return
    first = layer[0].ops[0]
    plain = isinstance(first, AttentionSpec) and first.causal and first.window is None and not first.memory
    alone = all(len(part.ops) == 1 and part.out_norm is None for part in crossing)
    if index < encoder_layers or not encoder_layers or not plain or not alone:
        raise ValueError(
            f"layer {index} has a cross attention: it must be a layer after those of an encoder, which begins with a "
            "causal attention without a window, and the only operation of its sublayer, without out_norm"
        )
