"""BERT's cousins with their norms before the branches, and one at the end: RoBERTa-PreLayerNorm, MegatronBERT, ESM."""

from __future__ import annotations

from torch import Tensor

from ...errors import UnsupportedModelError
from ..spec import Context, LayerSpec, ModelSpec, SublayerSpec
from .bert import ATTENTION, bert_ops, dense_and_out_proj, pooler_and_classifier
from .parts import Module, Parts, embedding_limits, model_spec, rotary_positions_in_float32


def roberta_prelayernorm_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, feed-forward, add."""
    attend, feed = bert_ops(layer)
    return (
        SublayerSpec((attend,), pre_norm=layer.norm("attention.LayerNorm")),
        SublayerSpec((feed,), pre_norm=layer.norm("intermediate.LayerNorm")),
    )


def megatron_layer(layer: Parts) -> LayerSpec:
    """The same, the norms under other names."""
    attend, feed = bert_ops(layer)
    return (
        SublayerSpec((attend,), pre_norm=layer.norm("attention.ln")),
        SublayerSpec((feed,), pre_norm=layer.norm("ln")),
    )


def scaled(query: Tensor, key: Tensor, _context: Context) -> tuple[Tensor, Tensor, None]:
    """ESM scales its queries, not the logits."""
    return query * query.shape[-1] ** -0.5, key, None


def rotated(query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor, None]:
    """It does so before they are rounded to be rotated."""
    query, key, _ = scaled(query, key, context)
    return rotary_positions_in_float32(query, key, context)


def esm_layer(layer: Parts) -> LayerSpec:
    """The same with rotary or absolute positions."""
    kind = layer["attention.self.position_embedding_type"]
    if kind not in ("rotary", "absolute"):
        raise UnsupportedModelError(f"{layer.name} uses position_embedding_type={kind!r}: only 'rotary' and 'absolute'")
    attend = layer.attention(
        ATTENTION,
        heads=layer["attention.self.num_attention_heads"],
        scale=1.0,
        positions=rotated if kind == "rotary" else scaled,
    )
    feed = layer.network("intermediate.dense", "output.dense", "gelu")
    return (
        SublayerSpec((attend,), pre_norm=layer.norm("attention.LayerNorm")),
        SublayerSpec((feed,), pre_norm=layer.norm("LayerNorm")),
    )


def roberta_prelayernorm(model: Module) -> ModelSpec:
    """``RobertaPreLayerNormForSequenceClassification``: dense, tanh, out_proj."""
    name = "roberta_prelayernorm"
    parts = Parts(model, "", model.config.hidden_size)
    limits = embedding_limits(parts.below(f"{name}.embeddings"))
    layers = [parts.below(f"{name}.encoder.layer.{n}") for n in range(len(parts[f"{name}.encoder.layer"]))]
    norm = (parts[f"{name}.LayerNorm"], parts.norm(f"{name}.LayerNorm"))
    return model_spec(layers, roberta_prelayernorm_layer, dense_and_out_proj(parts, name), limits, final_norm=norm)


def megatron(model: Module) -> ModelSpec:
    """``MegatronBertForSequenceClassification``: pooler with tanh, then a classifier."""
    parts = Parts(model, "", model.config.hidden_size)
    limits = embedding_limits(parts.below("bert.embeddings"))
    layers = [parts.below(f"bert.encoder.layer.{n}") for n in range(len(model.bert.encoder.layer))]
    norm = (model.bert.encoder.ln, parts.norm("bert.encoder.ln"))
    return model_spec(layers, megatron_layer, pooler_and_classifier(parts, "bert"), limits, final_norm=norm)


def esm(model: Module) -> ModelSpec:
    """``EsmForSequenceClassification``: dense, tanh, out_proj."""
    parts = Parts(model, "", model.config.hidden_size)
    limits = embedding_limits(parts.below("esm.embeddings"), most=model.config.max_position_embeddings)
    layers = [parts.below(f"esm.encoder.layer.{n}") for n in range(len(model.esm.encoder.layer))]
    norm = (model.esm.encoder.emb_layer_norm_after, parts.norm("esm.encoder.emb_layer_norm_after"))
    return model_spec(layers, esm_layer, dense_and_out_proj(parts, "esm"), limits, final_norm=norm)


FAMILIES = {
    "EsmForSequenceClassification": esm,
    "MegatronBertForSequenceClassification": megatron,
    "RobertaPreLayerNormForSequenceClassification": roberta_prelayernorm,
}
