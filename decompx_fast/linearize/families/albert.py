"""ALBERT: BERT's layers, of which a few serve as many; embeddings are widened before the first."""

from __future__ import annotations

from ..spec import LayerSpec, ModelSpec, SublayerSpec
from .parts import Module, Parts, embedding_limits, model_spec


def albert_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    names = (f"attention.{name}" for name in ("query", "key", "value", "dense"))
    attend = layer.attention(names, heads=layer["attention.num_attention_heads"])
    feed = layer.network("ffn", "ffn_output", "activation")
    return (
        SublayerSpec((attend,), post_norm=layer.norm("attention.LayerNorm")),
        SublayerSpec((feed,), post_norm=layer.norm("full_layer_layer_norm")),
    )


def albert(model: Module) -> ModelSpec:
    """``AlbertForSequenceClassification``: pooler with its activation, then a classifier."""
    config = model.config
    parts = Parts(model, "", config.hidden_size)
    layers = []
    for n in range(config.num_hidden_layers):
        group = n * config.num_hidden_groups // config.num_hidden_layers
        path = f"albert.encoder.albert_layer_groups.{group}.albert_layers"
        layers += [parts.below(f"{path}.{inner}") for inner in range(len(parts[path]))]
    head = (parts.step("albert.pooler", parts.activation("albert.pooler_activation")), parts.step("classifier"))
    return model_spec(layers, albert_layer, head, embedding_limits(parts.below("albert.embeddings")))


FAMILIES = {"AlbertForSequenceClassification": albert}
