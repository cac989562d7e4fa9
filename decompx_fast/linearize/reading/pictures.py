"""Vision Transformers: a picture is cut into patches, and each patch is a position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from ..spec import (
    AttentionSpec,
    FeedForwardSpec,
    HeadStepSpec,
    InputLimits,
    LayerSpec,
    ModelSpec,
    PictureLimits,
    SublayerSpec,
)
from .parts import Module, Parts, Read, model_spec, plain_attention

#: The name of the position of the class in all of these models.
CLASS = "[CLS]"

ATTENTION = ["attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"]

NESTED = ("attention.query", "attention.key", "attention.value", "output.dense")
PLAIN = ("mlp.fc1", "mlp.fc2", "mlp.activation_fn")


def layer_of(
    layer: Parts,
    norms: tuple[str, str],
    attention: list[str] = ATTENTION,
    scales: tuple[Any, Any] = (None, None),
    positions: Callable[..., Any] | None = None,
    causal: bool = False,
) -> LayerSpec:
    """Norm, attention, scale, add; norm, network, scale, add.

    Args:
        layer: its parts.
        norms: paths.
        attention: paths of its maps.
        scales: ``[d]`` of the two branches; what is no tensor is no scale.
        positions, causal: as for :class:`..spec.AttentionSpec`.
    """
    module = layer[attention[0].split(".")[0]]
    heads = getattr(module, "num_attention_heads", None) or module.num_heads
    attend = layer.attention(attention, heads=heads, size=module.head_dim, positions=positions, causal=causal)
    return scaled_layer(layer, norms, attend, layer.network(*PLAIN), scales)


def scaled_layer(
    layer: Parts, norms: tuple[str, str], attend: AttentionSpec, feed: FeedForwardSpec, scales: tuple[Any, Any]
) -> LayerSpec:
    """The same of an attention and a network that were read already."""
    first, second = (scale.detach() if isinstance(scale, Tensor) else None for scale in scales)
    return (
        SublayerSpec((replace(attend, out=replace(attend.out, gain=first)),), pre_norm=layer.norm(norms[0])),
        SublayerSpec((replace(feed, out=replace(feed.out, gain=second)),), pre_norm=layer.norm(norms[1])),
    )


def pair(size: Any) -> tuple[int, int]:
    """``(height, width)`` of what may be one number."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def pictures_of(patches: Any, special: tuple[str, ...], *, fixed: bool = True) -> PictureLimits:
    """What pictures a model takes, as the module that holds its sizes has it.

    Args:
        patches: with ``patch_size`` and ``image_size``.
        special: the names of the positions before the patches.
        fixed: whether each position has an embedding: transformers interpolates those of square grids only.
    """
    patch, size = pair(patches.patch_size), pair(patches.image_size)
    channels = getattr(patches, "num_channels", None) or patches.config.num_channels
    rows, columns = size[0] // patch[0], size[1] // patch[1]
    return PictureLimits(patch, size, channels, special, not fixed or rows == columns)


def interpolated(inputs: Mapping[str, Tensor], size: tuple[int, int]) -> dict[str, Any]:
    """What these models must be called with to take pictures of another size than theirs."""
    return {} if tuple(inputs["pixel_values"].shape[-2:]) == size else {"interpolate_pos_encoding": True}


def picture_model(
    model: Module,
    base: str,
    layers: str,
    describe: Callable[[Parts], LayerSpec],
    head: Callable[[Parts], tuple[HeadStepSpec, ...]],
    picture: PictureLimits,
    *,
    width: int,
    read: Read = 0,
    final_norm: str | None = "layernorm",
    asks: bool = True,
) -> ModelSpec:
    """One of these models.

    Args:
        model: the whole of it.
        base: where its encoder is.
        layers: where the layers are in the encoder.
        describe: reads one.
        head: reads the steps of the head.
        picture: what pictures it takes.
        width: of a hidden state.
        read: what the head reads.
        final_norm: where in the encoder.
        asks: whether it interpolates only where it is asked to.
    """
    parts = Parts(model, "", width)
    norm = None if final_norm is None else f"{base}.{final_norm}"
    spec = model_spec(
        [parts.below(f"{base}.{layers}.{n}") for n in range(len(parts[f"{base}.{layers}"]))],
        describe,
        head(parts),
        InputLimits(None, {}, picture),
        read=read,
        final_norm=None if norm is None else (parts[norm], parts.norm(norm)),
        in_float32=plain_attention(model),
    )
    return replace(spec, given=partial(interpolated, size=picture.size) if asks else None)


def classifier(parts: Parts) -> tuple[HeadStepSpec, ...]:
    """One map."""
    return (parts.step("classifier"),)


def nested_attention(layer: Parts, positions: Callable[..., Any] | None = None) -> AttentionSpec:
    """An attention whose maps are named as BERT's, in modules below it."""
    paths = [f"attention.{name}" for name in NESTED]
    return layer.attention(paths, heads=layer["attention.attention"].num_attention_heads, positions=positions)


vit_layer = partial(layer_of, norms=("layernorm_before", "layernorm_after"))

clip_layer = partial(
    layer_of,
    norms=("layer_norm1", "layer_norm2"),
    attention=["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"],
)
