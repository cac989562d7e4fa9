"""Vision Transformers that classify pictures: a picture is cut into patches, and each patch is a position.

ViT, ViT-MSN, I-JEPA, DeiT with one head and with two, DINOv2 with and without registers, BEiT, Data2Vec, the vision
towers of CLIP, MetaCLIP 2 and SigLIP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..spec import (
    Affine,
    AttentionSpec,
    Context,
    FeedForwardSpec,
    HeadStepSpec,
    InputLimits,
    LayerSpec,
    ModelSpec,
    PictureLimits,
    SublayerSpec,
)
from ..terms import Pooled
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


def vit(model: Module) -> ModelSpec:
    """``ViTForImageClassification`` and ``ViTMSNForImageClassification``: a classifier on the position of the class."""
    picture = pictures_of(model.vit.embeddings.patch_embeddings, (CLASS,))
    return picture_model(model, "vit", "layers", vit_layer, classifier, picture, width=model.config.hidden_size)


def ijepa(model: Module) -> ModelSpec:
    """``IJepaForImageClassification``: a classifier on the mean of the patches, which are all that there is."""
    picture = pictures_of(model.ijepa.embeddings.patch_embeddings, ())
    width = model.config.hidden_size
    return picture_model(model, "ijepa", "layers", vit_layer, classifier, picture, width=width, read="mean")


def deit(model: Module) -> ModelSpec:
    """``DeiTForImageClassification``: the same, with a second position that no head reads."""
    return deit_body(model, classifier)


def joined(first: Affine, second: Affine) -> Affine:
    """The mean of two maps, as one of what they read, one after the other: ``[x, y] [W; V] / 2 + (b + c) / 2``."""
    assert first.bias is not None and second.bias is not None
    return Affine(torch.cat((first.weight, second.weight)) / 2, (first.bias + second.bias) / 2)


def deit_with_teacher(model: Module) -> ModelSpec:
    """``DeiTForImageClassificationWithTeacher``: the mean of the heads of class and teacher."""

    def head(parts: Parts) -> tuple[HeadStepSpec, ...]:
        return (HeadStepSpec(joined(parts.affine("cls_classifier"), parts.affine("distillation_classifier"))),)

    read = Pooled(((0, 1), (1, 2)))
    return replace(deit_body(model, head), read=read)


def deit_body(model: Module, head: Callable[[Parts], tuple[HeadStepSpec, ...]]) -> ModelSpec:
    """DeiT with some head."""
    picture = pictures_of(model.deit.embeddings.patch_embeddings, (CLASS, "[DIST]"))
    return picture_model(model, "deit", "layers", vit_layer, head, picture, width=model.config.hidden_size)


def dinov2_layer(layer: Parts) -> LayerSpec:
    """The same with scales; the network may be gated. Earlier versions of transformers name and nest the modules
    otherwise, and store gates and values as one."""
    attention, network = layer["attention"], layer["mlp"]
    if hasattr(attention, "q_proj"):
        heads = getattr(attention, "num_attention_heads", None) or attention.num_heads
        attend = layer.attention(ATTENTION, heads=heads, size=attention.head_dim)
    else:
        attend = nested_attention(layer)
    if hasattr(network, "gate_proj"):
        feed = layer.network("mlp.up_proj", "mlp.down_proj", "mlp.act_fn", "mlp.gate_proj")
    elif hasattr(network, "weights_in"):
        both = layer.affine("mlp.weights_in")
        gate, value = both.part(0, 2), both.part(1, 2)
        feed = FeedForwardSpec(value, layer.affine("mlp.weights_out", value.weight.shape[1]), "silu", gate)
    else:
        activation = "mlp.activation_fn" if hasattr(network, "activation_fn") else "mlp.activation"
        feed = layer.network("mlp.fc1", "mlp.fc2", activation)
    scales = layer["layer_scale1.lambda1"], layer["layer_scale2.lambda1"]
    return scaled_layer(layer, ("norm1", "norm2"), attend, feed, scales)


def dinov2(model: Module, base: str = "dinov2") -> ModelSpec:
    """``Dinov2ForImageClassification``: a classifier on the position of the class and the mean of the patches."""
    config = model.config
    registers = getattr(config, "num_register_tokens", 0)
    special = (CLASS, *(f"[REG{n}]" for n in range(registers)))
    picture = pictures_of(getattr(model, base).embeddings.patch_embeddings, special)
    return picture_model(
        model,
        base,
        "encoder.layer",
        dinov2_layer,
        lambda parts: (parts.step("classifier", features=2 * config.hidden_size),),
        picture,
        width=config.hidden_size,
        read=Pooled(((0, 1), (len(special), None))),
        asks=False,
    )


def beit_positions(
    query: Tensor, key: Tensor, context: Context, *, tables: list[nn.Module], patch: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Relative positions of patches, by tables of the layer and of all layers; ``resolution`` is the picture's."""
    height, width = context["resolution"]
    window = height // patch[0], width // patch[1]
    biases = [table(window).detach().to(query.dtype) for table in tables]
    return query, key, sum(biases[1:], biases[0]) if biases else None


