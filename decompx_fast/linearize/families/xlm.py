"""XLM: post-norm layers whose parts stand in lists of their own, and a head that summarises a sequence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reading.classifiers import summarized, summary_classifier
from ..reading.heads import BARE, SPANS, TOKENS, Body, headed, linear
from ..reading.parts import Module, Parts, embedding_limits, post_norm, whole
from ..spec import InputLimits, LayerSpec, ModelSpec


def xlm_layer(encoder: Parts, number: int) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    attend = encoder.attention(
        [f"attentions.{number}.{name}_lin" for name in ("q", "k", "v", "out")],
        heads=encoder[f"attentions.{number}.n_heads"],
        causal=encoder["causal"],
    )
    feed = encoder.network(*(f"ffns.{number}.{name}" for name in ("lin1", "lin2", "act")))
    return post_norm(attend, feed, encoder.norm(f"layer_norm1.{number}"), encoder.norm(f"layer_norm2.{number}"))


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


HEADS = {
    "ForTokenClassification": TOKENS,
    "ForQuestionAnsweringSimple": SPANS,
    "WithLMHeadModel": linear("pred_layer.proj"),
    "ForMultipleChoice": summarized("logits_proj"),
    "Model": BARE,
}


def families(prefix: str, body: Body) -> dict[str, Callable[[Module], ModelSpec]]:
    """The classes of a project, by their names."""
    classes = partial(summary_classifier, body=body, encoder="transformer")
    return {f"{prefix}ForSequenceClassification": classes, **headed(prefix, body, "transformer", HEADS)}


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = families("XLM", xlm_body)
