"""Longformer: BERT's layers in a window, with global tokens that all attend, and that attend by maps of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from ..spec import Context, HubSpec, LayerSpec, ModelSpec, SublayerSpec
from .bert import ATTENTION, dense_and_out_proj
from .parts import Module, Parts, embedding_limits, model_spec


def global_tokens(n: int, context: Context) -> Tensor | None:
    """Which tokens the model was told are global, or told itself; the padding to whole windows is cut off."""
    where = context["is_index_global_attn"][:, :n]
    return where if bool(where.any()) else None


def longformer_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    radius = layer["attention.self.one_sided_attn_window_size"]
    attend = layer.attention(ATTENTION, heads=layer["attention.self.num_heads"], window=radius + 1)
    query, key, value = (layer.affine(f"attention.self.{name}_global") for name in ("query", "key", "value"))
    attend = replace(attend, hubs=HubSpec(query, key, value, radius, 1, global_tokens))
    feed = layer.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
    return (
        SublayerSpec((attend,), post_norm=layer.norm("attention.output.LayerNorm")),
        SublayerSpec((feed,), post_norm=layer.norm("output.LayerNorm")),
    )


def longformer(model: Module) -> ModelSpec:
    """``LongformerForSequenceClassification``, whose softmax computes in float32; its first token is global."""
    parts = Parts(model, "", model.config.hidden_size)
    layers = [parts.below(f"longformer.encoder.layer.{n}") for n in range(len(model.longformer.encoder.layer))]
    limits = embedding_limits(parts.below("longformer.embeddings"))
    head = dense_and_out_proj(parts, "longformer")
    return replace(model_spec(layers, longformer_layer, head, limits, in_float32=True), pads=True)


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {"LongformerForSequenceClassification": longformer}