def beit(model: Module) -> ModelSpec:
    """``BeitForImageClassification``."""
    shared = model.beit.shared_position_bias

    def layer(parts: Parts, picture: PictureLimits) -> LayerSpec:
        tables = [table for table in (shared, parts["relative_position_bias"]) if table is not None]
        positions = partial(beit_positions, tables=tables, patch=picture.patch)
        return vit_layer(parts, scales=(parts["lambda_1"], parts["lambda_2"]), positions=positions)

    return beit_model(model, "beit", "layers", layer)


def data2vec(model: Module) -> ModelSpec:
    """``Data2VecVisionForImageClassification``: BEiT by other names."""
    shared = getattr(model.data2vec_vision.encoder, "relative_position_bias", None)

    def layer(parts: Parts, picture: PictureLimits) -> LayerSpec:
        own = getattr(parts["attention.attention"], "relative_position_bias", None)
        tables = [table for table in (shared, own) if table is not None]
        attend = nested_attention(parts, partial(beit_positions, tables=tables, patch=picture.patch))
        feed = parts.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
        norms = "layernorm_before", "layernorm_after"
        return scaled_layer(parts, norms, attend, feed, (parts["lambda_1"], parts["lambda_2"]))

    return beit_model(model, "data2vec_vision", "encoder.layer", layer)


def beit_model(model: Module, base: str, layers: str, layer: Callable[..., LayerSpec]) -> ModelSpec:
    """A norm and a classifier on the mean of the patches, or a classifier on the class; ``layer`` reads one of the
    ``layers`` of ``base``."""
    config, embeddings = model.config, getattr(model, base).embeddings
    picture = pictures_of(embeddings.patch_embeddings, (CLASS,), fixed=embeddings.position_embeddings is not None)

    def head(parts: Parts) -> tuple[HeadStepSpec, ...]:
        norm = (HeadStepSpec(norm=parts.norm(f"{base}.pooler.layernorm")),) if config.use_mean_pooling else ()
        return (*norm, parts.step("classifier"))

    mean = config.use_mean_pooling
    return picture_model(
        model,
        base,
        layers,
        partial(layer, picture=picture),
        head,
        picture,
        width=config.hidden_size,
        read=Pooled(((1, None),)) if mean else 0,
        final_norm=None if mean else "layernorm",
        asks=False,
    )


def clip(model: Module) -> ModelSpec:
    """``CLIPForImageClassification`` and MetaCLIP 2's: a classifier on the mean of the patches, without a norm before
    it."""
    picture = pictures_of(model.vision_model.embeddings, (CLASS,))
    return picture_model(
        model,
        "vision_model",
        "encoder.layers",
        clip_layer,
        classifier,
        picture,
        width=model.config.vision_config.hidden_size,
        read=Pooled(((1, None),)),
        final_norm=None,
    )


def siglip(model: Module) -> ModelSpec:
    """``SiglipForImageClassification``: a classifier on the mean of the patches, which are all that there is."""
    picture = pictures_of(model.vision_model.embeddings, ())
    return picture_model(
        model,
        "vision_model",
        "encoder.layers",
        clip_layer,
        classifier,
        picture,
        width=model.config.vision_config.hidden_size,
        read="mean",
        final_norm="post_layernorm",
    )


FAMILIES: dict[str, Callable[[Any], ModelSpec]] = {
    "BeitForImageClassification": beit,
    "CLIPForImageClassification": clip,
    "Data2VecVisionForImageClassification": data2vec,
    "DeiTForImageClassification": deit,
    "DeiTForImageClassificationWithTeacher": deit_with_teacher,
    "Dinov2ForImageClassification": dinov2,
    "Dinov2WithRegistersForImageClassification": partial(dinov2, base="dinov2_with_registers"),
    "IJepaForImageClassification": ijepa,
    "MetaClip2ForImageClassification": clip,
    "SiglipForImageClassification": siglip,
    "ViTForImageClassification": vit,
    "ViTMSNForImageClassification": vit,
}
