"""DistilBERT: BERT's layers under other names; a classifier of a dense layer with ReLU, and no pooler."""

from __future__ import annotations

from collections.abc import Callable

from ..reading.heads import headed, in_turn, text_heads
from ..reading.parts import Module, Parts, embedding_limits, post_norm, stack, whole
from ..spec import LayerSpec, ModelSpec


def distilbert_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    names = ("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin")
    attend = layer.attention(names, heads=layer["attention.n_heads"])
    feed = layer.network("ffn.lin1", "ffn.lin2", "ffn.activation")
    return post_norm(attend, feed, layer.norm("sa_layer_norm"), layer.norm("output_layer_norm"))


def distilbert_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model."""
    base = whole(model, encoder, model.config.dim)
    return stack(base, "transformer.layer", distilbert_layer, limits=embedding_limits(base.below("embeddings")))


#: Of a classifier, and of one choice.
DENSE = in_turn(("pre_classifier", "relu"), ("classifier",), calls=("pre_classifier", "relu", "classifier"), read=0)


_MASKED = in_turn(
    ("vocab_transform", "activation", "vocab_layer_norm"),
    ("vocab_projector",),
    calls=("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
)

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = headed(
    "DistilBert", distilbert_body, "distilbert", text_heads(_MASKED, DENSE), DENSE.steps
)
