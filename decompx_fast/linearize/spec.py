"""A model's layers as data: which weights play which part. What a family's file has to say, and nothing about inputs.

Weights are views on the user's parameters, in row-vector form ``y = x W + b``. :func:`affine` reads any module that
computes such a map; everything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModelError
from .narrow import Way
from .probing import NotAffine, probe, stand_in, stored_map
from .terms import Pooled

QUANTIZED_WORDS = (
    "quant",
    "8bit",
    "4bit",
    "int8",
    "int4",
    "gptq",
    "awq",
    "fp8",
    "marlin",
    "eetq",
    "hqq",
    "bitlinear",
)


@dataclass(frozen=True)
class Affine:
    """``y = x W + b``: ``weight`` is ``[d_in, d_out]``, ``bias`` ``[d_out]`` or ``None``.

    Attributes:
        weight, bias: views on what the model holds. Where it stores several maps in turns, group by group of their
            outputs, no view has two axes: then ``weight`` is ``[d_in, groups, size]``, ``bias`` ``[groups, size]``.
        module: what the map was read from, if anything: whoever runs the model can listen there for its output.
        columns: which of the module's outputs are this map's, where several maps are stored as one (:meth:`columns_of`,
            :meth:`part`); of each of so many ``groups`` of them.
        gain: ``[d_out]``, what the model multiplies the module's output by (layer scale): the map is then
            ``(x W + b) * gain``, a diagonal that is folded in when the layer is computed. Or ``None``.
    """

    weight: Tensor
    bias: Tensor | None
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    columns: slice = field(default_factory=lambda: slice(None), repr=False, compare=False)
    groups: int = field(default=1, repr=False, compare=False)
    gain: Tensor | None = None

    def to(self, dtype: torch.dtype) -> Affine:
        """The same map in another dtype; the very same tensors where the dtype is already right. A gain is multiplied
        into it, so that what is given has none."""
        weight, bias = self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype)
        if self.gain is not None:
            gain = self.gain.to(dtype)
            weight, bias = weight * gain, None if bias is None else bias * gain
        return replace(self, weight=weight, bias=bias, gain=None)

    @property
    def matrix(self) -> Tensor:
        """``W`` ``[d_in, d_out]``: the view, or, where maps are stored in turns, a copy for the moment."""
        return self.weight.flatten(1)

    @property
    def vector(self) -> Tensor | None:
        """``b`` ``[d_out]``, likewise."""
        return None if self.bias is None else self.bias.flatten()

    def part(self, number: int, count: int) -> Affine:
        """The maps that are stored as one, ``[d_in, count * d_out]``, taken apart again: views, no copies."""
        size = self.weight.shape[1] // count
        return self.columns_of(number * size, (number + 1) * size)

    def columns_of(self, start: int, stop: int, groups: int = 1) -> Affine:
        """The map of some outputs, those from ``start`` to ``stop`` in each of the groups: a view, no copy.

        Args:
            start, stop: as numbers of a group's outputs.
            groups: how many equal groups the outputs come in, one after the other.
        """
        if self.columns != slice(None):
            raise ValueError("a part of a map has no parts")
        columns = slice(start, stop)
        if groups == 1:
            bias = None if self.bias is None else self.bias[columns]
            return Affine(self.weight[:, columns], bias, self.module, columns)
        bias = None if self.bias is None else self.bias.unflatten(0, (groups, -1))[:, columns]
        return Affine(self.weight.unflatten(1, (groups, -1))[..., columns], bias, self.module, columns, groups)

    def of_output(self, y: Tensor) -> Tensor:
        """This map's part of what its module gave, ``[..., d_out]``."""
        if self.groups == 1:
            y = y[..., self.columns]
            return y if self.gain is None else y * self.gain
        return y.unflatten(-1, (self.groups, -1))[..., self.columns].flatten(-2)

    def __call__(self, x: Tensor) -> Tensor:
        vector = self.vector
        y = x @ self.matrix if vector is None else x @ self.matrix + vector
        return y if self.gain is None else y * self.gain


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
        causal, window, softcap: as for :class:`.layer.AttentionPattern`.
        positions: what the model does to queries and keys before they meet (rotary positions, norms), and what it adds
            to the logits (relative positions), or ``None``. Nothing that it does is decomposed: it changes the
            attention weights alone, and those are constants.
        sink: ``[h]``, a logit of each head whose weight goes nowhere, or ``None``.
        before: a map and a norm that queries and keys are read through, or ``None``.
        hubs: positions that are attended from everywhere, instead of ``causal`` and ``window`` where there are some.
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


