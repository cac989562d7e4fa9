"""MPNet: BERT's layers with relative positions, which the encoder computes once for all of them."""

from __future__ import annotations

from ..spec import LayerSpec, ModelSpec, SublayerSpec
from .parts import Module, Parts, added_positions, embedding_limits, model_spec


def mpnet_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    attend = layer.attention(
        [f"attention.attn.{name}" for name in "qkvo"],
        heads=layer["attention.attn.num_attention_heads"],
        positions=added_positions("position_bias"),
    )
    feed = layer.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
    return (
        SublayerSpec((attend,), post_norm=layer.norm("attention.LayerNorm")),
        SublayerSpec((feed,), post_norm=layer.norm("output.LayerNorm")),
    )


def mpnet(model: Module) -> ModelSpec:
    """``MPNetForSequenceClassification``: dense, tanh, out_proj."""
    parts = Parts(model, "", model.config.hidden_size)
    layers = [parts.below(f"mpnet.encoder.layer.{n}") for n in range(len(model.mpnet.encoder.layer))]
    head = (parts.step("classifier.dense", "tanh"), parts.step("classifier.out_proj"))
    return model_spec(layers, mpnet_layer, head, embedding_limits(parts.below("mpnet.embeddings")))


FAMILIES = {"MPNetForSequenceClassification": mpnet}
