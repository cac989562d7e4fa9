"""DeBERTa v2 and v3: BERT's layers whose attention also compares contents with relative positions."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import UnsupportedModelError
from ..spec import Affine, Context, LayerSpec, ModelSpec, SublayerSpec
from .parts import Module, Parts, embedding_limits, model_spec


class DisentangledPositions:
    """What DeBERTa adds to the logits: contents against embedded distances, one way (``c2p``) and the other (``p2c``).

    Source: He et al., DeBERTa (ICLR 2021), equation 4; the scale is that of all its terms.
    """

    def __init__(self, layer: Parts, scale: float) -> None:
        attention = layer.below("attention.self")
        names = ("key_proj", "query_proj") if attention["share_att_key"] else ("pos_key_proj", "pos_query_proj")
        kinds = attention["pos_att_type"]
        self.key, self.query = (
            attention.affine(name) if kind in kinds else None for name, kind in zip(names, ("c2p", "p2c"), strict=True)
        )
        self.span = attention["pos_ebd_size"]
        self.scale = scale

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


def deberta_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    heads, size = layer["attention.self.num_attention_heads"], layer["attention.self.attention_head_size"]
    kinds = layer["attention.self.pos_att_type"]
    # The model takes this root in float32, whatever it computes in.
    root = torch.tensor(float(size * (1 + ("c2p" in kinds) + ("p2c" in kinds))), dtype=torch.float32).sqrt()
    scale = 1 / root.item()
    attend = layer.attention(
        [*(f"attention.self.{name}_proj" for name in ("query", "key", "value")), "attention.output.dense"],
        heads=heads,
        size=size,
        scale=scale,
        positions=DisentangledPositions(layer, scale) if layer["attention.self.relative_attention"] else None,
    )
    feed = layer.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
    return (
        SublayerSpec((attend,), post_norm=layer.norm("attention.output.LayerNorm")),
        SublayerSpec((feed,), post_norm=layer.norm("output.LayerNorm")),
    )


def deberta_v2(model: Module) -> ModelSpec:
    """``DebertaV2ForSequenceClassification``, also of v3: pooler with its activation, then a classifier."""
    if model.deberta.encoder.conv is not None:
        raise UnsupportedModelError(
            "this DeBERTa has a convolution after its first layer (conv_kernel_size), which reads the embeddings once "
            "more: it cannot be explained yet"
        )
    parts = Parts(model, "", model.config.hidden_size)
    layers = [parts.below(f"deberta.encoder.layer.{n}") for n in range(len(model.deberta.encoder.layer))]
    head = (parts.step("pooler.dense", model.config.pooler_hidden_act), parts.step("classifier"))
    limits = embedding_limits(parts.below("deberta.embeddings"), most=model.config.max_position_embeddings)
    return model_spec(layers, deberta_layer, head, limits)


FAMILIES = {"DebertaV2ForSequenceClassification": deberta_v2}
