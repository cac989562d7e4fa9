"""How a family's file names the parts of a model: by their paths, as they stand in the model's own source."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor, nn

from ...errors import UnsupportedModelError
from ..readers import (
    affine,
    convolution,
    embedding_module,
    layer_norm,
    norm_or_diagonal,
    own_layer_norm,
    plain_norm,
    rms_norm,
)
from ..spec import (
    Affine,
    AttentionSpec,
    ConvolutionSpec,
    FeedForwardSpec,
    HeadStepSpec,
    InputLimits,
    LayerSpec,
    ModelSpec,
    NormSpec,
    OpSpec,
    Positions,
    SublayerSpec,
)
from ..terms import Pooled

#: What a head reads by itself, as :class:`..spec.ModelSpec` has it.
Read = int | Literal["mean", "averaged", "each"] | Pooled | Callable[[Mapping[str, Tensor]], Tensor]

#: A module of transformers: what parts it has is known only when it runs.
Module = Any

#: Activation modules by the name of their class, as torch and transformers call them.
ACTIVATION_CLASSES = {
    "GELUActivation": "gelu",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "GELUTanh": "gelu_tanh",
    "AccurateGELUActivation": "gelu_tanh",
    "QuickGELUActivation": "quick_gelu",
    "BloomGelu": "gelu_tanh",
    "ReLU": "relu",
    "ReLUSquaredActivation": "relu2",
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "Tanh": "tanh",
}

KNOWN_ACTIVATIONS = frozenset(ACTIVATION_CLASSES.values())


def activation_name(function: object, name: str) -> str:
    """The name of an activation module or function.

    Raises:
        UnsupportedModelError: if it is none that can be linearised.
    """
    kind = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, nn.GELU):
        return "gelu_tanh" if function.approximate == "tanh" else "gelu"
    known = ACTIVATION_CLASSES.get(kind, kind if kind in ("gelu", "relu", "silu", "tanh") else None)
    if known is None:
        supported = ", ".join(sorted(KNOWN_ACTIVATIONS))
        raise UnsupportedModelError(
            f"{name} uses the activation {kind}, which cannot be linearised yet: supported are {supported}"
        )
    return known


class Parts:
    """The parts of a module by their paths below it, read as what they are for.

    Args:
        module: a model, or a part of one.
        name: its own path in the model, for messages.
        width: the size of the hidden state, ``d``.
    """

    def __init__(self, module: Module, name: str, width: int) -> None:
        self.module = module
        self.name = name
        self.width = width

    def __getitem__(self, path: str) -> Module:
        """The part at a path such as ``"attention.q_lin"``; ``AttributeError`` if there is none."""
        part = self.module
        for step in path.split("."):
            part = part[int(step)] if step.isdecimal() else getattr(part, step)
        return part

    def below(self, path: str) -> Parts:
        """The parts of a part, or these where the path is empty."""
        return Parts(self[path], self._path(path), self.width) if path else self

    def each(self, path: str) -> list[Parts]:
        """The parts of each of a list of modules."""
        return [self.below(f"{path}.{number}") for number in range(len(self[path]))]

    def affine(self, path: str, features: int | None = None) -> Affine:
        """A linear map of ``features`` inputs, ``d`` of them by default."""
        return affine(self[path], self._path(path), features or self.width)

    def norm(self, path: str) -> NormSpec:
        """A LayerNorm."""
        return layer_norm(self[path], self._path(path))

    def norm_or_diagonal(self, path: str) -> NormSpec:
        """A LayerNorm, or what MobileBERT has in its place: ``x * weight + bias``."""
        return norm_or_diagonal(self[path], self._path(path))

    def own_norm(self, path: str) -> NormSpec:
        """A LayerNorm of the project's own class."""
        return own_layer_norm(self[path], self._path(path))

    def rms_norm(self, path: str) -> NormSpec:
        """An RMSNorm."""
        return rms_norm(self[path], self._path(path))

    def one_plus_norm(self, path: str) -> NormSpec:
        """An RMSNorm that keeps its weight less one."""
        return rms_norm(self[path], self._path(path), one_plus=True)

    def plain_norm(self, path: str, eps: float = 1e-5) -> NormSpec:
        """A LayerNorm without parameters."""
        return plain_norm(self[path], self._path(path), self.width, eps)

    def activation(self, path: str) -> str:
        """An activation by its name."""
        return activation_name(self[path], self._path(path))

    def attention(
        self,
        paths: Iterable[str],
        *,
        heads: int,
        size: int | None = None,
        kv_heads: int | None = None,
        scale: float | None = None,
        causal: bool = False,
        window: int | None = None,
        positions: Positions | None = None,
        turns: int = 1,
    ) -> AttentionSpec:
        """Self-attention.

        Args:
            paths: of the maps of queries, keys, values and the output; or of one that holds the first three, one after
                the other or as ``turns`` says, and the output.
            heads: their number.
            size: of a head; ``None``: what the heads divide ``d`` into.
            kv_heads: ``None``: as many as heads.
            scale: ``None``: one over the root of the size.
            causal, window, positions: as for :class:`..spec.AttentionSpec`.
            turns: in how many equal groups the outputs of that one map come, each with its queries, keys and values.
        """
        *into, out = paths
        size, kv_heads = size or self.width // heads, kv_heads or heads
        maps = [self.affine(path) for path in into]
        if len(maps) == 1:
            q, k = heads * size // turns, kv_heads * size // turns
            maps = [maps[0].columns_of(start, stop, turns) for start, stop in ((0, q), (q, q + k), (q + k, q + 2 * k))]
        query, key, value = maps
        scale = size**-0.5 if scale is None else scale
        inner = self.affine(out, heads * size)
        return AttentionSpec(query, key, value, inner, heads, kv_heads, scale, causal, window, positions)

    def network(
        self, into: str, out: str, activation: str, gate: str | None = None, norm: str | None = None
    ) -> FeedForwardSpec:
        """A feed-forward network, plain or gated; ``activation`` is a path, or a name where there is no module;
        ``norm`` its own, where it stands beside an attention that has another."""
        first = self.affine(into)
        name = activation if activation in KNOWN_ACTIVATIONS else self.activation(activation)
        gated = None if gate is None else self.affine(gate)
        own = None if norm is None else self.norm(norm)
        return FeedForwardSpec(first, self.affine(out, first.weight.shape[1]), name, gated, own)

    def convolution(self, path: str, activation: str, *, even: bool = False) -> ConvolutionSpec:
        """A convolution over the embedding; ``activation`` is a name; perhaps of an ``even`` width."""
        return convolution(self[path], self._path(path), activation, even=even)

    def step(
        self, map_: str, activation: str | None = None, norm: str | None = None, *, features: int | None = None
    ) -> HeadStepSpec:
        """A step of a head; ``activation`` is a name, not a path."""
        return HeadStepSpec(self.affine(map_, features), activation, None if norm is None else self.norm(norm))

    def _path(self, path: str) -> str:
        return f"{self.name}.{path}" if self.name else path


