"""GPT-2 and what came of it: GPT-BigCode, GPT-Neo (norms before the branches), GPT-J, CodeGen (both side by side)."""

from __future__ import annotations

from ..spec import AttentionSpec, InputLimits, LayerSpec, ModelSpec, SublayerSpec
from .decoder import heads, stack
from .parts import Parts, embedding_limits, paired_rotary_positions


def gpt2_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, network, add. One map, stored as ``[in, out]``, holds queries, keys and values."""
    attend = layer.attention(
        ["attn.c_attn", "attn.c_proj"], heads=layer["attn.num_heads"], scale=layer["attn.scaling"], causal=True
    )
    feed = layer.network("mlp.c_fc", "mlp.c_proj", "mlp.act")
    return (
        SublayerSpec((attend,), pre_norm=layer.norm("ln_1")),
        SublayerSpec((feed,), pre_norm=layer.norm("ln_2")),
    )


def bigcode_layer(layer: Parts) -> LayerSpec:
    """The same; the heads share one key and value, or each has its own and they take turns."""
    heads, kv_heads = layer["attn.num_heads"], layer["attn.kv_heads"]
    attend = layer.attention(
        ["attn.c_attn", "attn.c_proj"],
        heads=heads,
        kv_heads=kv_heads,
        scale=layer["attn.scaling"],
        causal=True,
        turns=1 if layer["attn.multi_query"] else heads,
    )
    feed = layer.network("mlp.c_fc", "mlp.c_proj", "mlp.act")
    return (
        SublayerSpec((attend,), pre_norm=layer.norm("ln_1")),
        SublayerSpec((feed,), pre_norm=layer.norm("ln_2")),
    )


def gpt_neo_layer(layer: Parts) -> LayerSpec:
    """The same; every other attention sees a window, and logits are not scaled."""
    attend = layer.attention(
        [f"attn.attention.{name}_proj" for name in ("q", "k", "v", "out")],
        heads=layer["attn.attention.num_heads"],
        scale=1.0,
        causal=True,
        window=layer["attn.attention.config"].window_size if layer["attn.attention_type"] == "local" else None,
    )
    feed = layer.network("mlp.c_fc", "mlp.c_proj", "mlp.act")
    return (
        SublayerSpec((attend,), pre_norm=layer.norm("ln_1")),
        SublayerSpec((feed,), pre_norm=layer.norm("ln_2")),
    )


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


def gpt2(parts: Parts) -> ModelSpec:
    """GPT-2."""
    limits = embedding_limits(parts, "wte", "wpe", "wte")
    return stack(
        parts, "h", gpt2_layer, norm="ln_f", limits=limits, in_float32=parts.module.config.reorder_and_upcast_attn
    )


def bigcode(parts: Parts) -> ModelSpec:
    """GPT-BigCode."""
    return stack(parts, "h", bigcode_layer, norm="ln_f", limits=embedding_limits(parts, "wte", "wpe", "wte"))


def gpt_neo(parts: Parts) -> ModelSpec:
    """GPT-Neo, whose attention weights are computed in float32."""
    limits = embedding_limits(parts, "wte", "wpe", "wte")
    return stack(parts, "h", gpt_neo_layer, norm="ln_f", limits=limits, in_float32=True)


def gptj(parts: Parts) -> ModelSpec:
    """GPT-J."""
    return stack(parts, "h", gptj_layer, norm="ln_f", limits=_rotary(parts))


def codegen(parts: Parts) -> ModelSpec:
    """CodeGen."""
    return stack(parts, "h", codegen_layer, norm="ln_f", limits=_rotary(parts))


def _rotary(parts: Parts) -> InputLimits:
    return embedding_limits(parts, "wte", None, "wte", most=parts.module.config.max_position_embeddings)


FAMILIES = {
    **heads("GPT2", gpt2, "transformer", causal="LMHeadModel", tokens="classifier", spans=True),
    **heads("GPTBigCode", bigcode, "transformer", tokens="classifier"),
    **heads("GPTJ", gptj, "transformer", spans=True),
    **heads("GPTNeo", gpt_neo, "transformer", tokens="classifier", spans=True),
    **heads("CodeGen", codegen, "transformer", classes=False),
}
