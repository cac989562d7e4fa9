"""RemBERT: BERT with embeddings narrower than its layers, and a vocabulary's head of another width."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reading.classifiers import classifier, pooler_and_classifier
from ..reading.heads import headed, module, steps_of
from ..reading.parts import Module
from ..spec import ModelSpec
from .bert import bert_body, common_heads

#: RemBERT's masked language model, with as many numbers before the vocabulary as its configuration says.
REMBERT_PREDICTIONS = module("cls.predictions", steps_of(("dense", "activation", "LayerNorm"), ("decoder",)))

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "RemBertForSequenceClassification": partial(
        classifier, encoder="rembert", head=pooler_and_classifier, body=bert_body
    ),
    **headed("RemBert", bert_body, "rembert", common_heads("rembert", REMBERT_PREDICTIONS)),
}
