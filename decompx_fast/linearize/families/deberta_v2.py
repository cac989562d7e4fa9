"""DeBERTa, versions 2 and 3: BERT's layers with disentangled positions, and perhaps a convolution after the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..reading.disentangled import DisentangledPositions, scale_of
from ..reading.heads import PREDICTIONS, HeadKind, headed, in_turn, text_heads
from ..reading.parts import Module, Parts, post_norm, whole
from ..spec import LayerSpec, ModelSpec, SublayerSpec
from .deberta import body, pooler_and_classifier


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
    return post_norm(attend, feed, layer.norm("attention.output.LayerNorm"), layer.norm("output.LayerNorm"))


def deberta_v2_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; some have a convolution after the first."""
    spec, base = body(model, encoder, deberta_layer), whole(model, encoder)
    return spec if base["encoder.conv"] is None else _with_convolution(spec, base.below("encoder.conv"))


def _with_convolution(spec: ModelSpec, part: Parts) -> ModelSpec:
    """After the first layer: a convolution of the embedding, add and norm."""
    convolve = part.convolution("conv", part["conv_act"])
    first, *rest = spec.layers
    first = (*first, SublayerSpec((convolve,), post_norm=part.norm("LayerNorm")))
    return replace(spec, layers=(first, *rest), state_modules=(part.module, *spec.state_modules[1:]))


_CHOICE = HeadKind(pooler_and_classifier, in_turn(calls=("classifier",), pooler="pooler").call, read=0)

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = headed(
    "DebertaV2", deberta_v2_body, "deberta", text_heads(PREDICTIONS, _CHOICE), pooler_and_classifier
)
