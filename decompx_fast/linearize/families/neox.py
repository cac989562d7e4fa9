"""GPT-NeoX: attention and network side by side, each after a norm of its own, or one after the other."""

from __future__ import annotations

from functools import partial

from ..reading.decoder import heads
from ..reading.normed_rotary import decoder
from ..reading.parts import Parts, pre_norm
from ..reading.positions import rotary_positions
from ..spec import LayerSpec, SublayerSpec


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
    return pre_norm(attend, network(), before, layer.norm("post_attention_layernorm"))


neox = partial(decoder, describe_layer=neox_layer, words="embed_in", norm="final_layer_norm")

FAMILIES = heads("GPTNeoX", neox, "gpt_neox", tokens="classifier", spans=True)
