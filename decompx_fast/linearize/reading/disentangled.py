"""DeBERTa's positions, which all three versions have: contents compared with embedded distances."""

from __future__ import annotations

import torch
from torch import Tensor

from ..spec import Affine, Context
from .parts import Parts


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
