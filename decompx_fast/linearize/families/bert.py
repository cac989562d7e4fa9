"""BERT and the models that share its layers and heads: RoBERTa, XLM-RoBERTa, CamemBERT, Data2VecText, ERNIE.

Post-norm layers of one attention and one feed-forward network; they differ in the name of the encoder and in the head.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import UnsupportedModelError
from ..reading.classifiers import dense_and_out_proj
from ..reading.heads import LM_HEAD, PREDICTIONS, headed, pooled_classes, pooled_heads
from ..reading.parts import Module, Parts, embedding_limits, post_norm, stack, whole
from ..spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec

#: The maps of an attention, where the modules are named as BERT's.
ATTENTION = tuple(f"attention.{name}" for name in ("self.query", "self.key", "self.value", "output.dense"))


def bert_ops(layer: Parts) -> tuple[AttentionSpec, FeedForwardSpec]:
    """The attention and the network that all of BERT's cousins have, wherever they put their norms."""
    position_type = getattr(layer["attention.self"], "position_embedding_type", None)
    if position_type not in (None, "absolute"):
        raise UnsupportedModelError(
            f"{layer.name}.attention uses position_embedding_type={position_type!r}: only 'absolute' can be explained "
            "here"
        )
    attend = layer.attention(
        ATTENTION,
        heads=layer["attention.self.num_attention_heads"],
        size=layer["attention.self.attention_head_size"],
        causal=bool(getattr(layer.module, "is_decoder", False)),
    )
    return attend, layer.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")


def bert_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    attend, feed = bert_ops(layer)
    return post_norm(attend, feed, layer.norm("attention.output.LayerNorm"), layer.norm("output.LayerNorm"))


def bert_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model, ``""`` for a model without head."""
    base = whole(model, encoder)
    return stack(base, "encoder.layer", bert_layer, limits=embedding_limits(base.below("embeddings")))


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    **headed("Bert", bert_body, "bert", pooled_heads("bert", PREDICTIONS, follows=True), pooled_classes("bert")),
    **headed("Ernie", bert_body, "ernie", pooled_heads("ernie", PREDICTIONS, follows=True), pooled_classes("ernie")),
    **headed("Roberta", bert_body, "roberta", pooled_heads("roberta", LM_HEAD), dense_and_out_proj),
    **headed("XLMRoberta", bert_body, "roberta", pooled_heads("roberta", LM_HEAD), dense_and_out_proj),
    **headed("Camembert", bert_body, "roberta", pooled_heads("roberta", LM_HEAD), dense_and_out_proj),
    **headed("Data2VecText", bert_body, "data2vec_text", pooled_heads("data2vec_text", LM_HEAD), dense_and_out_proj),
}
