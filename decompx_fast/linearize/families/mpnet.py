"""MPNet: BERT's layers with relative positions, which the encoder computes once for all of them."""

from __future__ import annotations

from dataclasses import replace

from ..reading.classifiers import dense_and_out_proj
from ..reading.heads import BARE, LM_HEAD, SPANS, TOKENS, headed, pooled
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


def mpnet(model: Module) -> ModelSpec:
    """``MPNetForSequenceClassification``: dense, tanh, out_proj."""
    spec = mpnet_body(model, "mpnet")
    return replace(spec, head=dense_and_out_proj(Parts(model, "", spec.width), "mpnet"))


_HEADS = {
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": SPANS,
    "ForMaskedLM": LM_HEAD,
    "ForMultipleChoice": pooled("mpnet", "classifier"),
    "Model": BARE,
}

FAMILIES = {"MPNetForSequenceClassification": mpnet, **headed("MPNet", mpnet_body, "mpnet", _HEADS)}
