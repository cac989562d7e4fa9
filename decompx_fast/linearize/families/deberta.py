"""DeBERTa, all three versions: BERT's layers whose attention also compares contents with relative positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ...errors import UnsupportedModelError
from ..spec import Affine, AttentionSpec, Context, HeadStepSpec, LayerSpec, ModelSpec, SublayerSpec
from .heads import BARE, PREDICTIONS, SPANS, TOKENS, HeadKind, headed, in_turn
from .parts import Module, Parts, embedding_limits, model_spec


class DisentangledPositions:
    """What DeBERTa adds to the logits: contents against embedded distances, one way (``c2p``) and the other (``p2c``).

    Source: He et al., DeBERTa (ICLR 2021), equation 4; the scale is that of all its terms.
    """

    def __init__(self, attention: Parts, names: tuple[str, str], span: int, scale: float) -> None:
        """``names`` are those of the maps of embedded distances to keys and to queries; distances end at ``span``."""
        kinds = attention["pos_att_type"]
        self.key, self.query = (
            attention.affine(name) if kind in kinds else None for name, kind in zip(names, ("c2p", "p2c"), strict=True)
        )
        self.span, self.scale = span, scale

    def __call__(self, query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor | None]:
        distances = context["relative_pos"].to(torch.long).view(query.shape[2], key.shape[2])  # [i, j]
        embedded = context["rel_embeddings"][: 2 * self.span].to(query.dtype)
        logits = query.new_zeros(())
        if self.key is not None:
            against = query @ self._heads(self.key, embedded, query).transpose(-1, -2)  # [b, h, i, distance]
            logits = logits + against.gather(-1, self._index(distances, against))
        if self.query is not None:
            against = key @ self._heads(self.query, embedded, query).transpose(-1, -2)  # [b, h, j, distance]
            logits = logits + against.gather(-1, self._index(distances.T, against)).transpose(-1, -2)
        return query, key, logits * self.scale

    def _index(self, distances: Tensor, against: Tensor) -> Tensor:
        index = (distances + self.span).clamp(0, 2 * self.span - 1)
        return index.expand(*against.shape[:2], -1, -1)

    def _heads(self, map_: Affine, embedded: Tensor, like: Tensor) -> Tensor:
        return map_.to(like.dtype)(embedded).unflatten(-1, (like.shape[1], -1)).transpose(0, 1)  # [h, distance, v]


def scale_of(size: int, terms: int) -> float:
    """The scale of each of the terms of the logits; the model takes its root in float32, whatever it computes in."""
    return 1 / torch.tensor(float(size * terms), dtype=torch.float32).sqrt().item()


def deberta_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    attention = layer.below("attention.self")
    size, kinds = attention["attention_head_size"], attention["pos_att_type"]
    scale = scale_of(size, 1 + ("c2p" in kinds) + ("p2c" in kinds))
    positions = None
    if attention["relative_attention"]:
        names = ("key_proj", "query_proj") if attention["share_att_key"] else ("pos_key_proj", "pos_query_proj")
        positions = DisentangledPositions(attention, names, attention["pos_ebd_size"], scale)
    attend = layer.attention(
        [*(f"attention.self.{name}_proj" for name in ("query", "key", "value")), "attention.output.dense"],
        heads=attention["num_attention_heads"],
        size=size,
        scale=scale,
        positions=positions,
    )
    feed = layer.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
    return (
        SublayerSpec((attend,), post_norm=layer.norm("attention.output.LayerNorm")),
        SublayerSpec((feed,), post_norm=layer.norm("output.LayerNorm")),
    )


def deberta_v1_layer(layer: Parts) -> LayerSpec:
    """The same with queries, keys and values of one map, in turns for each head, and biases of their own."""
    attention = layer.below("attention.self")
    if attention["talking_head"]:
        raise UnsupportedModelError(
            f"{attention.name} has talking heads, which mix the attention weights of all heads once more: their rows "
            "do not sum to 1, so the model cannot be explained exactly"
        )
    heads, size = attention["num_attention_heads"], attention["attention_head_size"]
    packed = attention.affine("in_proj")
    # Heads take turns. What the module gives has not the biases, so that nothing is read from it.
    query, key, value = (packed.columns_of(n * size, (n + 1) * size, heads).weight for n in range(3))  # [d, h, v]
    query_bias, value_bias = attention["q_bias"].detach(), attention["v_bias"].detach()
    scale = scale_of(size, 1 + len(attention["pos_att_type"]))
    positions = None
    if attention["relative_attention"]:
        # Of the embedded distances the model takes those that occur; the others are never read.
        span = attention["max_relative_positions"]
        positions = DisentangledPositions(attention, ("pos_proj", "pos_q_proj"), span, scale)
    attend = AttentionSpec(
        Affine(query, query_bias),
        Affine(key, None),
        Affine(value, value_bias),
        layer.affine("attention.output.dense", heads * size),
        heads,
        heads,
        scale,
        positions=positions,
    )
    feed = layer.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
    return (
        SublayerSpec((attend,), post_norm=layer.own_norm("attention.output.LayerNorm")),
        SublayerSpec((feed,), post_norm=layer.own_norm("output.LayerNorm")),
    )


def _body(
    model: Module, encoder: str, describe_layer: Callable[[Parts], LayerSpec], *, in_float32: bool = False
) -> ModelSpec:
    base = Parts(model, "", model.config.hidden_size).below(encoder)
    layers = [base.below(f"encoder.layer.{n}") for n in range(len(base["encoder.layer"]))]
    limits = embedding_limits(base.below("embeddings"), most=model.config.max_position_embeddings)
    return model_spec(layers, describe_layer, (), limits, in_float32=in_float32)


def deberta_v1_body(model: Module, encoder: str) -> ModelSpec:
    """The layers of the first version, whose norms compute in float32, whatever the head."""
    return _body(model, encoder, deberta_v1_layer, in_float32=True)


def deberta_v2_body(model: Module, encoder: str) -> ModelSpec:
    """Those of versions 2 and 3; some have a convolution after the first layer."""
    spec, base = _body(model, encoder, deberta_layer), Parts(model, "", model.config.hidden_size).below(encoder)
    return spec if base["encoder.conv"] is None else _with_convolution(spec, base.below("encoder.conv"))


def _classifier(model: Module, body: Callable[[Module, str], ModelSpec]) -> ModelSpec:
    """Pooler with its activation, then a classifier."""
    spec = body(model, "deberta")
    parts = Parts(model, "", spec.width)
    return replace(spec, head=(parts.step("pooler.dense", model.config.pooler_hidden_act), parts.step("classifier")))


def _with_convolution(spec: ModelSpec, part: Parts) -> ModelSpec:
    """After the first layer: a convolution of the embedding, add and norm."""
    convolve = part.convolution("conv", part["conv_act"])
    first, *rest = spec.layers
    first = (*first, SublayerSpec((convolve,), post_norm=part.norm("LayerNorm")))
    return replace(spec, layers=(first, *rest), state_modules=(part.module, *spec.state_modules[1:]))


def _choice(parts: Parts) -> tuple[HeadStepSpec, ...]:
    return parts.step("pooler.dense", parts["config"].pooler_hidden_act), parts.step("classifier")


_HEADS = {"ForTokenClassification": TOKENS, "ForQuestionAnswering": SPANS, "ForMaskedLM": PREDICTIONS, "Model": BARE}
_CHOICE = HeadKind(_choice, in_turn(calls=("classifier",), pooler="pooler").call, read=0)

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "DebertaForSequenceClassification": partial(_classifier, body=deberta_v1_body),
    "DebertaV2ForSequenceClassification": partial(_classifier, body=deberta_v2_body),
    **headed("Deberta", deberta_v1_body, "deberta", _HEADS),
    **headed("DebertaV2", deberta_v2_body, "deberta", _HEADS | {"ForMultipleChoice": _CHOICE}),
}