def whole(model: Module, path: str = "", width: int | None = None) -> Parts:
    """The parts of a model, or of what it holds at a path; ``width`` where its configuration calls that otherwise."""
    return Parts(model, "", width or model.config.hidden_size).below(path)


def pre_norm(attend: OpSpec, feed: OpSpec, first: NormSpec | None, second: NormSpec | None) -> LayerSpec:
    """Norm, attention, add; norm, network, add."""
    return SublayerSpec((attend,), pre_norm=first), SublayerSpec((feed,), pre_norm=second)


def post_norm(attend: OpSpec, feed: OpSpec, first: NormSpec | None, second: NormSpec | None) -> LayerSpec:
    """Attention, add and norm; network, add and norm."""
    return SublayerSpec((attend,), post_norm=first), SublayerSpec((feed,), post_norm=second)


def model_spec(
    layers: list[Parts],
    describe_layer: Callable[[Parts], LayerSpec],
    head: tuple[HeadStepSpec, ...],
    limits: InputLimits,
    *,
    read: Read = 0,
    final_norm: tuple[nn.Module, NormSpec] | None = None,
    in_float32: bool = False,
) -> ModelSpec:
    """A model whose layers are all described by one function.

    Args:
        layers, head, limits, read, in_float32: as :class:`..spec.ModelSpec` has them.
        describe_layer: reads one.
        final_norm: what comes after the last of them, as a module and as it was read.

    Raises:
        UnsupportedModelError: if there are no layers.
    """
    modules, specs, states = stacked(layers, describe_layer, final_norm)
    return ModelSpec(modules, specs, head, read, limits, states, in_float32)


