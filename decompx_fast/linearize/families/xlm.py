"""XLM and FlauBERT: post-norm layers whose parts stand in lists of their own, and a head that summarises a sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from ...errors import UnsupportedModelError
from ..reading.classifiers import summary_read
from ..reading.heads import BARE, SPANS, TOKENS, headed, in_turn, linear
from ..reading.parts import Module, Parts, activation_name, embedding_limits, post_norm, whole
from ..spec import HeadStepSpec, InputLimits, LayerSpec, ModelSpec


def xlm_layer(encoder: Parts, number: int) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    attend = encoder.attention(
        [f"attentions.{number}.{name}_lin" for name in ("q", "k", "v", "out")],
        heads=encoder[f"attentions.{number}.n_heads"],
        causal=encoder["causal"],
    )
    feed = encoder.network(*(f"ffns.{number}.{name}" for name in ("lin1", "lin2", "act")))
    return post_norm(attend, feed, encoder.norm(f"layer_norm1.{number}"), encoder.norm(f"layer_norm2.{number}"))


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


def xlm_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whose softmax computes in float32, whatever the head; ``encoder`` is where they are in the model."""
    base = whole(model, encoder, model.config.emb_dim)
    limits = embedding_limits(base, words="embeddings", types=None)
    sizes = dict(limits.sizes)
    sizes["token_type_ids"] = sizes["input_ids"]  # types are embedded as words are
    return ModelSpec(
        layer_modules=tuple(base["attentions"]),
        layers=tuple(xlm_layer(base, number) for number in range(len(base["attentions"]))),
        head=(),
        read=0,
        limits=InputLimits(limits.positions, sizes),
        state_modules=tuple(base["layer_norm2"]),
        in_float32=True,
        in_place=True,
    )


def flaubert_body(model: Module, encoder: str) -> ModelSpec:
    """The same, with its norms after the residuals."""
    if whole(model, encoder, model.config.emb_dim)["pre_norm"]:
        raise UnsupportedModelError(
            "this FlauBERT has its norms before the branches (pre_norm=True), so that no module gives the states after "
            "its layers: they could not be checked, so it is refused"
        )
    return xlm_body(model, encoder)


def _classifier(model: Module, body: Callable[[Module, str], ModelSpec]) -> ModelSpec:
    """A summary of the sequence that is projected to the labels."""
    spec = body(model, "transformer")
    head = (summary(Parts(model, "", spec.width), model.num_labels),)
    return replace(spec, head=head, read=summary_read(model))


_CHOICE = in_turn(
    ("sequence_summary.summary", "sequence_summary.activation"),
    ("logits_proj",),
    calls=("logits_proj",),
    pooler="sequence_summary",
)
_HEADS = {
    "ForTokenClassification": TOKENS,
    "ForQuestionAnsweringSimple": SPANS,
    "WithLMHeadModel": linear("pred_layer.proj"),
    "ForMultipleChoice": replace(_CHOICE, read_of=summary_read),
    "Model": BARE,
}

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "XLMForSequenceClassification": partial(_classifier, body=xlm_body),
    "FlaubertForSequenceClassification": partial(_classifier, body=flaubert_body),
    **headed("XLM", xlm_body, "transformer", _HEADS),
    **headed("Flaubert", flaubert_body, "transformer", _HEADS),
}
