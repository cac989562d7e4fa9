"""RoBERTa-PreLayerNorm: BERT's cousin with its norms before the branches, and one at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reading.classifiers import classifier, dense_and_out_proj
from ..reading.heads import BARE, LM_HEAD, SPANS, TOKENS, headed, pooled
from ..reading.parts import Module, Parts, embedding_limits, pre_norm, stack, whole
from ..spec import LayerSpec, ModelSpec
from .bert import bert_ops


def roberta_prelayernorm_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, feed-forward, add."""
    attend, feed = bert_ops(layer)
    return pre_norm(attend, feed, layer.norm("attention.LayerNorm"), layer.norm("intermediate.LayerNorm"))


def roberta_prelayernorm_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head, and the norm after them; ``encoder`` is where they are in the model."""
    base = whole(model, encoder)
    limits = embedding_limits(base.below("embeddings"))
    return stack(base, "encoder.layer", roberta_prelayernorm_layer, limits=limits, norm="LayerNorm")


_ROBERTA = {
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": SPANS,
    "ForMaskedLM": LM_HEAD,
    "ForMultipleChoice": pooled("roberta_prelayernorm", "classifier"),
    "Model": BARE,
}

_NAME = "roberta_prelayernorm"

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "RobertaPreLayerNormForSequenceClassification": partial(
        classifier, encoder=_NAME, head=dense_and_out_proj, body=roberta_prelayernorm_body
    ),
    **headed("RobertaPreLayerNorm", roberta_prelayernorm_body, _NAME, _ROBERTA),
}
