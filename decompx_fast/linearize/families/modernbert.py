"""ModernBERT: pre-norm layers with rotary positions, gated networks, and local attention in most of them."""

from __future__ import annotations

from ..spec import FeedForwardSpec, LayerSpec, ModelSpec, SublayerSpec
from .parts import Module, Parts, embedding_limits, model_spec, rotary_positions_in_float32


def modernbert_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, gated network, add. The first attention has no norm of its own before it."""
    attend = layer.attention(
        ["attn.Wqkv", "attn.Wo"],
        heads=layer.module.config.num_attention_heads,
        window=layer["attn.sliding_window"],
        positions=rotary_positions_in_float32,
    )
    packed = layer.affine("mlp.Wi")
    gate, value = packed.part(0, 2), packed.part(1, 2)
    out = layer.affine("mlp.Wo", value.weight.shape[1])
    feed = FeedForwardSpec(value, out, layer.activation("mlp.act"), gate)
    no_norm = type(layer["attn_norm"]).__name__ == "Identity"
    return (
        SublayerSpec((attend,), pre_norm=None if no_norm else layer.norm("attn_norm")),
        SublayerSpec((feed,), pre_norm=layer.norm("mlp_norm")),
    )


def modernbert(model: Module) -> ModelSpec:
    """``ModernBertForSequenceClassification``: dense, activation, norm, classifier, on the first token or the mean."""
    config = model.config
    parts = Parts(model, "", config.hidden_size)
    return model_spec(
        [parts.below(f"model.layers.{n}") for n in range(len(model.model.layers))],
        modernbert_layer,
        head=(parts.step("head.dense", parts.activation("head.act"), "head.norm"), parts.step("classifier")),
        limits=embedding_limits(parts.below("model.embeddings"), "tok_embeddings", most=config.max_position_embeddings),
        read="mean" if config.classifier_pooling == "mean" else 0,
        final_norm=(model.model.final_norm, parts.norm("model.final_norm")),
    )


FAMILIES = {"ModernBertForSequenceClassification": modernbert}
