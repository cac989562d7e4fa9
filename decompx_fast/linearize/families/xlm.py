"""XLM and FlauBERT: post-norm layers whose parts stand in lists of their own, and a head that summarises a sequence."""

from __future__ import annotations

from typing import Literal

from torch import nn

from ...errors import UnsupportedModelError
from ..spec import HeadStepSpec, InputLimits, LayerSpec, ModelSpec, SublayerSpec
from .parts import Module, Parts, activation_name, embedding_limits

#: What the head reads, by the option ``summary_type``. Padding is never there, so the last token is the text's.
READ: dict[str, int | Literal["mean"]] = {"first": 0, "last": -1, "cls_index": -1, "mean": "mean"}


def xlm_layer(encoder: Parts, number: int) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    attend = encoder.attention(
        [f"attentions.{number}.{name}_lin" for name in ("q", "k", "v", "out")],
        heads=encoder[f"attentions.{number}.n_heads"],
        causal=encoder["causal"],
    )
    feed = encoder.network(*(f"ffns.{number}.{name}" for name in ("lin1", "lin2", "act")))
    return (
        SublayerSpec((attend,), post_norm=encoder.norm(f"layer_norm1.{number}")),
        SublayerSpec((feed,), post_norm=encoder.norm(f"layer_norm2.{number}")),
    )


def summary(parts: Parts, labels: int) -> HeadStepSpec:
    """A map to the labels, and perhaps an activation after it."""
    activation = parts["sequence_summary.activation"]
    name = None if isinstance(activation, nn.Identity) else activation_name(activation, "sequence_summary.activation")
    if isinstance(parts["sequence_summary.summary"], nn.Identity):
        raise UnsupportedModelError(
            "sequence_summary has no projection (summary_use_proj): it gives no logits of labels"
        )
    step = parts.step("sequence_summary.summary", name)
    if step.map is not None and step.map.weight.shape[1] != labels:
        raise UnsupportedModelError(
            f"sequence_summary projects to {step.map.weight.shape[1]} numbers, not to the {labels} labels "
            "(summary_proj_to_labels): it gives no logits of labels"
        )
    return step


def xlm(model: Module) -> ModelSpec:
    """``XLMForSequenceClassification``; its softmax computes in float32."""
    parts = Parts(model, "", model.config.emb_dim)
    encoder = parts.below("transformer")
    count = len(encoder["attentions"])
    if parts["sequence_summary.summary_type"] not in READ:
        raise UnsupportedModelError(
            f"sequence_summary.summary_type={parts['sequence_summary.summary_type']!r}: supported are {', '.join(READ)}"
        )
    limits = embedding_limits(encoder, words="embeddings", types=None)
    sizes = dict(limits.sizes)
    sizes["token_type_ids"] = sizes["input_ids"]  # types are embedded as words are
    return ModelSpec(
        layer_modules=tuple(encoder["attentions"]),
        layers=tuple(xlm_layer(encoder, number) for number in range(count)),
        head=(summary(parts, model.num_labels),),
        read=READ[parts["sequence_summary.summary_type"]],
        limits=InputLimits(limits.positions, sizes),
        state_modules=tuple(encoder["layer_norm2"]),
        in_float32=True,
        in_place=True,
    )


def flaubert(model: Module) -> ModelSpec:
    """``FlaubertForSequenceClassification``, with its norms after the residuals."""
    if model.transformer.pre_norm:
        raise UnsupportedModelError(
            "this FlauBERT has its norms before the branches (pre_norm=True), so that no module gives the states after "
            "its layers: they could not be checked, so it is refused"
        )
    return xlm(model)


FAMILIES = {"XLMForSequenceClassification": xlm, "FlaubertForSequenceClassification": flaubert}
