"""Falcon: attention and network side by side or one after the other; rotary positions, or ALiBi."""

from __future__ import annotations

from functools import partial

from ..reading.decoder import heads
from ..reading.parts import Parts, embedding_limits, pre_norm, stack
from ..reading.positions import alibi, rotary_positions
from ..spec import AttentionSpec, InputLimits, LayerSpec, ModelSpec, Positions, SublayerSpec


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
    return pre_norm(attend, network(), layer.norm("input_layernorm"), layer.norm("post_attention_layernorm"))


def falcon(parts: Parts) -> ModelSpec:
    """Falcon, which adds what the attention gave to what the network gave in place."""
    config = parts.module.config
    limits = embedding_limits(parts, positions=None, types=None, most=config.max_position_embeddings)
    limits = InputLimits(None, limits.sizes) if config.alibi else limits
    return stack(parts, "h", falcon_layer, norm="ln_f", limits=limits, in_place=True)


FAMILIES = heads("Falcon", falcon, "transformer", tokens="classifier", spans=True)
