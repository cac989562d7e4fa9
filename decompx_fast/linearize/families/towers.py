"""Models that compare texts and pictures by a vector of each: CLIP, MetaCLIP 2, SigLIP.

Each of the two encoders is described by itself; the map after it is the last step of its head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from ...errors import InputError, UnsupportedModelError
from ..reading.parts import Module, Parts, Read, model_spec, plain_attention
from ..reading.pictures import CLASS, PLAIN, clip_layer, picture_model, pictures_of
from ..spec import (
    Affine,
    AttentionSpec,
    Context,
    HeadStepSpec,
    InputLimits,
    LayerSpec,
    ModelSpec,
    StateMapSpec,
    SublayerSpec,
)


def end_of_text(inputs: Mapping[str, Tensor], *, token: int | None) -> Tensor:
    """The position of the first token that ends a text, ``[b]``; ``None``: of the highest number, which that token has
    in the vocabularies of old configurations."""
    ids = inputs["input_ids"]
    return ids.argmax(-1) if token is None else (ids == token).int().argmax(-1)


def text_tower(model: Module, read: Read, *, causal: bool, padded: bool, after: str) -> ModelSpec:
    """An encoder of texts; ``after`` is the path of the map after it."""
    parts, embeddings = Parts(model, "", model.config.hidden_size), model.encoder.embeddings
    most = embeddings.position_embedding.num_embeddings
    spec = model_spec(
        parts.each("encoder.encoder.layers"),
        partial(clip_layer, causal=causal),
        (parts.step(after),),
        InputLimits(most, {"input_ids": embeddings.token_embedding.num_embeddings}, padded=padded),
        read=read,
        final_norm=(parts["encoder.final_layer_norm"], parts.norm("encoder.final_layer_norm")),
        in_float32=plain_attention(model),
    )
    return spec


def clip_text(model: Module) -> ModelSpec:
    """``CLIPTextModel``: a causal encoder, read at the end of the text."""
    token = model.encoder.eos_token_id
    by_number = token == 2 and type(model.encoder).__name__.startswith("CLIP")
    read = partial(end_of_text, token=None if by_number else token)
    return text_tower(model, read, causal=True, padded=False, after="projection")


def siglip_text(model: Module) -> ModelSpec:
    """``SiglipTextModel``: read at the last position, be it padding, which it attends as it does any other."""
    return text_tower(model, -1, causal=False, padded=True, after="encoder.head")


def clip_picture(model: Module) -> ModelSpec:
    """``CLIPVisionModel``: a norm and a map on the position of the class."""

    def head(parts: Parts) -> tuple[HeadStepSpec, ...]:
        return (HeadStepSpec(norm=parts.norm("encoder.post_layernorm")), parts.step("projection"))

    picture = pictures_of(model.encoder.embeddings, (CLASS,))
    width = model.config.hidden_size
    return picture_model(model, "encoder", "encoder.layers", clip_layer, head, picture, width=width, final_norm=None)


def siglip_picture(model: Module) -> ModelSpec:
    """``SiglipVisionModel``: a pooling by the attention of one learned query, which is one more layer."""
    if not model.encoder.use_head:
        raise UnsupportedModelError("this SigLIP pools no patches (vision_use_head=False), so it gives no vector")
    spec = picture_model(
        model,
        "encoder",
        "encoder.layers",
        clip_layer,
        lambda parts: (HeadStepSpec(),),
        pictures_of(model.encoder.embeddings, ()),
        width=model.config.hidden_size,
        final_norm="post_layernorm",
    )
    pooling = Parts(model.encoder.head, "encoder.head", model.config.hidden_size)
    return replace(
        spec,
        layer_modules=(*spec.layer_modules, pooling.module),
        layers=(*spec.layers, pooling_layer(pooling)),
        state_modules=(*spec.state_modules, pooling.module),
    )


def pooling_layer(pooling: Parts) -> LayerSpec:
    """The attention of one query that is the same for all inputs, added to nothing, and a network.

    Every position has that query, so that the state is the same at each.
    """
    module, width = pooling["attention"], pooling.width
    query, key, value, out = attention_maps(module, f"{pooling.name}.attention")
    heads = module.num_heads
    positions = partial(learned_query, probe=pooling["probe"].detach().flatten(), query_map=query)
    attend = AttentionSpec(query, key, value, out, heads, heads, (width // heads) ** -0.5, positions=positions)
    nothing = Affine(torch.zeros(width, width, dtype=value.weight.dtype, device=value.weight.device), None)
    return (
        SublayerSpec((StateMapSpec("narrow", nothing),)),
        SublayerSpec((attend,), reads_wide=True),
        SublayerSpec((pooling.network(*PLAIN),), pre_norm=pooling.norm("layernorm")),
    )


def learned_query(
    query: Tensor, key: Tensor, context: Context, *, probe: Tensor, query_map: Affine
) -> tuple[Tensor, Tensor, None]:
    """The query of the vector ``probe`` ``[d]`` at each position, in place of its own ``[b, h, i, v]``."""
    own = query_map.to(query.dtype)(probe.to(query.dtype))
    return own.view(1, query.shape[1], 1, -1).expand_as(query), key, None


def attention_maps(module: nn.Module, name: str) -> tuple[Affine, Affine, Affine, Affine]:
    """The maps of queries, keys, values and output of torch's own attention, views on its parameters.

    Raises:
        UnsupportedModelError: if it is another module, or has more than these, or they are no plain tensors.
    """
    plain = type(module) is nn.MultiheadAttention and module._qkv_same_embed_dim
    if not plain or module.bias_k is not None or module.add_zero_attn:
        raise UnsupportedModelError(
            f"the module {name!r} is a {type(module).__name__}, where torch's MultiheadAttention was expected, with "
            "biases of its maps alone: this model cannot be explained exactly, so it is refused"
        )
    tensors = module.in_proj_weight, module.in_proj_bias, module.out_proj.weight, module.out_proj.bias
    found = [one for one in tensors if one is not None]
    if any(type(one) not in (Tensor, nn.Parameter) or not one.is_floating_point() for one in found):
        raise UnsupportedModelError(
            f"the weights of {name!r} are no plain tensors of floating-point numbers: load the model in float32, "
            "float16 or bfloat16, whole on one device"
        )
    weight, bias, out, out_bias = (None if one is None else one.detach() for one in tensors)
    packed = Affine(weight.t(), bias)
    query, key, value = (packed.part(n, 3) for n in range(3))
    return query, key, value, Affine(out.t(), out_bias)


#: What describes a tower, by the class of its encoder.
ENCODERS: dict[str, Callable[[Module], ModelSpec]] = {
    "CLIPTextModel": clip_text,
    "CLIPVisionModel": clip_picture,
    "MetaClip2TextModel": clip_text,
    "MetaClip2VisionModel": clip_picture,
    "SiglipTextModel": siglip_text,
    "SiglipVisionModel": siglip_picture,
}

#: The models that are made of two such towers.
PAIRED = ("CLIPModel", "MetaClip2Model", "SiglipModel")


def tower(model: Module) -> ModelSpec:
    """:class:`..towers.Tower`.

    Raises:
        UnsupportedModelError: for an encoder that is none of :data:`ENCODERS`.
    """
    for cls in type(model.encoder).__mro__:
        if cls.__name__ in ENCODERS:
            return ENCODERS[cls.__name__](model)
    raise UnsupportedModelError(
        f"{type(model.encoder).__name__} is no encoder that can be explained: supported are "
        f"{', '.join(sorted(ENCODERS))}"
    )


def two_towers(model: Module) -> ModelSpec:
    """Refuse :class:`..towers.TwoTowers` as one model.

    Raises:
        InputError: says what it is for.
    """
    raise InputError(
        f"{type(model.model).__name__} compares texts with pictures, by an encoder of each, and has no logits of an "
        "input by itself: use similarity(text, picture)"
    )


TOWERS: dict[str, Callable[[Module], ModelSpec]] = {"Tower": tower, "TwoTowers": two_towers}
