"""BERT and the models that share its layers: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, Data2VecText, ERNIE, LayoutLM.

Post-norm layers of one attention and one feed-forward network; they differ in the name of the encoder and in the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from ...errors import UnsupportedModelError
from ..spec import AttentionSpec, FeedForwardSpec, HeadStepSpec, LayerSpec, ModelSpec, SublayerSpec, embedding_module
from .heads import BARE, SPANS, TOKENS, HeadKind, module, with_head
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


def _encoder(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model, ``""`` for a model without head."""
    parts = Parts(model, "", model.config.hidden_size)
    base = parts.below(encoder) if encoder else parts
    layers = [base.below(f"encoder.layer.{n}") for n in range(len(base["encoder.layer"]))]
    return model_spec(layers, bert_layer, (), embedding_limits(base.below("embeddings")))


def _model(model: Module, encoder: str, head: Callable[[Parts, str], tuple[HeadStepSpec, ...]]) -> ModelSpec:
    """A sequence classifier, which is run as a whole."""
    return replace(_encoder(model, encoder), head=head(Parts(model, "", model.config.hidden_size), encoder))


def _with(model: Module, encoder: str, head: HeadKind) -> ModelSpec:
    """An encoder and any other head."""
    return with_head(_encoder(model, encoder), Parts(model, "", model.config.hidden_size), head, encoder)


def _predictions(parts: Parts) -> tuple[HeadStepSpec, ...]:
    """Of a masked language model: dense, activation, norm; then the vocabulary."""
    transform = parts.step("transform.dense", parts.activation("transform.transform_act_fn"), "transform.LayerNorm")
    return transform, parts.step("decoder")


def _lm_head(parts: Parts) -> tuple[HeadStepSpec, ...]:
    """The same with RoBERTa's names."""
    return parts.step("dense", "gelu", "layer_norm"), parts.step("decoder")


def _generator(parts: Parts) -> tuple[HeadStepSpec, ...]:
    """ELECTRA's generator, whose vocabulary is as wide as its embeddings."""
    transform = parts.step(
        "generator_predictions.dense",
        parts.activation("generator_predictions.activation"),
        "generator_predictions.LayerNorm",
    )
    return transform, parts.step("generator_lm_head", features=parts["generator_lm_head.in_features"])


def _discriminator(parts: Parts) -> tuple[HeadStepSpec, ...]:
    """Whether a token was replaced."""
    return parts.step("dense", parts.activation("activation")), parts.step("dense_prediction")


GENERATOR = HeadKind(_generator, lambda model, rows: model.generator_lm_head(model.generator_predictions(rows)))
DISCRIMINATOR = HeadKind(
    lambda parts: _discriminator(parts.below("discriminator_predictions")),
    lambda model, rows: model.discriminator_predictions(rows).unsqueeze(-1),
)


def _pooled(encoder: str, path: str) -> HeadKind:
    """The pooler at the first position and one map: the score of one choice, or whether a sentence follows."""

    def call(model: Module, rows: Tensor) -> Tensor:
        parts = Parts(model, "", model.config.hidden_size)
        found: Tensor = parts[path](parts[f"{encoder}.pooler"](rows.unsqueeze(1)))
        return found

    def steps(parts: Parts) -> tuple[HeadStepSpec, ...]:
        pooler = parts.step(f"{encoder}.pooler.dense", parts.activation(f"{encoder}.pooler.activation"))
        return pooler, parts.step(path, features=pooler.map.weight.shape[1] if pooler.map else None)

    return HeadKind(steps, call, read=0)


def _bare(model: Module) -> ModelSpec:
    return with_head(_encoder(model, ""), Parts(model, "", model.config.hidden_size), BARE, None)


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
    # Other heads, by what they are for.
    "BertForTokenClassification": partial(_with, encoder="bert", head=TOKENS),
    "BertForQuestionAnswering": partial(_with, encoder="bert", head=SPANS),
    "BertForMaskedLM": partial(_with, encoder="bert", head=module("cls.predictions", _predictions)),
    "BertForNextSentencePrediction": partial(_with, encoder="bert", head=_pooled("bert", "cls.seq_relationship")),
    "BertForMultipleChoice": partial(_with, encoder="bert", head=_pooled("bert", "classifier")),
    "BertModel": _bare,
    "RobertaForTokenClassification": partial(_with, encoder="roberta", head=TOKENS),
    "RobertaForQuestionAnswering": partial(_with, encoder="roberta", head=SPANS),
    "RobertaForMaskedLM": partial(_with, encoder="roberta", head=module("lm_head", _lm_head)),
    "RobertaForMultipleChoice": partial(_with, encoder="roberta", head=_pooled("roberta", "classifier")),
    "RobertaModel": _bare,
    "ElectraForTokenClassification": partial(_with, encoder="electra", head=TOKENS),
    "ElectraForQuestionAnswering": partial(_with, encoder="electra", head=SPANS),
    "ElectraForMaskedLM": partial(_with, encoder="electra", head=GENERATOR),
    "ElectraForPreTraining": partial(_with, encoder="electra", head=DISCRIMINATOR),
    "ElectraModel": _bare,
}
