"""BERT's cousins with their norms before the branches, and one at the end: RoBERTa-PreLayerNorm, MegatronBERT, ESM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from ...errors import UnsupportedModelError
from ..spec import Context, HeadStepSpec, LayerSpec, ModelSpec, SublayerSpec
from .bert import ATTENTION, bert_ops, classifier, dense_and_out_proj, pooler_and_classifier
from .heads import BARE, LM_HEAD, PREDICTIONS, SPANS, TOKENS, headed, module, pooled, steps_of
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


def _body(
    model: Module,
    encoder: str,
    layer: Callable[[Parts], LayerSpec],
    norm: str,
    most: Callable[[Module], int | None] = lambda config: None,
) -> ModelSpec:
    """The layers, whatever the head, and the norm after them; ``encoder`` is where they are in the model."""
    base = Parts(model, "", model.config.hidden_size).below(encoder)
    layers = [base.below(f"encoder.layer.{n}") for n in range(len(base["encoder.layer"]))]
    limits = embedding_limits(base.below("embeddings"), most=most(model.config))
    return model_spec(layers, layer, (), limits, final_norm=(base[norm], base.norm(norm)))


roberta_prelayernorm_body = partial(_body, layer=roberta_prelayernorm_layer, norm="LayerNorm")
megatron_body = partial(_body, layer=megatron_layer, norm="encoder.ln")
esm_body = partial(
    _body,
    layer=esm_layer,
    norm="encoder.emb_layer_norm_after",
    most=lambda config: config.max_position_embeddings,
)


def _esm_predictions(parts: Parts) -> tuple[HeadStepSpec, ...]:
    """The bias of the vocabulary is no part of its map."""
    dense, decoder = steps_of(("dense", "gelu", "layer_norm"), ("decoder",))(parts)
    assert decoder.map is not None
    # The module gives other numbers than this map, so that it must not be listened to.
    return dense, replace(decoder, map=replace(decoder.map, bias=parts["bias"].detach(), module=None))


_ROBERTA = {
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": SPANS,
    "ForMaskedLM": LM_HEAD,
    "ForMultipleChoice": pooled("roberta_prelayernorm", "classifier"),
    "Model": BARE,
}
_MEGATRON = {
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": SPANS,
    "ForMaskedLM": PREDICTIONS,
    "ForMultipleChoice": pooled("bert", "classifier"),
    "ForNextSentencePrediction": pooled("bert", "cls.seq_relationship"),
    "ForPreTraining": pooled("bert", "cls.seq_relationship"),
    "Model": BARE,
}
_ESM = {"ForTokenClassification": TOKENS, "ForMaskedLM": module("lm_head", _esm_predictions), "Model": BARE}

_NAME = "roberta_prelayernorm"

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "EsmForSequenceClassification": partial(classifier, encoder="esm", head=dense_and_out_proj, body=esm_body),
    "MegatronBertForSequenceClassification": partial(
        classifier, encoder="bert", head=pooler_and_classifier, body=megatron_body
    ),
    "RobertaPreLayerNormForSequenceClassification": partial(
        classifier, encoder=_NAME, head=dense_and_out_proj, body=roberta_prelayernorm_body
    ),
    **headed("Esm", esm_body, "esm", _ESM),
    **headed("MegatronBert", megatron_body, "bert", _MEGATRON),
    **headed("RobertaPreLayerNorm", roberta_prelayernorm_body, _NAME, _ROBERTA),
}