@dataclass(frozen=True)
class FeedForwardSpec:
    """A feed-forward network; gated where ``gate`` is given.

    Where it stands beside an attention, ``norm`` is its own, taken in place of the sublayer's ``pre_norm``. ``limit``
    and ``shift`` are those of the value that the gate multiplies, as for :class:`.layer.FeedForward`.
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
        weight: ``[d_out, d_in / groups, t]`` with an odd number of taps ``t``; the ends are padded with zeros.
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
class PictureLimits:
    """How a model cuts pictures into patches.

    Attributes:
        patch: ``(height, width)`` of a patch, in pixels.
        size: ``(height, width)`` of the pictures that it has position embeddings for.
        channels: how many a picture has.
        special: the names of the positions before those of the patches: classes, registers.
        resizable: whether it makes position embeddings for pictures of other sizes, by interpolation.
    """

    patch: tuple[int, int]
    size: tuple[int, int]
    channels: int
    special: tuple[str, ...]
    resizable: bool

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The rows and columns of the patches of a picture: what is left over at its right and its bottom is not
        seen."""
        return height // self.patch[0], width // self.patch[1]


@dataclass(frozen=True)
class SoundLimits:
    """How a model cuts sounds into frames of time, or into patches of time and frequency.

    Attributes:
        name: what it calls its input.
        axes: of one input: ``time`` alone for samples, or ``time`` and ``mel`` of a spectrogram.
        sizes: of these axes; ``None``: any.
        special: the names of the positions before those of the frames.
        step: by how much of frequency and of time one row and one column is away from the next.
        grid: from the size of the axis ``time``, the rows of frequency and the columns of time.
    """

    name: str
    axes: tuple[str, ...]
    sizes: tuple[int | None, ...]
    special: tuple[str, ...]
    step: tuple[int, int]
    grid: Callable[[int], tuple[int, int]]


@dataclass(frozen=True)
class InputLimits:
    """What inputs a model has embeddings for.

    Attributes:
        positions: how many tokens it takes.
        sizes: of each input, the first number that is too large: ``{"input_ids": 30522, "token_type_ids": 2}``.
        picture: what pictures it takes; ``None``: it reads texts.
        sound: what sounds it takes; ``None``: it reads something else.
        padded: whether texts are padded to so many tokens, and the padding is attended as any other token is.
    """

    positions: int | None
    sizes: Mapping[str, int]
    picture: PictureLimits | None = None
    sound: SoundLimits | None = None
    padded: bool = False


