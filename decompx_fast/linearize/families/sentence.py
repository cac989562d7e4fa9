"""Encoders without a head, each by the layers of its own family, and the sentence encoders made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal

from torch import Tensor, nn

from ...errors import UnsupportedModelError
from ..spec import HeadStepSpec, InputLimits, LayerSpec, ModelSpec, affine, embedding_module, layer_norm
from .albert import albert_layer
from .bert import bert_layer
from .bigbird import attend_fully
from .deberta import _with_convolution, deberta_layer, deberta_v1_layer
from .distilbert import distilbert_layer
from .modernbert import modernbert_layer
from .mpnet import mpnet_layer
from .parts import Module, Parts, activation_name, embedding_limits, model_spec
from .prenorm import esm_layer, megatron_layer, roberta_prelayernorm_layer
from .rotary import eurobert_layer, nomic_layer, roformer_layer
from .xlm import xlm_layer

#: What a head of no steps is: what is read is what is given.
NOTHING_MORE = (HeadStepSpec(),)

#: What each pooling reads.
READ: dict[str, int | Literal["mean"]] = {"mean": "mean", "cls": 0, "lasttoken": -1}


def encoder(
    layer: Callable[[Parts], LayerSpec],
    layers: str = "encoder.layer",
    *,
    embeddings: str = "embeddings",
    words: str = "word_embeddings",
    final_norm: str | None = None,
    most: str | None = None,
    in_float32: bool = False,
) -> Callable[[Module], ModelSpec]:
    """How an encoder is described whose layers are in one list.

    Args:
        layer: reads a layer.
        layers, embeddings, words, final_norm: paths; of the words below the embeddings.
        most: the option that says how many positions there are, where nothing stores them.
        in_float32: as :class:`..spec.ModelSpec` has it.
    """

    def describe(model: Module) -> ModelSpec:
        config = model.config
        parts = Parts(model, "", config.dim if model.config.model_type == "distilbert" else config.hidden_size)
        below = parts.below(embeddings) if embeddings else parts
        limits = embedding_limits(below, words, most=None if most is None else getattr(config, most))
        norm = None
        if final_norm is not None:
            is_plain = isinstance(parts[final_norm], nn.LayerNorm)
            norm = parts[final_norm], (parts.norm if is_plain else parts.rms_norm)(final_norm)
        modules = [parts.below(f"{layers}.{n}") for n in range(len(parts[layers]))]
        return model_spec(modules, layer, NOTHING_MORE, limits, final_norm=norm, in_float32=in_float32)

    return describe


def albert(model: Module) -> ModelSpec:
    """``AlbertModel``, a few of whose layers serve as many."""
    config = model.config
    parts = Parts(model, "", config.hidden_size)
    layers = []
    for n in range(config.num_hidden_layers):
        path = f"encoder.albert_layer_groups.{n * config.num_hidden_groups // config.num_hidden_layers}.albert_layers"
        layers += [parts.below(f"{path}.{inner}") for inner in range(len(parts[path]))]
    return model_spec(layers, albert_layer, NOTHING_MORE, embedding_limits(parts.below("embeddings")))


def bigbird(model: Module) -> ModelSpec:
    """``BigBirdModel``, as far as it attends fully."""

    def prepare(own: Module, inputs: Mapping[str, Tensor]) -> None:
        attend_fully(SimpleNamespace(bert=getattr(own, "encoder", own), config=own.config), inputs)

    return replace(encoder(bert_layer)(model), prepare=prepare)


def deberta_v2(model: Module) -> ModelSpec:
    """``DebertaV2Model``, also of v3; some have a convolution after the first layer."""
    spec = encoder(deberta_layer, most="max_position_embeddings")(model)
    if model.encoder.conv is None:
        return spec
    return _with_convolution(spec, Parts(model, "", model.config.hidden_size).below("encoder.conv"))


def layoutlm(model: Module) -> ModelSpec:
    """``LayoutLMModel``, with the boxes of its tokens, ``bbox``."""
    spec = encoder(bert_layer)(model)
    tables = [getattr(model.embeddings, f"{axis}_position_embeddings") for axis in "xyhw"]
    size = min(embedding_module(table, "embeddings").num_embeddings for table in tables)
    return replace(spec, limits=replace(spec.limits, sizes={**spec.limits.sizes, "bbox": size}))


def xlm(model: Module) -> ModelSpec:
    """``XLMModel`` and ``FlaubertModel``, with norms after the residuals; the softmax computes in float32."""
    if getattr(model, "pre_norm", False):
        raise UnsupportedModelError(
            "this FlauBERT has its norms before the branches (pre_norm=True), so that no module gives the states after "
            "its layers: they could not be checked, so it is refused"
        )
    parts = Parts(model, "", model.config.emb_dim)
    limits = embedding_limits(parts, words="embeddings", types=None)
    sizes = {**limits.sizes, "token_type_ids": limits.sizes["input_ids"]}  # types are embedded as words are
    return ModelSpec(
        layer_modules=tuple(model.attentions),
        layers=tuple(xlm_layer(parts, number) for number in range(len(model.attentions))),
        head=NOTHING_MORE,
        read=0,
        limits=InputLimits(limits.positions, sizes),
        state_modules=tuple(model.layer_norm2),
        in_float32=True,
        in_place=True,
    )


#: Encoders without a head, by the name of their class in transformers; read at the first position.
ENCODERS: dict[str, Callable[[Module], ModelSpec]] = {
    "AlbertModel": albert,
    "BertModel": encoder(bert_layer),
    "BigBirdModel": bigbird,
    "CamembertModel": encoder(bert_layer),
    "Data2VecTextModel": encoder(bert_layer),
    "DebertaModel": encoder(deberta_v1_layer, most="max_position_embeddings", in_float32=True),
    "DebertaV2Model": deberta_v2,
    "DistilBertModel": encoder(distilbert_layer, "transformer.layer"),
    "ElectraModel": encoder(bert_layer),
    "ErnieModel": encoder(bert_layer),
    "EsmModel": encoder(esm_layer, final_norm="encoder.emb_layer_norm_after", most="max_position_embeddings"),
    "EuroBertModel": encoder(
        eurobert_layer,
        "layers",
        embeddings="",
        words="embed_tokens",
        final_norm="norm",
        most="max_position_embeddings",
        in_float32=True,
    ),
    "FlaubertModel": xlm,
    "GteModel": encoder(nomic_layer, "layers", most="max_position_embeddings"),
    "JinaEmbeddingsV3Model": encoder(nomic_layer, "layers", most="max_position_embeddings"),
    "LayoutLMModel": layoutlm,
    "MPNetModel": encoder(mpnet_layer),
    "MegatronBertModel": encoder(megatron_layer, final_norm="encoder.ln"),
    "ModernBertModel": encoder(
        modernbert_layer, "layers", words="tok_embeddings", final_norm="final_norm", most="max_position_embeddings"
    ),
    "NomicBertModel": encoder(nomic_layer, "layers", most="max_position_embeddings"),
    "RemBertModel": encoder(bert_layer),
    "RoFormerModel": encoder(roformer_layer, most="max_position_embeddings"),
    "RobertaModel": encoder(bert_layer),
    "RobertaPreLayerNormModel": encoder(roberta_prelayernorm_layer, final_norm="LayerNorm"),
    "XLMModel": xlm,
    "XLMRobertaModel": encoder(bert_layer),
}


def is_encoder(model: Module) -> bool:
    """Whether a model is one of :data:`ENCODERS`."""
    return any(cls.__name__ in ENCODERS for cls in type(model).__mro__)


def sentence_encoder(model: Module) -> ModelSpec:
    """:class:`..sentence.SentenceEncoder`: the encoder, what its pooling reads, and its steps."""
    names = [cls.__name__ for cls in type(model.encoder).__mro__ if cls.__name__ in ENCODERS]
    if not names:
        raise UnsupportedModelError(
            f"{type(model.encoder).__name__} is no encoder that can be explained: supported are {', '.join(ENCODERS)}"
        )
    spec = ENCODERS[names[0]](model.encoder)
    limits, width = spec.limits, spec.width
    if model.max_tokens is not None:
        limits = replace(limits, positions=min(model.max_tokens, limits.positions or model.max_tokens))
    steps = []
    for n, step in enumerate(model.steps):
        steps.append(_step(step, f"steps.{n}", width))
        map_ = steps[-1].map
        width = width if map_ is None else map_.weight.shape[1]
    return replace(spec, head=tuple(steps) or NOTHING_MORE, read=READ[model.pooling], limits=limits)


def _step(step: Module, name: str, features: int) -> HeadStepSpec:
    """A step after the pooling, of a vector of so many numbers."""
    return HeadStepSpec(
        None if step.linear is None else affine(step.linear, f"{name}.linear", features),
        None if step.activation is None else activation_name(step.activation, f"{name}.activation"),
        None if step.norm is None else layer_norm(step.norm, f"{name}.norm"),
    )
