"""The head on decomposed vectors: few rows, so one way in plain PyTorch serves the engines that carry vectors."""

from __future__ import annotations

from torch import Tensor

from ..activations import get_activation, linear_piece
from ..config import DecompXConfig
from ..linearize.layer import HeadStep
from .bias import add_bias


def head_step(step: HeadStep, rows: Tensor, config: DecompXConfig) -> Tensor:
    """One step ``norm(act(x W + b))`` of a head on the parts ``[b, k, d]`` of its input: ``[b, k, c]``."""
    if step.weight is not None:
        rows = add_bias(rows @ step.weight.to(rows.dtype), step.bias, config.bias)
    if step.activation is not None:
        slope, intercept = head_piece(step, config)
        rows = add_bias(rows * slope.unsqueeze(1).to(rows.dtype), intercept, config.bias)
    if step.norm is not None:
        normed = step.norm.linear(rows.unsqueeze(1)).squeeze(1).to(rows.dtype)
        rows = add_bias(normed, step.norm.bias, config.bias)
    return rows


def head_piece(step: HeadStep, config: DecompXConfig) -> tuple[Tensor, Tensor | None]:
    """The slope of a step's activation, and its intercept or ``None``; ``[b, c]``."""
    assert step.activation is not None
    approximation = config.tanh if step.activation == "tanh" else config.activation
    return linear_piece(get_activation(step.activation), step.preactivation, approximation)
