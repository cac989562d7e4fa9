"""MegatronBERT: BERT with its norms before the branches, and one at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reading.heads import PREDICTIONS, headed, pooled_classes, pooled_heads
from ..reading.parts import Module, Parts, embedding_limits, pre_norm, stack, whole
from ..spec import LayerSpec, ModelSpec
from .bert import bert_ops


def pre_norm_body(model: Module, encoder: str, *, norms: tuple[str, str], last: str) -> ModelSpec:
    """BERT's layers with their norms before the branches, whatever the head, and the norm after them.

    Args:
        model: of the architecture.
        encoder: where its layers are.
        norms: in a layer, before its attention and before its network.
        last: in the encoder, after all layers.
    """

    def layer_spec(layer: Parts) -> LayerSpec:
        return pre_norm(*bert_ops(layer), *map(layer.norm, norms))

    base = whole(model, encoder)
    return stack(base, "encoder.layer", layer_spec, limits=embedding_limits(base.below("embeddings")), norm=last)


megatron_body = partial(pre_norm_body, norms=("attention.ln", "ln"), last="encoder.ln")

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = headed(
    "MegatronBert", megatron_body, "bert", pooled_heads("bert", PREDICTIONS, follows=True), pooled_classes("bert")
)
