"""ModernBERT: pre-norm layers with rotary positions, gated networks, and local attention in most of them."""

from __future__ import annotations

from dataclasses import replace

from ..reading.heads import BARE, HeadKind, Read, headed, in_turn
from ..reading.parts import Module, Parts, embedding_limits, plain_attention, pre_norm, stack, whole
from ..reading.positions import rotary_positions_in_float32
from ..spec import FeedForwardSpec, LayerSpec, ModelSpec


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
    return pre_norm(attend, feed, None if no_norm else layer.norm("attn_norm"), layer.norm("mlp_norm"))


def modernbert_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model."""
    base = whole(model, encoder)
    limits = embedding_limits(base.below("embeddings"), "tok_embeddings", most=model.config.max_position_embeddings)
    return stack(base, "layers", modernbert_layer, limits=limits, norm="final_norm", in_float32=plain_attention(model))


def _pooling(model: Module) -> Read:
    return "mean" if model.config.classifier_pooling == "mean" else 0


def _then(path: str) -> HeadKind:
    """Dense, activation, norm, and one map."""
    return in_turn(("head.dense", "head.act", "head.norm"), (path,), calls=("head", path))


def modernbert(model: Module) -> ModelSpec:
    """``ModernBertForSequenceClassification``, on the first token or the mean."""
    spec = modernbert_body(model, "model")
    return replace(spec, head=_then("classifier").steps(Parts(model, "", spec.width)), read=_pooling(model))


_HEADS = {
    "ForTokenClassification": _then("classifier"),
    "ForQuestionAnswering": _then("classifier"),
    "ForMaskedLM": _then("decoder"),
    "ForMultipleChoice": replace(_then("classifier"), read_of=_pooling),
    "Model": BARE,
}

FAMILIES = {
    "ModernBertForSequenceClassification": modernbert,
    **headed("ModernBert", modernbert_body, "model", _HEADS),
}
