"""Encoders of models that compare texts and pictures: what several share."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..readers import packed_attention
from ..spec import (
    Affine,
    AttentionSpec,
    Context,
    InputLimits,
    LayerSpec,
    ModelSpec,
    StateMapSpec,
    SublayerSpec,
)
from .parts import Module, Parts, Read, model_spec, plain_attention
from .pictures import PLAIN, clip_layer


def text_tower(model: Module, read: Read, *, causal: bool, padded: bool, after: str) -> ModelSpec:
    """An encoder of texts; ``after`` is the path of the map after it."""
    parts, embeddings = Parts(model, "", model.config.hidden_size), model.encoder.embeddings
    most = embeddings.position_embedding.num_embeddings
    return model_spec(
        parts.each("encoder.encoder.layers"),
        partial(clip_layer, causal=causal),
        (parts.step(after),),
        InputLimits(most, {"input_ids": embeddings.token_embedding.num_embeddings}, padded=padded),
        read=read,
        final_norm=(parts["encoder.final_layer_norm"], parts.norm("encoder.final_layer_norm")),
        in_float32=plain_attention(model),
    )


def pooling_layer(pooling: Parts) -> LayerSpec:
    """The attention of one query that is the same for all inputs, added to nothing, and a network.

    Every position has that query, so that the state is the same at each.
    """
    module, width = pooling["attention"], pooling.width
    query, key, value, out = packed_attention(module, f"{pooling.name}.attention")
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
