"""MPNet: BERT's layers with relative positions, which the encoder computes once for all of them."""

from __future__ import annotations

from collections.abc import Callable

from ..reading.classifiers import dense_and_out_proj
from ..reading.heads import LM_HEAD, headed, pooled_heads
from ..reading.parts import Module, Parts, embedding_limits, post_norm, stack, whole
from ..reading.positions import added_positions
from ..spec import LayerSpec, ModelSpec


def mpnet_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    attend = layer.attention(
        [f"attention.attn.{name}" for name in "qkvo"],
        heads=layer["attention.attn.num_attention_heads"],
        positions=added_positions("position_bias"),
    )
    feed = layer.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
    return post_norm(attend, feed, layer.norm("attention.LayerNorm"), layer.norm("output.LayerNorm"))


def mpnet_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model."""
    base = whole(model, encoder)
    return stack(base, "encoder.layer", mpnet_layer, limits=embedding_limits(base.below("embeddings")))


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = headed(
    "MPNet", mpnet_body, "mpnet", pooled_heads("mpnet", LM_HEAD), dense_and_out_proj
)
