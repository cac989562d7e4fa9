"""RemBERT: BERT with embeddings narrower than its layers, and a vocabulary's head of another width."""

from __future__ import annotations

from collections.abc import Callable

from ..reading.heads import headed, module, pooled_classes, pooled_heads, steps_of
from ..reading.parts import Module
from ..spec import ModelSpec
from .bert import bert_body

#: RemBERT's masked language model, with as many numbers before the vocabulary as its configuration says.
REMBERT_PREDICTIONS = module("cls.predictions", steps_of(("dense", "activation", "LayerNorm"), ("decoder",)))

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = headed(
    "RemBert", bert_body, "rembert", pooled_heads("rembert", REMBERT_PREDICTIONS), pooled_classes("rembert")
)
