"""Which networks of many a position goes through, and how they are weighed: routes of :class:`..spec.RoutedSpec`."""

from __future__ import annotations

import torch
from torch import Tensor


def by_softmax(logits: Tensor, chosen: Tensor | None, *, top: int, normed: bool) -> tuple[Tensor, Tensor]:
    """The likeliest experts, weighed by their probabilities among all or among themselves; in float32, as models do."""
    probabilities = logits.float().softmax(-1)
    chosen = probabilities.topk(top, dim=-1).indices if chosen is None else chosen
    weights = probabilities.gather(-1, chosen)
    return weights / weights.sum(-1, keepdim=True) if normed else weights, chosen


def by_softmax_of_chosen(logits: Tensor, chosen: Tensor | None, *, top: int) -> tuple[Tensor, Tensor]:
    """GPT-OSS: the experts of the largest logits, weighed by the softmax of these alone."""
    chosen = logits.topk(top, dim=-1).indices if chosen is None else chosen
    return logits.gather(-1, chosen).softmax(-1), chosen


def always(logits: Tensor, _chosen: Tensor | None) -> tuple[Tensor, Tensor]:
    """One network that every position goes through, weighed by a gate of its own."""
    return logits.sigmoid(), torch.zeros_like(logits, dtype=torch.long)
