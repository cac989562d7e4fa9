"""DeBERTa, the first version: BERT's layers whose attention also compares contents with relative positions."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import UnsupportedModelError
from ..reading.disentangled import DisentangledPositions, scale_of
from ..reading.heads import PREDICTIONS, headed, text_heads
from ..reading.parts import Module, Parts, embedding_limits, post_norm, stack, whole
from ..spec import Affine, AttentionSpec, HeadStepSpec, LayerSpec, ModelSpec


def deberta_v1_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm. Queries, keys and values are of one map, in turns for each
    head, and have biases of their own."""
    attention = layer.below("attention.self")
    if attention["talking_head"]:
        raise UnsupportedModelError(
            f"{attention.name} has talking heads, which mix the attention weights of all heads once more: their rows "
            "do not sum to 1, so the model cannot be explained exactly"
        )
    heads, size = attention["num_attention_heads"], attention["attention_head_size"]
    packed = attention.affine("in_proj")
    # Heads take turns. What the module gives has not the biases, so that nothing is read from it.
    query, key, value = (packed.columns_of(n * size, (n + 1) * size, heads).weight for n in range(3))  # [d, h, v]
    query_bias, value_bias = attention["q_bias"].detach(), attention["v_bias"].detach()
    scale = scale_of(size, 1 + len(attention["pos_att_type"]))
    positions = None
    if attention["relative_attention"]:
        # Of the embedded distances the model takes those that occur; the others are never read.
        span = attention["max_relative_positions"]
        positions = DisentangledPositions(attention, ("pos_proj", "pos_q_proj"), span, scale)
    attend = AttentionSpec(
        Affine(query, query_bias),
        Affine(key, None),
        Affine(value, value_bias),
        layer.affine("attention.output.dense", heads * size),
        heads,
        heads,
        scale,
        positions=positions,
    )
    feed = layer.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
    return post_norm(attend, feed, layer.own_norm("attention.output.LayerNorm"), layer.own_norm("output.LayerNorm"))


def body(
    model: Module, encoder: str, describe_layer: Callable[[Parts], LayerSpec], *, in_float32: bool = False
) -> ModelSpec:
    """The layers of any version, whatever the head; ``encoder`` is where they are in the model."""
    base = whole(model, encoder)
    limits = embedding_limits(base.below("embeddings"), most=model.config.max_position_embeddings)
    return stack(base, "encoder.layer", describe_layer, limits=limits, in_float32=in_float32)


def deberta_v1_body(model: Module, encoder: str) -> ModelSpec:
    """The layers of the first version, whose norms compute in float32, whatever the head."""
    return body(model, encoder, deberta_v1_layer, in_float32=True)


def pooler_and_classifier(parts: Parts) -> tuple[HeadStepSpec, ...]:
    """Pooler with its activation, then a classifier: of classes, and of one choice."""
    return parts.step("pooler.dense", parts["config"].pooler_hidden_act), parts.step("classifier")


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = headed(
    "Deberta", deberta_v1_body, "deberta", text_heads(PREDICTIONS), pooler_and_classifier
)
