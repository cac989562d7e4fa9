"""RoFormer: BERT with rotary positions, by which neighbours are rotated."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import UnsupportedModelError
from ..reading.classifiers import dense_and_activation, summarized
from ..reading.heads import PREDICTIONS, headed, text_heads
from ..reading.parts import Module, Parts, embedding_limits, post_norm, stack, whole
from ..reading.positions import interleaved_rotary_positions
from ..spec import LayerSpec, ModelSpec
from .bert import ATTENTION


def roformer_layer(layer: Parts) -> LayerSpec:
    """BERT's layer; neighbours are rotated."""
    if layer["attention.self.rotary_value"]:
        raise UnsupportedModelError(f"{layer.name} rotates its values too (rotary_value): this cannot be explained yet")
    attend = layer.attention(
        ATTENTION,
        heads=layer["attention.self.num_attention_heads"],
        causal=layer["is_decoder"],
        positions=interleaved_rotary_positions,
    )
    feed = layer.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
    return post_norm(attend, feed, layer.norm("attention.output.LayerNorm"), layer.norm("output.LayerNorm"))


def roformer_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model."""
    base = whole(model, encoder)
    limits = embedding_limits(base.below("embeddings"), most=model.config.max_position_embeddings)
    return stack(base, "encoder.layer", roformer_layer, limits=limits)


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = headed(
    "RoFormer", roformer_body, "roformer", text_heads(PREDICTIONS, summarized("classifier")), dense_and_activation
)
