"""BERT and the models that share its layers: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, Data2VecText, ERNIE, LayoutLM.

Post-norm layers of one attention and one feed-forward network; they differ in the name of the encoder and in the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...errors import UnsupportedModelError
from ..spec import AttentionSpec, FeedForwardSpec, HeadStepSpec, LayerSpec, ModelSpec, SublayerSpec, embedding_module
from .parts import Module, Parts, embedding_limits, model_spec

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
    return (
        SublayerSpec((attend,), post_norm=layer.norm("attention.output.LayerNorm")),
        SublayerSpec((feed,), post_norm=layer.norm("output.LayerNorm")),
    )


def pooler_and_classifier(parts: Parts, encoder: str) -> tuple[HeadStepSpec, ...]:
    """Pooler with its activation, then a classifier."""
    pooler = parts.step(f"{encoder}.pooler.dense", parts.activation(f"{encoder}.pooler.activation"))
    return pooler, parts.step("classifier", features=pooler.map.weight.shape[1] if pooler.map else None)


def dense_and_out_proj(parts: Parts, encoder: str) -> tuple[HeadStepSpec, ...]:
    """Dense, tanh or the activation that is there, out_proj."""
    has_activation = hasattr(parts["classifier"], "activation")
    dense = parts.step("classifier.dense", parts.activation("classifier.activation") if has_activation else "tanh")
    return dense, parts.step("classifier.out_proj", features=dense.map.weight.shape[1] if dense.map else None)


def _model(model: Module, encoder: str, head: Callable[[Parts, str], tuple[HeadStepSpec, ...]]) -> ModelSpec:
    parts = Parts(model, "", model.config.hidden_size)
    layers = [parts.below(f"{encoder}.encoder.layer.{n}") for n in range(len(parts[f"{encoder}.encoder.layer"]))]
    limits = embedding_limits(parts.below(f"{encoder}.embeddings"))
    return model_spec(layers, bert_layer, head(parts, encoder), limits)


def layoutlm(model: Module) -> ModelSpec:
    """``LayoutLMForSequenceClassification``: BERT with embeddings of each token's box on the page, ``bbox``."""
    spec = _model(model, "layoutlm", pooler_and_classifier)
    embeddings = Parts(model, "", model.config.hidden_size).below("layoutlm.embeddings")
    names = [f"{axis}_position_embeddings" for axis in "xyhw"]
    size = min(embedding_module(embeddings[name], f"{embeddings.name}.{name}").num_embeddings for name in names)
    return replace(spec, limits=replace(spec.limits, sizes={**spec.limits.sizes, "bbox": size}))


roberta = partial(_model, encoder="roberta", head=dense_and_out_proj)

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "BertForSequenceClassification": partial(_model, encoder="bert", head=pooler_and_classifier),
    "RobertaForSequenceClassification": roberta,
    "XLMRobertaForSequenceClassification": roberta,
    "CamembertForSequenceClassification": roberta,
    "Data2VecTextForSequenceClassification": partial(_model, encoder="data2vec_text", head=dense_and_out_proj),
    "ElectraForSequenceClassification": partial(_model, encoder="electra", head=dense_and_out_proj),
    "ErnieForSequenceClassification": partial(_model, encoder="ernie", head=pooler_and_classifier),
    "LayoutLMForSequenceClassification": layoutlm,
    "RemBertForSequenceClassification": partial(_model, encoder="rembert", head=pooler_and_classifier),
}
