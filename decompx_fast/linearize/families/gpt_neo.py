"""GPT-Neo: norms before the branches; every other attention sees a window."""

from __future__ import annotations

from ..reading.decoder import heads
from ..reading.parts import Parts, embedding_limits, pre_norm, stack
from ..spec import LayerSpec, ModelSpec


def gpt_neo_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, network, add. Every other attention sees a window, and logits are not scaled."""
    attend = layer.attention(
        [f"attn.attention.{name}_proj" for name in ("q", "k", "v", "out")],
        heads=layer["attn.attention.num_heads"],
        scale=1.0,
        causal=True,
        window=layer["attn.attention.config"].window_size if layer["attn.attention_type"] == "local" else None,
    )
    feed = layer.network("mlp.c_fc", "mlp.c_proj", "mlp.act")
    return pre_norm(attend, feed, layer.norm("ln_1"), layer.norm("ln_2"))


def gpt_neo(parts: Parts) -> ModelSpec:
    """GPT-Neo, whose attention weights are computed in float32."""
    limits = embedding_limits(parts, "wte", "wpe", "wte")
    return stack(parts, "h", gpt_neo_layer, norm="ln_f", limits=limits, in_float32=True)


FAMILIES = heads("GPTNeo", gpt_neo, "transformer", tokens="classifier", spans=True)
