"""Decoders whose attention falls with the distance (ALiBi): BLOOM, MPT; and Falcon, which may have rotary positions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from ...errors import UnsupportedModelError
from ..spec import (
    AttentionSpec,
    Context,
    FeedForwardSpec,
    InputLimits,
    LayerSpec,
    ModelSpec,
    Positions,
    SublayerSpec,
)
from .decoder import heads, stack
from .parts import Parts, embedding_limits, rotary_positions


def alibi(query: Tensor, key: Tensor, context: Context, *, factor: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """What BLOOM and Falcon add to the logits, which depends on the attended position alone: ``alibi``, of all inputs
    and heads, ``[(b h), 1, j]`` or ``[b, h, 1, j]``. In a row only its differences count."""
    b, h, n, _ = query.shape
    return query, key, (context["alibi"].reshape(b, h, 1, n) * factor).to(query.dtype)


def mpt_alibi(query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
    """The same in MPT: ``position_bias`` ``[h, 1, most]``, of which the last are of this text."""
    return query, key, context["position_bias"][None, ..., -key.shape[2] :].to(query.dtype)


def bloom_ops(layer: Parts) -> tuple[AttentionSpec, FeedForwardSpec]:
    """Attention and network; queries, keys and values take turns in one map."""
    attention = layer["self_attention"]
    if attention.pretraining_tp > 1 and attention.slow_but_exact:
        raise UnsupportedModelError(
            f"{layer.name} multiplies in slices and leaves biases out (slow_but_exact with pretraining_tp="
            f"{attention.pretraining_tp}): set slow_but_exact=False in its configuration"
        )
    attend = layer.attention(
        ["self_attention.query_key_value", "self_attention.dense"],
        heads=attention.num_heads,
        causal=True,
        positions=alibi,
        turns=attention.num_heads,
    )
    return attend, layer.network("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", "mlp.gelu_impl")


def bloom_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, network, add."""
    attend, feed = bloom_ops(layer)
    return (
        SublayerSpec((attend,), pre_norm=layer.norm("input_layernorm")),
        SublayerSpec((feed,), pre_norm=layer.norm("post_attention_layernorm")),
    )


def bloom_normed_layer(layer: Parts) -> LayerSpec:
    """The same where what is normed is added to, and not what was before: the norm ends the sublayer before it."""
    attend, feed = bloom_ops(layer)
    return (SublayerSpec((attend,), post_norm=layer.norm("post_attention_layernorm")), SublayerSpec((feed,)))


def bloom(parts: Parts) -> ModelSpec:
    """BLOOM, whose softmax computes in float32."""
    limits = embedding_limits(parts, positions=None)
    after_norm = parts.module.config.apply_residual_connection_post_layernorm
    describe = bloom_normed_layer if after_norm else bloom_layer
    spec = stack(parts, "h", describe, norm="ln_f", limits=limits, in_float32=True)
    return _shifted(spec, parts) if after_norm else spec


def _shifted(spec: ModelSpec, parts: Parts) -> ModelSpec:
    """With the stream cut after the norm that begins a layer: the first belongs to the embedding, each other one to
    the layer before it."""
    layers, count = list(spec.layers), len(spec.layers)
    for number in range(count - 1):
        *before, last = layers[number]
        layers[number] = (*before, replace(last, post_norm=parts.norm(f"h.{number + 1}.input_layernorm")))
    return replace(
        spec,
        layers=tuple(layers),
        layer_modules=tuple(parts[f"h.{number}.self_attention"] for number in range(count)),
        state_modules=(*(parts[f"h.{number}.input_layernorm"] for number in range(1, count)), parts["ln_f"]),
    )


def mpt_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, network, add; without biases."""
    attention = layer["attn"]
    if attention.clip_qkv:
        raise UnsupportedModelError(
            f"{layer.name} clamps its values (attn_config.clip_qkv={attention.clip_qkv}), which is no linear map: this "
            "model cannot be explained exactly"
        )
    attend = layer.attention(
        ["attn.Wqkv", "attn.out_proj"],
        heads=attention.n_heads,
        scale=attention.softmax_scale,
        causal=True,
        positions=mpt_alibi,
    )
    feed = layer.network("ffn.up_proj", "ffn.down_proj", "ffn.act")
    return (
        SublayerSpec((attend,), pre_norm=layer.norm("norm_1")),
        SublayerSpec((feed,), pre_norm=layer.norm("norm_2")),
    )


def mpt(parts: Parts) -> ModelSpec:
    """MPT, whose softmax computes in float32."""
    limits = embedding_limits(parts, "wte", None, None, most=parts.module.config.max_seq_len)
    return stack(parts, "blocks", mpt_layer, norm="norm_f", limits=limits, in_float32=True)


def falcon_attention(layer: Parts) -> AttentionSpec:
    """Of one map: all queries, then one key and value; or groups of queries, each with its key and value."""
    attention = layer["self_attention"]
    config, heads = attention.config, attention.num_heads
    positions: Positions = rotary_positions
    if config.alibi:
        # The model adds it to the mask; without fused attention it adds it to the logits as well.
        once = attention.inv_norm_factor
        positions = partial(alibi, factor=once if config._attn_implementation == "sdpa" else 2 * once)
    in_turns = attention.new_decoder_architecture or not attention.multi_query
    return layer.attention(
        ["self_attention.query_key_value", "self_attention.dense"],
        heads=heads,
        kv_heads=attention.num_kv_heads if attention.new_decoder_architecture else heads if in_turns else 1,
        causal=True,
        positions=positions,
        turns=attention.num_kv_heads if attention.new_decoder_architecture else heads if in_turns else 1,
    )


def falcon_layer(layer: Parts) -> LayerSpec:
    """Attention and network side by side, after one norm or each after its own; or one after the other."""
    config = layer["config"]
    attend = falcon_attention(layer)
    network = partial(layer.network, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", "mlp.act")
    if config.new_decoder_architecture and config.num_ln_in_parallel_attn == 2:
        return (SublayerSpec((attend, network(norm="ln_mlp")), pre_norm=layer.norm("ln_attn")),)
    if config.new_decoder_architecture or config.parallel_attn:
        return (SublayerSpec((attend, network()), pre_norm=layer.norm("input_layernorm")),)
    return (
        SublayerSpec((attend,), pre_norm=layer.norm("input_layernorm")),
        SublayerSpec((network(),), pre_norm=layer.norm("post_attention_layernorm")),
    )


def falcon(parts: Parts) -> ModelSpec:
    """Falcon, which adds what the attention gave to what the network gave in place."""
    config = parts.module.config
    limits = embedding_limits(parts, positions=None, types=None, most=config.max_position_embeddings)
    limits = InputLimits(None, limits.sizes) if config.alibi else limits
    return stack(parts, "h", falcon_layer, norm="ln_f", limits=limits, in_place=True)


FAMILIES = {
    **heads("Bloom", bloom, "transformer", tokens="classifier", spans=True),
    **heads("Falcon", falcon, "transformer", tokens="classifier", spans=True),
    **heads("Mpt", mpt, "transformer", tokens="classifier", spans=True),
}
