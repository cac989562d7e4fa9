"""Persimmon: queries, keys and values in turns in one map, and norms of queries and keys."""

from __future__ import annotations

from functools import partial

from ..reading.decoder import heads
from ..reading.normed_rotary import decoder, head_positions, one_after_the_other
from ..reading.parts import Parts
from ..spec import LayerSpec


def persimmon_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, network, add. Queries, keys and values take turns in one map."""
    heads = layer["self_attn.num_heads"]
    attend = layer.attention(
        ["self_attn.query_key_value", "self_attn.dense"],
        heads=heads,
        causal=True,
        positions=head_positions(layer, "self_attn"),
        turns=heads,
    )
    return one_after_the_other(layer, attend, layer.network("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", "mlp.act"))


persimmon = partial(decoder, describe_layer=persimmon_layer, words="embed_tokens", norm="final_layernorm")

FAMILIES = heads("Persimmon", persimmon, "model", tokens="score")
