"""MegatronBERT: BERT with its norms before the branches, and one at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reading.classifiers import classifier, pooler_and_classifier
from ..reading.heads import BARE, PREDICTIONS, SPANS, TOKENS, headed, pooled
from ..reading.parts import Module, Parts, embedding_limits, pre_norm, stack, whole
from ..spec import LayerSpec, ModelSpec
from .bert import bert_ops


def megatron_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, feed-forward, add."""
    attend, feed = bert_ops(layer)
    return pre_norm(attend, feed, layer.norm("attention.ln"), layer.norm("ln"))


def megatron_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head, and the norm after them; ``encoder`` is where they are in the model."""
    base = whole(model, encoder)
    limits = embedding_limits(base.below("embeddings"))
    return stack(base, "encoder.layer", megatron_layer, limits=limits, norm="encoder.ln")


_MEGATRON = {
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": SPANS,
    "ForMaskedLM": PREDICTIONS,
    "ForMultipleChoice": pooled("bert", "classifier"),
    "ForNextSentencePrediction": pooled("bert", "cls.seq_relationship"),
    "ForPreTraining": pooled("bert", "cls.seq_relationship"),
    "Model": BARE,
}

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "MegatronBertForSequenceClassification": partial(
        classifier, encoder="bert", head=pooler_and_classifier, body=megatron_body
    ),
    **headed("MegatronBert", megatron_body, "bert", _MEGATRON),
}
