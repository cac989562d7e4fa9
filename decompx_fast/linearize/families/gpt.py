"""GPT-2 and what came of it: GPT-BigCode, GPT-Neo (norms before the branches), GPT-J (both branches side by side)."""

from __future__ import annotations

from ..spec import InputLimits, LayerSpec, ModelSpec, SublayerSpec
from .decoder import decoder
from .parts import Module, Parts, embedding_limits, paired_rotary_positions


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


def _learned(model: Module) -> InputLimits:
    return embedding_limits(Parts(model, "", model.config.hidden_size).below("transformer"), "wte", "wpe", "wte")


def gpt2(model: Module) -> ModelSpec:
    """``GPT2ForSequenceClassification``."""
    upcast = model.config.reorder_and_upcast_attn
    return decoder(
        model, "transformer.h", gpt2_layer, norm="transformer.ln_f", limits=_learned(model), in_float32=upcast
    )


def bigcode(model: Module) -> ModelSpec:
    """``GPTBigCodeForSequenceClassification``."""
    return decoder(model, "transformer.h", bigcode_layer, norm="transformer.ln_f", limits=_learned(model))


def gpt_neo(model: Module) -> ModelSpec:
    """``GPTNeoForSequenceClassification``, whose attention weights are computed in float32."""
    return decoder(
        model, "transformer.h", gpt_neo_layer, norm="transformer.ln_f", limits=_learned(model), in_float32=True
    )


def gptj(model: Module) -> ModelSpec:
    """``GPTJForSequenceClassification``."""
    parts = Parts(model, "", model.config.hidden_size).below("transformer")
    limits = embedding_limits(parts, "wte", None, "wte", most=model.config.max_position_embeddings)
    return decoder(model, "transformer.h", gptj_layer, norm="transformer.ln_f", limits=limits)


FAMILIES = {
    "GPT2ForSequenceClassification": gpt2,
    "GPTBigCodeForSequenceClassification": bigcode,
    "GPTJForSequenceClassification": gptj,
    "GPTNeoForSequenceClassification": gpt_neo,
}