@dataclass(frozen=True)
class ModelSpec:
    """A whole model as data.

    Attributes:
        layer_modules: the modules that are called with the hidden states, in the order of their calls: one that serves
            as several layers is there as often.
        layers: what each of them computes.
        head: the steps from what is read to the logits.
        read: the position that the head reads (negative ones count from the end); ``"mean"`` for the mean of all of
            them; :class:`.terms.Pooled` for means of some of them; ``"each"`` where it is applied to each position by
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
        given: what the model, or the backbone, is called with besides these inputs, computed from them.
        outputs_of: gives the outputs ``[r, C]`` of the states ``[r, d]`` by the head modules of the model that it is
            given. ``None``: the model is run with its head, and gives logits ``[b, C]``.
    """

    layer_modules: tuple[nn.Module, ...]
    layers: tuple[LayerSpec, ...]
    head: tuple[HeadStepSpec, ...]
    read: int | Literal["mean", "each"] | Pooled | Callable[[Mapping[str, Tensor]], Tensor]
    limits: InputLimits
    state_modules: tuple[nn.Module, ...] = ()
    in_float32: bool = False
    prepare: Callable[[nn.Module, Mapping[str, Tensor]], None] | None = None
    in_place: bool = False
    pads: bool = False
    backbone: nn.Module | None = None
    given: Callable[[Mapping[str, Tensor]], Mapping[str, Any]] | None = None
    outputs_of: Callable[[nn.Module, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state_modules", self.state_modules or self.layer_modules)
        if self.read == "each" and self.outputs_of is None:
            raise ValueError("read='each' needs outputs_of: no head is run on all positions")
        for index, layer in enumerate(self.layers):
            _check_convolutions(layer, index)

    @property
    def reads_all(self) -> bool:
        """Whether the head reads a mean of positions."""
        return self.read == "mean" or isinstance(self.read, Pooled)

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


def norm_module(module: nn.Module, name: str) -> nn.LayerNorm:
    """A LayerNorm, or that one in a wrapper round it which computes what the wrapper does.

    Raises:
        UnsupportedModelError: if there is none.
    """
    if isinstance(module, nn.LayerNorm) and type(module).forward is nn.LayerNorm.forward:
        return module
    found = stand_in(module, nn.LayerNorm)
    if found is None:
        raise _unsupported(name, module, "a LayerNorm")
    return found


def layer_norm(module: nn.Module, name: str) -> NormSpec:
    """The parameters of a LayerNorm module, perhaps wrapped.

    Raises:
        UnsupportedModelError: if it is something else.
    """
    norm = norm_module(module, name)
    return NormSpec(_vector(norm.weight), _vector(norm.bias), norm.eps)


def own_layer_norm(module: nn.Module, name: str) -> NormSpec:
    """The parameters of a LayerNorm of a project's own class, ``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias``;
    perhaps without the bias.

    Raises:
        UnsupportedModelError: if it computes anything else.
    """
    return _norm_by_formula(module, name, "a LayerNorm", centre=True)


def plain_norm(module: nn.Module, name: str, width: int, eps: float) -> NormSpec:
    """A LayerNorm without parameters, ``(x - mean(x)) / sqrt(var(x) + eps)``.

    Raises:
        UnsupportedModelError: if it computes anything else.
    """
    x = torch.randn(2, 1, width, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
    expected = torch.nn.functional.layer_norm(x, (width,), eps=eps)
    if next(module.parameters(), None) is not None:
        raise _unsupported(name, module, "a LayerNorm without parameters")
    _compare_norms(module(x), expected, name, module, "a LayerNorm without parameters")
    return NormSpec(None, None, eps)


def embedding_module(module: nn.Module, name: str) -> nn.Embedding:
    """An embedding, or the first in a wrapper round it: adapters keep its size.

    Raises:
        UnsupportedModelError: if there is none.
    """
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            return part
    raise _unsupported(name, module, "an embedding")


#: How far a norm of a project's own may be from its formula, relative to its largest value: most compute in float32.
OWN_NORM_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5}


def rms_norm(module: nn.Module, name: str, *, one_plus: bool = False) -> NormSpec:
    """The parameters of an RMSNorm, ``x / sqrt(mean_d(x^2) + eps) * weight``; each project has a class of its own.

    Args:
        module, name: as for :func:`affine`.
        one_plus: whether the module keeps ``weight - 1``.

    Raises:
        UnsupportedModelError: if it computes anything else.
    """
    return _norm_by_formula(module, name, "an RMSNorm", centre=False, one_plus=one_plus)


def _norm_by_formula(module: nn.Module, name: str, kind: str, *, centre: bool, one_plus: bool = False) -> NormSpec:
    """The parameters of a norm of whatever class, if it computes what they say."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    biased = isinstance(bias, Tensor)
    if not isinstance(weight, Tensor) or not isinstance(eps, float) or (biased and not centre):
        raise _unsupported(name, module, kind)
    dtype = weight.dtype
    x = torch.randn(2, 1, *weight.shape, generator=torch.Generator("cpu").manual_seed(0), device="cpu").to(weight)
    if one_plus:  # d numbers; in float32 at least, as the models add them, since half precisions would round the sum
        weight = 1 + weight.to(torch.promote_types(dtype, torch.float32))
    centred = x - x.mean(-1, keepdim=True) if centre else x
    expected = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight
    expected = expected + bias if isinstance(bias, Tensor) else expected
    _compare_norms(module(x), expected, name, module, kind)
    return NormSpec(_vector(weight), _vector(bias) if biased else None, eps, centre)


def _compare_norms(found: Tensor, expected: Tensor, name: str, module: nn.Module, kind: str) -> None:
    gap = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
    if not gap <= OWN_NORM_TOLERANCE.get(found.dtype, 2e-2):
        raise _unsupported(name, module, f"{kind} (it differs from one by {gap:.1e} of its size)")


def affine(module: nn.Module, name: str, features: int) -> Affine:
    """The map ``x W + b`` that a module computes on ``features`` inputs.

    A plain ``nn.Linear`` gives views on its parameters, and so do one in a wrapper that computes what it does and a
    class of a project's own that multiplies by its ``weight`` (GPT-2's ``Conv1D``). Any other module (a linear layer
    with a low-rank adapter, say) is evaluated on the unit vectors, once for as long as its answers stay the same, and
    accepted if it then proves to be affine.

    Args:
        module: in eval mode.
        name: its path in the model, for messages.
        features: how many inputs it takes.

    Raises:
        UnsupportedModelError: if its weights are quantised, or if it is not affine.
    """
    _refuse_quantized(module, name)
    plain = isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward
    linear = module if plain else stand_in(module, nn.Linear, features)
    if not isinstance(linear, nn.Linear):
        stored = stored_map(module, features)
        return _probe(module, name, features) if stored is None else Affine(*stored, module)
    weight = linear.weight
    if type(weight) not in (Tensor, nn.Parameter):
        raise UnsupportedModelError(
            f"the linear layer {name!r} stores its weight as a {type(weight).__name__}, not as a plain "
            "tensor: load the model in float32, float16 or bfloat16, whole on one device"
        )
    return Affine(weight.detach().t(), _vector(linear.bias), module)


def stored(module: nn.Module, parameter: str, name: str) -> Tensor:
    """A parameter of a module that is no linear layer of torch, such as the weights of all experts.

    Raises:
        UnsupportedModelError: if it is quantised, or no plain tensor.
    """
    _refuse_quantized(module, name)
    found = getattr(module, parameter)
    if type(found) not in (Tensor, nn.Parameter) or not found.is_floating_point():
        raise UnsupportedModelError(
            f"{name}.{parameter} is a {type(found).__name__}, not a plain tensor of floating-point numbers: load the "
            "model in float32, float16 or bfloat16, whole on one device"
        )
    return found.detach()


def convolution(module: nn.Module, name: str, activation: str) -> ConvolutionSpec:
    """The parameters of a convolution that keeps the number of positions.

    Args:
        module, name: as for :func:`affine`.
        activation: what follows it, by name.

    Raises:
        UnsupportedModelError: if it is something else.
    """
    _refuse_quantized(module, name)
    if not isinstance(module, nn.Conv1d) or type(module).forward is not nn.Conv1d.forward:
        raise _unsupported(name, module, "a one-dimensional convolution")
    taps = module.kernel_size[0]
    plain = (module.stride, module.dilation, module.padding_mode) == ((1,), (1,), "zeros")
    if not plain or taps % 2 == 0 or module.padding != (taps // 2,):
        raise _unsupported(name, module, "a convolution of an odd width that pads its ends with zeros")
    return ConvolutionSpec(module.weight.detach(), _vector(module.bias), module.groups, activation)


def _vector(tensor: Tensor | None) -> Tensor | None:
    """Without autograd, and without the gaps that a row of a larger tensor may have."""
    return None if tensor is None else tensor.detach().contiguous()


def _refuse_quantized(module: nn.Module, name: str) -> None:
    if type(module) is nn.Linear and type(module.weight) is nn.Parameter and module.weight.dtype in _EXACT:
        return  # nearly every map there is, and this is looked at in every call
    tensors = [*module.parameters(), *module.buffers()]
    by_type = any(
        word in f"{type(m).__module__}.{type(m).__name__}".lower() for m in module.modules() for word in QUANTIZED_WORDS
    )
    by_dtype = any(t.dtype in _PACKED or (t.is_floating_point() and t.element_size() < 2) for t in tensors)
    if by_type or by_dtype:
        dtypes = ", ".join(sorted({str(t.dtype) for t in tensors})) or "no plain tensors"
        raise UnsupportedModelError(
            f"the linear layer {name!r} is quantised ({type(module).__name__}, {dtypes}): its exact weights cannot be "
            "read, so load the model in float32, float16 or bfloat16"
        )


_EXACT = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

_PACKED = (torch.int8, torch.uint8, torch.int16, torch.int32)


def _probe(module: nn.Module, name: str, features: int) -> Affine:
    try:
        weight, bias = probe(module, features)
    except NotAffine as error:
        raise _unsupported(name, module, str(error)) from error
    except Exception as error:
        raise _unsupported(name, module, "a linear layer") from error
    return Affine(weight, bias, module)


def _unsupported(name: str, module: nn.Module, wanted: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the module {name!r} is a {type(module).__name__}, where {wanted} was expected: this model cannot be "
        "explained exactly, so it is refused"
    )
