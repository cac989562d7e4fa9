"""Decoders of LayerNorms and rotary positions, perhaps after norms of queries and keys: what several of them share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..spec import AttentionSpec, Context, FeedForwardSpec, LayerSpec, ModelSpec, NormSpec, Positions
from .parts import Parts, embedding_limits, plain_attention, pre_norm, stack
from .positions import rotary_positions


def normed_rotary_positions(
    query: Tensor, key: Tensor, context: Context, *, norms: tuple[NormSpec, NormSpec]
) -> tuple[Tensor, Tensor, None]:
    """Queries and keys of each head after a LayerNorm, whose weights are ``[v]`` or ``[h, 1, v]``, then rotated."""
    query, key = (_normed(norm, x) for norm, x in zip(norms, (query, key), strict=True))
    return rotary_positions(query, key, context)


def _normed(norm: NormSpec, x: Tensor) -> Tensor:
    x = F.layer_norm(x, x.shape[-1:], eps=norm.eps)
    x = x if norm.weight is None else x * norm.weight.to(x.dtype)
    return x if norm.bias is None else x + norm.bias.to(x.dtype)


def _of_each_head(norms: Parts, path: str) -> NormSpec:
    """A norm of each head as one: vectors ``[h, 1, v]``, small copies."""
    each = [norms.norm(f"{path}.{number}") for number in range(len(norms[path]))]
    vectors: dict[str, Any] = {}
    for name in ("weight", "bias"):
        found = [getattr(norm, name) for norm in each]
        vectors[name] = None if found[0] is None else torch.stack(found).unsqueeze(1)
    return NormSpec(vectors["weight"], vectors["bias"], each[0].eps)


def head_positions(layer: Parts, attention: str) -> Positions:
    """Rotary positions, perhaps after norms of queries and keys."""
    if not layer[f"{attention}.qk_layernorm"]:
        return rotary_positions
    names = [f"{attention}.{name}_layernorm" for name in "qk"]
    if hasattr(layer[names[0]], "norms"):
        found = tuple(_of_each_head(layer, f"{name}.norms") for name in names)
    else:
        found = tuple(layer.norm(name) for name in names)
    return partial(normed_rotary_positions, norms=(found[0], found[1]))


def attention(layer: Parts, out: str, positions: Positions, window: int | None = None) -> AttentionSpec:
    """Of a layer; ``out`` is what its last map is called."""
    config = layer["self_attn.config"]
    return layer.attention(
        [*(f"self_attn.{name}_proj" for name in "qkv"), f"self_attn.{out}"],
        heads=config.num_attention_heads,
        size=layer["self_attn.head_dim"],
        kv_heads=config.num_key_value_heads,
        causal=True,
        positions=positions,
        window=window,
    )


def one_after_the_other(layer: Parts, attend: AttentionSpec, feed: FeedForwardSpec) -> LayerSpec:
    """Norm, attention, add; norm, network, add."""
    return pre_norm(attend, feed, layer.norm("input_layernorm"), layer.norm("post_attention_layernorm"))


def decoder(parts: Parts, describe_layer: Callable[[Parts], LayerSpec], words: str, norm: str) -> ModelSpec:
    """The layers and the norm after them; ``words`` is the path of the embedding."""
    limits = embedding_limits(parts, words, None, None, most=parts.module.config.max_position_embeddings)
    return stack(parts, "layers", describe_layer, norm=norm, limits=limits, in_float32=plain_attention(parts.module))
