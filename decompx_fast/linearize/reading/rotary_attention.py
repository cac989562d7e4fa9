"""An attention with rotary positions whose modules are named as Llama's."""

from __future__ import annotations

from dataclasses import replace

from ..spec import AttentionSpec
from .parts import Parts
from .positions import rotary_positions


def attention(layer: Parts) -> AttentionSpec:
    """Of a layer; its keys and values may have fewer heads."""
    size = layer["self_attn.head_dim"]
    names = (f"self_attn.{name}_proj" for name in "qkvo")
    heads = layer["self_attn.config"].num_attention_heads
    op = layer.attention(names, heads=heads, size=size, positions=rotary_positions)
    return replace(op, kv_heads=op.key.weight.shape[1] // size)
