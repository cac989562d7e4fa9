"""The head on decomposed vectors: few rows, so one way in plain PyTorch serves the engines that carry vectors."""

from __future__ import annotations

from torch import Tensor

from ..activations import get_activation, linear_piece
from ..config import DecompXConfig
from ..linearize.layer import HeadStep
from .bias import Rule


def head_step(step: HeadStep, rows: Tensor, config: DecompXConfig, rule: Rule) -> Tensor:
    """One step ``norm(act(x W + b))`` of a head on the parts ``[b, k, d]`` of its input: ``[b, k, c]``.

    ``rule`` is the configuration's, with its shares ``[b, k]`` at what the head reads where they are known.
    """
    if step.weight is not None:
        rows = rule.add(rows @ step.weight.to(rows.dtype), step.bias)
    if step.activation is not None:
        slope, intercept = head_piece(step, config)
        rows = rule.add(rows * slope.unsqueeze(1).to(rows.dtype), intercept)
    if step.norm is not None:
        normed = step.norm.linear(rows.unsqueeze(1)).squeeze(1).to(rows.dtype)
        rows = rule.add(normed, step.norm.bias)
    return rows


def head_piece(step: HeadStep, config: DecompXConfig) -> tuple[Tensor, Tensor | None]:
    """The slope of a step's activation, and its intercept or ``None``; ``[b, c]``."""
    assert step.activation is not None
    approximation = config.tanh if step.activation == "tanh" else config.activation
    return linear_piece(get_activation(step.activation), step.preactivation, approximation)
