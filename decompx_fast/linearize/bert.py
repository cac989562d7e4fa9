"""BERT and the models that share its layers: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, Data2VecText.

Post-norm layers of one attention and one feed-forward network; they differ in the name of the encoder and in the head.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ..errors import UnsupportedModelError
from .spec import (
    AttentionSpec,
    FeedForwardSpec,
    HeadStepSpec,
    InputLimits,
    LayerSpec,
    ModelSpec,
    SublayerSpec,
    affine,
    layer_norm,
)

#: A module of transformers: what parts it has is known only when it runs.
Module = Any


def bert_layer(layer: Module, name: str) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    attention, output = layer.attention.self, layer.attention.output
    position_type = getattr(attention, "position_embedding_type", None)
    if position_type not in (None, "absolute"):
        raise UnsupportedModelError(
            f"{name}.attention uses position_embedding_type={position_type!r}: only 'absolute' can be explained here"
        )
    norm = layer_norm(output.LayerNorm, f"{name}.attention.output.LayerNorm")
    d = output.LayerNorm.normalized_shape[0]
    heads, size = attention.num_attention_heads, attention.attention_head_size
    attend = AttentionSpec(
        query=affine(attention.query, f"{name}.attention.self.query", d),
        key=affine(attention.key, f"{name}.attention.self.key", d),
        value=affine(attention.value, f"{name}.attention.self.value", d),
        out=affine(output.dense, f"{name}.attention.output.dense", heads * size),
        heads=heads,
        kv_heads=heads,
        scale=getattr(attention, "scaling", size**-0.5),
        causal=bool(getattr(layer, "is_decoder", False)),
    )
    into = affine(layer.intermediate.dense, f"{name}.intermediate.dense", d)
    feed = FeedForwardSpec(
        into=into,
        out=affine(layer.output.dense, f"{name}.output.dense", into.weight.shape[1]),
        activation=activation_name(layer.intermediate.intermediate_act_fn, f"{name}.intermediate"),
    )
    return (
        SublayerSpec((attend,), post_norm=norm),
        SublayerSpec((feed,), post_norm=layer_norm(layer.output.LayerNorm, f"{name}.output.LayerNorm")),
    )


#: Activation modules by the name of their class, as torch and transformers call them.
ACTIVATION_CLASSES = {
    "GELUActivation": "gelu",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "GELUTanh": "gelu_tanh",
    "AccurateGELUActivation": "gelu_tanh",
    "QuickGELUActivation": "quick_gelu",
    "ReLU": "relu",
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "Tanh": "tanh",
}


def activation_name(function: object, name: str) -> str:
    """The name of an activation module or function.

    Raises:
        UnsupportedModelError: if it is none that can be linearised.
    """
    kind = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, nn.GELU):
        return "gelu_tanh" if function.approximate == "tanh" else "gelu"
    known = ACTIVATION_CLASSES.get(kind, kind if kind in ("gelu", "relu", "silu", "tanh") else None)
    if known is None:
        supported = ", ".join(sorted(set(ACTIVATION_CLASSES.values())))
        raise UnsupportedModelError(
            f"{name} uses the activation {kind}, which cannot be linearised yet: supported are {supported}"
        )
    return known


def _spec(encoder: Module, name: str, head: tuple[HeadStepSpec, ...]) -> ModelSpec:
    layers = tuple(encoder.encoder.layer)
    embeddings = encoder.embeddings
    positions = embeddings.position_embeddings
    # In the RoBERTa family position numbers start after the padding index.
    unused = 0 if positions.padding_idx is None else positions.padding_idx + 1
    sizes = {
        "input_ids": embeddings.word_embeddings.num_embeddings,
        "token_type_ids": embeddings.token_type_embeddings.num_embeddings,
        "position_ids": positions.num_embeddings,
    }
    return ModelSpec(
        layer_modules=layers,
        layers=tuple(bert_layer(layer, f"{name}.encoder.layer.{n}") for n, layer in enumerate(layers)),
        head=head,
        read=0,
        limits=InputLimits(positions.num_embeddings - unused, sizes),
    )


def bert(model: Module) -> ModelSpec:
    """``BertForSequenceClassification``: pooler with tanh, then a classifier."""
    pooler = affine(model.bert.pooler.dense, "bert.pooler.dense", model.config.hidden_size)
    activation = activation_name(model.bert.pooler.activation, "bert.pooler")
    classifier = affine(model.classifier, "classifier", pooler.weight.shape[1])
    return _spec(model.bert, "bert", (HeadStepSpec(pooler, activation), HeadStepSpec(classifier)))


def _dense_out_proj(model: Module, activation: str) -> tuple[HeadStepSpec, ...]:
    dense = affine(model.classifier.dense, "classifier.dense", model.config.hidden_size)
    out = affine(model.classifier.out_proj, "classifier.out_proj", dense.weight.shape[1])
    return HeadStepSpec(dense, activation), HeadStepSpec(out)


def roberta(model: Module) -> ModelSpec:
    """``RobertaForSequenceClassification`` and those built the same: dense, tanh, out_proj."""
    return _spec(model.roberta, "roberta", _dense_out_proj(model, "tanh"))


def data2vec_text(model: Module) -> ModelSpec:
    """``Data2VecTextForSequenceClassification``: RoBERTa under another name."""
    return _spec(model.data2vec_text, "data2vec_text", _dense_out_proj(model, "tanh"))


def electra(model: Module) -> ModelSpec:
    """``ElectraForSequenceClassification``: dense, GELU, out_proj."""
    activation = activation_name(model.classifier.activation, "classifier")
    return _spec(model.electra, "electra", _dense_out_proj(model, activation))


FAMILIES = {
    "BertForSequenceClassification": bert,
    "RobertaForSequenceClassification": roberta,
    "XLMRobertaForSequenceClassification": roberta,
    "CamembertForSequenceClassification": roberta,
    "Data2VecTextForSequenceClassification": data2vec_text,
    "ElectraForSequenceClassification": electra,
}
