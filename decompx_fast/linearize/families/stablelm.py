"""StableLM: LayerNorms and a gated network, one after the other or side by side."""

from __future__ import annotations

from functools import partial

from ..reading.decoder import heads
from ..reading.normed_rotary import decoder, head_positions, one_after_the_other
from ..reading.parts import Parts
from ..spec import LayerSpec, SublayerSpec


def stablelm_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, gated network, add; or both side by side after one norm."""
    attention = layer["self_attn"]
    attend = layer.attention(
        [f"self_attn.{name}_proj" for name in "qkvo"],
        heads=attention.num_heads,
        kv_heads=attention.num_key_value_heads,
        causal=True,
        positions=head_positions(layer, "self_attn"),
    )
    feed = layer.network("mlp.up_proj", "mlp.down_proj", "mlp.act_fn", gate="mlp.gate_proj")
    if layer["use_parallel_residual"]:
        return (SublayerSpec((attend, feed), pre_norm=layer.norm("input_layernorm")),)
    return one_after_the_other(layer, attend, feed)


stablelm = partial(decoder, describe_layer=stablelm_layer, words="embed_tokens", norm="norm")

FAMILIES = heads("StableLm", stablelm, "model", tokens="score")
