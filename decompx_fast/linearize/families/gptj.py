"""GPT-J and CodeGen: attention and network side by side after one norm; neighbours are rotated."""

from __future__ import annotations

from ..reading.decoder import heads
from ..reading.parts import Parts, embedding_limits, stack
from ..reading.positions import paired_rotary_positions
from ..spec import AttentionSpec, InputLimits, LayerSpec, ModelSpec, SublayerSpec


def gptj_layer(layer: Parts) -> LayerSpec:
    """One norm, then attention and network side by side; neighbours are rotated, in part of each head."""
    attend = layer.attention(
        [f"attn.{name}_proj" for name in ("q", "k", "v", "out")],
        heads=layer["attn.num_attention_heads"],
        causal=True,
        positions=paired_rotary_positions,
    )
    feed = layer.network("mlp.fc_in", "mlp.fc_out", "mlp.act")
    return (SublayerSpec((attend, feed), pre_norm=layer.norm("ln_1")),)


def codegen_layer(layer: Parts) -> LayerSpec:
    """The same; the outputs of one map come in four groups, each with its queries, values and keys."""
    attention = layer["attn"]
    size = attention.head_dim * attention.num_attention_heads // attention.mp_num
    packed = layer.affine("attn.qkv_proj")
    query, value, key = (packed.columns_of(n * size, (n + 1) * size, attention.mp_num) for n in range(3))
    attend = AttentionSpec(
        query,
        key,
        value,
        layer.affine("attn.out_proj"),
        attention.num_attention_heads,
        attention.num_attention_heads,
        attention.scaling,
        causal=True,
        positions=paired_rotary_positions,
    )
    feed = layer.network("mlp.fc_in", "mlp.fc_out", "mlp.act")
    return (SublayerSpec((attend, feed), pre_norm=layer.norm("ln_1")),)


def gptj(parts: Parts) -> ModelSpec:
    """GPT-J."""
    return stack(parts, "h", gptj_layer, norm="ln_f", limits=rotary_limits(parts))


def codegen(parts: Parts) -> ModelSpec:
    """CodeGen."""
    return stack(parts, "h", codegen_layer, norm="ln_f", limits=rotary_limits(parts))


def rotary_limits(parts: Parts) -> InputLimits:
    return embedding_limits(parts, "wte", None, "wte", most=parts.module.config.max_position_embeddings)


FAMILIES = {
    **heads("GPTJ", gptj, "transformer", spans=True),
    **heads("CodeGen", codegen, "transformer", classes=False),
}
