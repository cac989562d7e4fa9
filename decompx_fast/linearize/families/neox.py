"""Decoders of LayerNorms and rotary positions: GPT-NeoX, Persimmon, Phi, StableLM, StarCoder2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..spec import AttentionSpec, Context, FeedForwardSpec, LayerSpec, ModelSpec, NormSpec, Positions, SublayerSpec
from .decoder import heads, stack
from .parts import Parts, embedding_limits, plain_attention, rotary_positions


def neox_layer(layer: Parts) -> LayerSpec:
    """Attention and network side by side, each after a norm of its own; or one after the other."""
    heads = layer["attention.config"].num_attention_heads
    attend = layer.attention(
        ["attention.query_key_value", "attention.dense"],
        heads=heads,
        causal=True,
        positions=rotary_positions,
        turns=heads,
    )
    network = partial(layer.network, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", "mlp.act")
    before = layer.norm("input_layernorm")
    if layer["use_parallel_residual"]:
        return (SublayerSpec((attend, network(norm="post_attention_layernorm")), pre_norm=before),)
    return (
        SublayerSpec((attend,), pre_norm=before),
        SublayerSpec((network(),), pre_norm=layer.norm("post_attention_layernorm")),
    )


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


def _stacked(norms: Parts, path: str) -> NormSpec:
    """A norm of each head as one: vectors ``[h, 1, v]``, small copies."""
    each = [norms.norm(f"{path}.{number}") for number in range(len(norms[path]))]
    vectors: dict[str, Any] = {}
    for name in ("weight", "bias"):
        found = [getattr(norm, name) for norm in each]
        vectors[name] = None if found[0] is None else torch.stack(found).unsqueeze(1)
    return NormSpec(vectors["weight"], vectors["bias"], each[0].eps)


def _positions(layer: Parts, attention: str) -> Positions:
    """Rotary positions, perhaps after norms of queries and keys."""
    if not layer[f"{attention}.qk_layernorm"]:
        return rotary_positions
    names = [f"{attention}.{name}_layernorm" for name in "qk"]
    if hasattr(layer[names[0]], "norms"):
        found = tuple(_stacked(layer, f"{name}.norms") for name in names)
    else:
        found = tuple(layer.norm(name) for name in names)
    return partial(normed_rotary_positions, norms=(found[0], found[1]))


def _attention(layer: Parts, out: str, positions: Positions, window: int | None = None) -> AttentionSpec:
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


def _one_after_the_other(layer: Parts, attend: AttentionSpec, feed: FeedForwardSpec) -> LayerSpec:
    return (
        SublayerSpec((attend,), pre_norm=layer.norm("input_layernorm")),
        SublayerSpec((feed,), pre_norm=layer.norm("post_attention_layernorm")),
    )


def persimmon_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, network, add. Queries, keys and values take turns in one map."""
    heads = layer["self_attn.num_heads"]
    attend = layer.attention(
        ["self_attn.query_key_value", "self_attn.dense"],
        heads=heads,
        causal=True,
        positions=_positions(layer, "self_attn"),
        turns=heads,
    )
    return _one_after_the_other(layer, attend, layer.network("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", "mlp.act"))


def phi_layer(layer: Parts) -> LayerSpec:
    """One norm, then attention and network side by side."""
    attend = _attention(layer, "dense", _positions(layer, "self_attn"))
    feed = layer.network("mlp.fc1", "mlp.fc2", "mlp.activation_fn")
    return (SublayerSpec((attend, feed), pre_norm=layer.norm("input_layernorm")),)


def stablelm_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, gated network, add; or both side by side after one norm."""
    attention = layer["self_attn"]
    attend = layer.attention(
        [f"self_attn.{name}_proj" for name in "qkvo"],
        heads=attention.num_heads,
        kv_heads=attention.num_key_value_heads,
        causal=True,
        positions=_positions(layer, "self_attn"),
    )
    feed = layer.network("mlp.up_proj", "mlp.down_proj", "mlp.act_fn", gate="mlp.gate_proj")
    if layer["use_parallel_residual"]:
        return (SublayerSpec((attend, feed), pre_norm=layer.norm("input_layernorm")),)
    return _one_after_the_other(layer, attend, feed)


def starcoder2_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, perhaps in a window, add; norm, network, add."""
    attend = _attention(layer, "o_proj", rotary_positions, layer["self_attn.config"].sliding_window)
    return _one_after_the_other(layer, attend, layer.network("mlp.c_fc", "mlp.c_proj", "mlp.act"))


def _model(parts: Parts, describe_layer: Callable[[Parts], LayerSpec], words: str, norm: str) -> ModelSpec:
    limits = embedding_limits(parts, words, None, None, most=parts.module.config.max_position_embeddings)
    return stack(parts, "layers", describe_layer, norm=norm, limits=limits, in_float32=plain_attention(parts.module))


neox = partial(_model, describe_layer=neox_layer, words="embed_in", norm="final_layer_norm")
persimmon = partial(_model, describe_layer=persimmon_layer, words="embed_tokens", norm="final_layernorm")
phi = partial(_model, describe_layer=phi_layer, words="embed_tokens", norm="final_layernorm")
stablelm = partial(_model, describe_layer=stablelm_layer, words="embed_tokens", norm="norm")
starcoder2 = partial(_model, describe_layer=starcoder2_layer, words="embed_tokens", norm="norm")

FAMILIES = {
    **heads("GPTNeoX", neox, "gpt_neox", tokens="classifier", spans=True),
    **heads("Persimmon", persimmon, "model", tokens="score"),
    **heads("Phi", phi, "model", tokens="score"),
    **heads("StableLm", stablelm, "model", tokens="score"),
    **heads("Starcoder2", starcoder2, "model", tokens="score"),
}
