"""LayoutLM: BERT with embeddings of the box of each token on its page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..readers import embedding_module
from ..reading.heads import PREDICTIONS, headed, pooled_classes, text_heads
from ..reading.parts import Module, Parts, plain_attention
from ..spec import ModelSpec
from .bert import bert_body


def layoutlm_body(model: Module, encoder: str) -> ModelSpec:
    """BERT with embeddings of each token's box on the page, ``bbox``."""
    spec, embeddings = bert_body(model, encoder), Parts(model, "", model.config.hidden_size)
    embeddings = embeddings.below(encoder).below("embeddings")
    names = [f"{axis}_position_embeddings" for axis in "xyhw"]
    size = min(embedding_module(embeddings[name], f"{embeddings.name}.{name}").num_embeddings for name in names)
    limits = replace(spec.limits, sizes={**spec.limits.sizes, "bbox": size})
    return replace(spec, limits=limits, in_float32=plain_attention(model))


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = headed(
    "LayoutLM", layoutlm_body, "layoutlm", text_heads(PREDICTIONS), pooled_classes("layoutlm")
)