def stacked(
    layers: list[Parts],
    describe_layer: Callable[[Parts], LayerSpec],
    final_norm: tuple[nn.Module, NormSpec] | None = None,
) -> tuple[tuple[nn.Module, ...], tuple[LayerSpec, ...], tuple[nn.Module, ...]]:
    """The modules of layers, the layers as they are described, and the modules that give the states after them.

    Args, Raises: as for :func:`model_spec`.
    """
    if not layers:
        raise UnsupportedModelError("this model has no layers: there is nothing to decompose")
    modules, specs = tuple(layer.module for layer in layers), [describe_layer(layer) for layer in layers]
    if final_norm is None:
        return modules, tuple(specs), modules
    *before, last = specs[-1]
    specs[-1] = (*before, replace(last, post_norm=final_norm[1]))
    return modules, tuple(specs), (*modules[:-1], final_norm[0])


def stack(
    parts: Parts,
    layers: str,
    describe_layer: Callable[[Parts], LayerSpec],
    *,
    limits: InputLimits,
    norm: str | None = None,
    read_norm: Callable[[Parts, str], NormSpec] = Parts.norm,
    in_float32: bool = False,
    in_place: bool = False,
) -> ModelSpec:
    """The layers of an encoder or a decoder, and the norm after them, all by their paths.

    Args:
        parts: of it.
        layers: the path of its layers.
        describe_layer: reads one.
        norm: the path of the final norm, if there is one.
        read_norm: how that is read.
        limits, in_float32, in_place: as :class:`..spec.ModelSpec` has them.
    """
    spec = model_spec(
        parts.each(layers),
        describe_layer,
        (),
        limits,
        final_norm=None if norm is None else (parts[norm], read_norm(parts, norm)),
        in_float32=in_float32,
    )
    return replace(spec, in_place=in_place)


def plain_attention(model: Module) -> bool:
    """Whether a model attends by transformers' plain implementation, whose softmax is in float32 in most architectures,
    whatever the dtype."""
    return getattr(model.config, "_attn_implementation", None) == "eager"


def names_in_forward(model: Module) -> tuple[str, ...]:
    """What transformers' own forward of a class looks at: the code of a version says it, and nothing that it holds."""
    own: Any = next(cls for cls in type(model).__mro__ if cls.__module__.startswith("transformers."))
    names: tuple[str, ...] = inspect.unwrap(own.forward).__code__.co_names
    return names


def embedding_limits(
    embeddings: Parts,
    words: str = "word_embeddings",
    positions: str | None = "position_embeddings",
    types: str | None = "token_type_embeddings",
    *,
    most: int | None = None,
) -> InputLimits:
    """What a model has embeddings for.

    Args:
        embeddings: the module that holds them.
        words, positions, types: their paths; what is not there, or ``None``, is not asked. Where positions have a
            padding index, their numbers start after it.
        most: how many positions it takes, where nothing stores them.
    """

    def find(path: str | None) -> nn.Embedding | None:
        module = None if path is None else getattr(embeddings.module, path, None)
        return None if module is None else embedding_module(module, f"{embeddings.name}.{path}")

    sizes = {}
    for name, path in (("input_ids", words), ("token_type_ids", types), ("position_ids", positions)):
        found = find(path)
        if found is not None:
            sizes[name] = found.num_embeddings
    stored = find(positions)
    if stored is not None:
        most = stored.num_embeddings - (0 if stored.padding_idx is None else stored.padding_idx + 1)
    return InputLimits(most, sizes)
