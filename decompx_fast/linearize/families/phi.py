"""Phi: attention and network side by side after one norm."""

from __future__ import annotations

from functools import partial

from ..reading.decoder import heads
from ..reading.normed_rotary import attention, decoder, head_positions
from ..reading.parts import Parts
from ..spec import LayerSpec, SublayerSpec


def phi_layer(layer: Parts) -> LayerSpec:
    """One norm, then attention and network side by side."""
    attend = attention(layer, "dense", head_positions(layer, "self_attn"))
    feed = layer.network("mlp.fc1", "mlp.fc2", "mlp.activation_fn")
    return (SublayerSpec((attend, feed), pre_norm=layer.norm("input_layernorm")),)


phi = partial(decoder, describe_layer=phi_layer, words="embed_tokens", norm="final_layernorm")

FAMILIES = heads("Phi", phi, "model", tokens="score")
