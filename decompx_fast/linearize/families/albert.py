"""ALBERT: BERT's layers, of which a few serve as many; embeddings are widened before the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from ..reading.heads import headed, module, pooled_beside, steps_of, text_heads
from ..reading.parts import Module, Parts, embedding_limits, model_spec, post_norm, whole
from ..spec import LayerSpec, ModelSpec


def albert_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    names = (f"attention.{name}" for name in ("query", "key", "value", "dense"))
    attend = layer.attention(names, heads=layer["attention.num_attention_heads"])
    feed = layer.network("ffn", "ffn_output", "activation")
    return post_norm(attend, feed, layer.norm("attention.LayerNorm"), layer.norm("full_layer_layer_norm"))


def albert_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model."""
    config = model.config
    base = whole(model, encoder)
    layers = []
    for n in range(config.num_hidden_layers):
        group = n * config.num_hidden_groups // config.num_hidden_layers
        path = f"encoder.albert_layer_groups.{group}.albert_layers"
        layers += [base.below(f"{path}.{inner}") for inner in range(len(base[path]))]
    return model_spec(layers, albert_layer, (), embedding_limits(base.below("embeddings")))


_pooled = partial(pooled_beside, "albert.pooler", "albert.pooler_activation")


def _order(model: Module, rows: Tensor) -> Tensor:
    """Are two sentences in order? Of what ``AlbertForPreTraining`` gives, the one that is no masked language model."""
    found: Tensor = model.sop_classifier(model.albert.pooler_activation(model.albert.pooler(rows)))
    return found


_MASKED = module("predictions", steps_of(("dense", "activation", "LayerNorm"), ("decoder",)))
_HEADS = text_heads(_MASKED, _pooled("classifier")) | {
    "ForPreTraining": replace(_pooled("sop_classifier.classifier"), call=_order)
}

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = headed(
    "Albert", albert_body, "albert", _HEADS, _pooled("classifier").steps
)
