"""Models explained, which must be left as they were, and what is made of their modules."""

from __future__ import annotations

import copy

import torch
from models import token_ids, unchanged
from torch import nn

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.linearize.linearization import linearize

#: Rounding of a few layers in float64, and room: a wrong weight shows as 1e-3 at the least.
EXACT = 1e-10

PAPER = DecompXConfig()


def explained(model: nn.Module, ids: torch.Tensor | None = None, config: DecompXConfig = PAPER, **inputs):
    """Scores ``[b, k, c]`` of the reference engine; the model must be left as it was."""
    ids = token_ids() if ids is None else ids
    with unchanged(model):
        linearization = linearize(model, {"input_ids": ids, **inputs})
        return reference.attribute(linearization, config).scores


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = EXACT) -> None:
    assert found.shape == expected.shape
    assert (found.double() - expected.double()).abs().max() < tolerance * expected.abs().max()


def attention_of(model: nn.Module, layer: int = 0) -> nn.Module:
    return model.bert.encoder.layer[layer].attention


class LowRank(nn.Module):
    """A linear layer with a low-rank change, as adapters make it."""

    def __init__(self, base_layer: nn.Linear, rank: int = 2, scale: float = 0.5) -> None:
        super().__init__()
        self.base_layer, self.scale = base_layer, scale
        generator = torch.Generator().manual_seed(1)
        shape_a, shape_b = (rank, base_layer.in_features), (base_layer.out_features, rank)
        self.a = nn.Parameter(torch.randn(shape_a, generator=generator).to(base_layer.weight))
        self.b = nn.Parameter(torch.randn(shape_b, generator=generator).to(base_layer.weight))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.base_layer(x) + self.scale * self.dropout(x) @ self.a.T @ self.b.T

    def merged(self) -> nn.Linear:
        linear = copy.deepcopy(self.base_layer)
        with torch.no_grad():
            linear.weight += self.scale * self.b @ self.a
        return linear
