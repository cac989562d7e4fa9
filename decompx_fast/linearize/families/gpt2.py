"""GPT-2 and GPT-BigCode: norms before the branches, one map for queries, keys and values."""

from __future__ import annotations

from ..reading.decoder import heads
from ..reading.parts import Parts, embedding_limits, plain_attention, pre_norm, stack
from ..spec import LayerSpec, ModelSpec


def gpt2_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, network, add. One map, stored as ``[in, out]``, holds queries, keys and values."""
    attend = layer.attention(
        ["attn.c_attn", "attn.c_proj"], heads=layer["attn.num_heads"], scale=layer["attn.scaling"], causal=True
    )
    feed = layer.network("mlp.c_fc", "mlp.c_proj", "mlp.act")
    return pre_norm(attend, feed, layer.norm("ln_1"), layer.norm("ln_2"))


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
    return pre_norm(attend, feed, layer.norm("ln_1"), layer.norm("ln_2"))


def gpt2(parts: Parts) -> ModelSpec:
    """GPT-2."""
    limits = embedding_limits(parts, "wte", "wpe", "wte")
    return stack(
        parts, "h", gpt2_layer, norm="ln_f", limits=limits, in_float32=parts.module.config.reorder_and_upcast_attn
    )


def bigcode(parts: Parts) -> ModelSpec:
    """GPT-BigCode."""
    limits = embedding_limits(parts, "wte", "wpe", "wte")
    return stack(parts, "h", bigcode_layer, norm="ln_f", limits=limits, in_float32=plain_attention(parts.module))


FAMILIES = {
    **heads("GPT2", gpt2, "transformer", causal="LMHeadModel", tokens="classifier", spans=True),
    **heads("GPTBigCode", bigcode, "transformer", tokens="classifier"),
}
