"""MobileBERT: layers that work on a narrower state between two maps, with several networks, and no norms but diagonals.

Its embedding is made of three neighbouring tokens together: a position stands for the three of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from ...errors import UnsupportedModelError
from ..readers import stored
from ..reading.heads import BARE, SPANS, TOKENS, HeadKind, headed, in_turn
from ..reading.parts import Module, Parts, embedding_limits, stack, whole
from ..spec import (
    Affine,
    AttentionSpec,
    HeadStepSpec,
    LayerSpec,
    ModelSpec,
    NormSpec,
    Stacked,
    StateMapSpec,
    SublayerSpec,
)


def norm(parts: Parts, path: str) -> NormSpec:
    """A LayerNorm, or what this model has in its place: ``x * weight + bias``."""
    module = parts[path]
    if isinstance(module, nn.LayerNorm):
        return parts.norm(path)
    if type(module).__name__ != "NoNorm":
        raise UnsupportedModelError(f"{parts.name}.{path} is a {type(module).__name__}, where a norm was expected")
    return NormSpec(module.weight.detach(), module.bias.detach(), 0.0, centre=False, fixed=True)


def _attention(layer: Parts, outer: Parts) -> AttentionSpec:
    """Queries and keys are read through a map of their own where they share one; ``outer`` is as wide as the stream."""
    own = layer.below("attention.self")
    bottleneck = layer["use_bottleneck"]
    before: tuple[Affine, NormSpec] | None = None
    if bottleneck and not layer["bottleneck.use_bottleneck_attention"]:
        if not layer["bottleneck.key_query_shared_bottleneck"]:
            raise UnsupportedModelError(
                f"{layer.name} has bottlenecks, but none for its attention (use_bottleneck_attention and "
                "key_query_shared_bottleneck are False): its queries and keys do not fit their maps"
            )
        before = (outer.affine("bottleneck.attention.dense"), norm(layer, "bottleneck.attention.LayerNorm"))
    value = (own if before is None else outer.below("attention.self")).affine("value")
    heads, out = own["num_attention_heads"], layer.affine("attention.output.dense", own["all_head_size"])
    scale = own["attention_head_size"] ** -0.5
    return AttentionSpec(own.affine("query"), own.affine("key"), value, out, heads, heads, scale, before=before)


def mobilebert_layer(outer: Parts) -> LayerSpec:
    """Narrow; attention, add and norm; networks, each with add and norm; widen, add and norm."""
    config = outer["attention.self.config"]
    layer = Parts(outer.module, outer.name, config.true_hidden_size)
    attend = _attention(layer, outer)
    inner = [
        SublayerSpec(
            (attend,), post_norm=norm(layer, "attention.output.LayerNorm"), reads_wide=attend.before is not None
        )
    ]
    for path in [*(f"ffn.{n}" for n in range(config.num_feedforward_networks - 1)), ""]:
        part = layer.below(path)
        feed = part.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
        inner.append(SublayerSpec((feed,), post_norm=norm(part, "output.LayerNorm")))
    if not layer["use_bottleneck"]:
        return tuple(inner)
    into, out = outer.affine("bottleneck.input.dense"), layer.affine("output.bottleneck.dense")
    return (
        SublayerSpec((StateMapSpec("narrow", into),), post_norm=norm(layer, "bottleneck.input.LayerNorm")),
        *inner,
        SublayerSpec((StateMapSpec("widen", out),), post_norm=norm(layer, "output.bottleneck.LayerNorm")),
    )


def mobilebert_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model."""
    base = whole(model, encoder)
    return stack(base, "encoder.layer", mobilebert_layer, limits=embedding_limits(base.below("embeddings")))


def _pooled(path: str) -> HeadKind:
    """The pooler, which may do nothing, and one map."""

    def steps(parts: Parts) -> tuple[HeadStepSpec, ...]:
        pooler = (parts.step("mobilebert.pooler.dense", "tanh"),) if parts["mobilebert.pooler.do_activate"] else ()
        return *pooler, parts.step(path)

    return HeadKind(steps, in_turn(calls=(path,), pooler="mobilebert.pooler").call, read=0)


def _predictions(parts: Parts) -> tuple[HeadStepSpec, ...]:
    """Dense, activation, norm, and a map to the vocabulary: the embeddings, and below them more rows of their own."""
    head = parts.below("cls.predictions")
    dense = head.step("transform.dense", head.activation("transform.transform_act_fn"), "transform.LayerNorm")
    words, more = (stored(head[name], "weight", f"{head.name}.{name}") for name in ("decoder", "dense"))
    return dense, HeadStepSpec(Stacked.of((words.T, more), head["decoder.bias"].detach()))


def mobilebert(model: Module) -> ModelSpec:
    """``MobileBertForSequenceClassification``: pooler, classifier."""
    spec = mobilebert_body(model, "mobilebert")
    return replace(spec, head=_pooled("classifier").steps(Parts(model, "", spec.width)))


_HEADS = {
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": SPANS,
    "ForMaskedLM": HeadKind(_predictions, in_turn(calls=("cls",)).call),
    "ForNextSentencePrediction": _pooled("cls.seq_relationship"),
    "ForPreTraining": _pooled("cls.seq_relationship"),
    "ForMultipleChoice": _pooled("classifier"),
    "Model": BARE,
}

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "MobileBertForSequenceClassification": mobilebert,
    **headed("MobileBert", mobilebert_body, "mobilebert", _HEADS),
}
