"""BERT and the models that share its layers: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, Data2VecText, ERNIE, LayoutLM.

Post-norm layers of one attention and one feed-forward network; they differ in the name of the encoder and in the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...errors import UnsupportedModelError
from ..readers import embedding_module
from ..spec import AttentionSpec, FeedForwardSpec, HeadStepSpec, LayerSpec, ModelSpec, SublayerSpec
from .heads import (
    BARE,
    LM_HEAD,
    PREDICTIONS,
    SPANS,
    TOKENS,
    HeadKind,
    Read,
    headed,
    in_turn,
    module,
    pooled,
    steps_of,
)
from .parts import Module, Parts, embedding_limits, model_spec, plain_attention

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


def bert_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model, ``""`` for a model without head."""
    base = Parts(model, "", model.config.hidden_size).below(encoder)
    layers = [base.below(f"encoder.layer.{n}") for n in range(len(base["encoder.layer"]))]
    return model_spec(layers, bert_layer, (), embedding_limits(base.below("embeddings")))


def layoutlm_body(model: Module, encoder: str) -> ModelSpec:
    """BERT with embeddings of each token's box on the page, ``bbox``."""
    spec, embeddings = bert_body(model, encoder), Parts(model, "", model.config.hidden_size)
    embeddings = embeddings.below(encoder).below("embeddings")
    names = [f"{axis}_position_embeddings" for axis in "xyhw"]
    size = min(embedding_module(embeddings[name], f"{embeddings.name}.{name}").num_embeddings for name in names)
    limits = replace(spec.limits, sizes={**spec.limits.sizes, "bbox": size})
    return replace(spec, limits=limits, in_float32=plain_attention(model))


def classifier(
    model: Module,
    encoder: str,
    head: Callable[[Parts, str], tuple[HeadStepSpec, ...]],
    body: Callable[[Module, str], ModelSpec] = bert_body,
) -> ModelSpec:
    """A sequence classifier, which is run as a whole."""
    spec = body(model, encoder)
    return replace(spec, head=head(Parts(model, "", spec.width), encoder))


#: RemBERT's masked language model, with as many numbers before the vocabulary as its configuration says.
REMBERT_PREDICTIONS = module("cls.predictions", steps_of(("dense", "activation", "LayerNorm"), ("decoder",)))

#: ELECTRA's generator, whose vocabulary is as wide as its embeddings, and its discriminator: was a token replaced?
GENERATOR = in_turn(
    ("generator_predictions.dense", "generator_predictions.activation", "generator_predictions.LayerNorm"),
    ("generator_lm_head",),
    calls=("generator_predictions", "generator_lm_head"),
)
DISCRIMINATOR = HeadKind(
    steps_of(
        ("discriminator_predictions.dense", "discriminator_predictions.activation"),
        ("discriminator_predictions.dense_prediction",),
    ),
    lambda model, rows: model.discriminator_predictions(rows).unsqueeze(-1),
)

#: ELECTRA's choices: a summary of the sequence and one map.
SUMMARY = in_turn(
    ("sequence_summary.summary", "sequence_summary.activation"),
    ("classifier",),
    calls=("classifier",),
    pooler="sequence_summary",
)


def summary_read(model: Module) -> Read:
    """What a summary of the sequence reads. Padding is never there, so the last token is the text's.

    Raises:
        UnsupportedModelError: for a kind of summary that is none of :data:`SUMMARY_READ`.
    """
    kind = model.sequence_summary.summary_type
    if kind not in SUMMARY_READ:
        raise UnsupportedModelError(f"sequence_summary.summary_type={kind!r}: supported are {', '.join(SUMMARY_READ)}")
    return SUMMARY_READ[kind]


#: What is read, by the option ``summary_type``.
SUMMARY_READ: dict[str, Read] = {"first": 0, "last": -1, "cls_index": -1, "mean": "mean"}


def _heads(encoder: str, masked: HeadKind, *, next_sentence: bool = False) -> dict[str, HeadKind]:
    """The heads that most have."""
    heads = {
        "ForTokenClassification": TOKENS,
        "ForQuestionAnswering": SPANS,
        "ForMaskedLM": masked,
        "ForMultipleChoice": pooled(encoder, "classifier"),
        "Model": BARE,
    }
    if next_sentence:
        follows = pooled(encoder, "cls.seq_relationship")
        heads |= {"ForNextSentencePrediction": follows, "ForPreTraining": follows}
    return heads


_ELECTRA = {
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": SPANS,
    "ForMaskedLM": GENERATOR,
    "ForPreTraining": DISCRIMINATOR,
    "ForMultipleChoice": replace(SUMMARY, read_of=summary_read),
    "Model": BARE,
}
_LAYOUTLM = {
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": SPANS,
    "ForMaskedLM": PREDICTIONS,
    "Model": BARE,
}

_pooled = partial(classifier, head=pooler_and_classifier)
_dense = partial(classifier, head=dense_and_out_proj)

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "BertForSequenceClassification": partial(_pooled, encoder="bert"),
    "RobertaForSequenceClassification": partial(_dense, encoder="roberta"),
    "XLMRobertaForSequenceClassification": partial(_dense, encoder="roberta"),
    "CamembertForSequenceClassification": partial(_dense, encoder="roberta"),
    "Data2VecTextForSequenceClassification": partial(_dense, encoder="data2vec_text"),
    "ElectraForSequenceClassification": partial(_dense, encoder="electra"),
    "ErnieForSequenceClassification": partial(_pooled, encoder="ernie"),
    "LayoutLMForSequenceClassification": partial(_pooled, encoder="layoutlm", body=layoutlm_body),
    "RemBertForSequenceClassification": partial(_pooled, encoder="rembert"),
    **headed("Bert", bert_body, "bert", _heads("bert", PREDICTIONS, next_sentence=True)),
    **headed("Roberta", bert_body, "roberta", _heads("roberta", LM_HEAD)),
    **headed("XLMRoberta", bert_body, "roberta", _heads("roberta", LM_HEAD)),
    **headed("Camembert", bert_body, "roberta", _heads("roberta", LM_HEAD)),
    **headed("Data2VecText", bert_body, "data2vec_text", _heads("data2vec_text", LM_HEAD)),
    **headed("Ernie", bert_body, "ernie", _heads("ernie", PREDICTIONS, next_sentence=True)),
    **headed("RemBert", bert_body, "rembert", _heads("rembert", REMBERT_PREDICTIONS)),
    **headed("Electra", bert_body, "electra", _ELECTRA),
    **headed("LayoutLM", layoutlm_body, "layoutlm", _LAYOUTLM),
}
