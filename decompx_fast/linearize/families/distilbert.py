"""DistilBERT: BERT's layers under other names; a classifier of a dense layer with ReLU, and no pooler."""

from __future__ import annotations

from ..spec import LayerSpec, ModelSpec, SublayerSpec
from .parts import Module, Parts, embedding_limits, model_spec


def distilbert_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    names = ("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin")
    attend = layer.attention(names, heads=layer["attention.n_heads"])
    feed = layer.network("ffn.lin1", "ffn.lin2", "ffn.activation")
    return (
        SublayerSpec((attend,), post_norm=layer.norm("sa_layer_norm")),
        SublayerSpec((feed,), post_norm=layer.norm("output_layer_norm")),
    )


def distilbert(model: Module) -> ModelSpec:
    """``DistilBertForSequenceClassification``: dense, ReLU, classifier."""
    parts = Parts(model, "", model.config.dim)
    count = len(model.distilbert.transformer.layer)
    layers = [parts.below(f"distilbert.transformer.layer.{n}") for n in range(count)]
    head = (parts.step("pre_classifier", "relu"), parts.step("classifier"))
    return model_spec(layers, distilbert_layer, head, embedding_limits(parts.below("distilbert.embeddings")))


FAMILIES = {"DistilBertForSequenceClassification": distilbert}
