"""Heads by their definition, read from the model's own modules: NumPy, one row, all outputs; shares nothing with the
package but the options."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from naive import ACTIVATIONS, Array, Naive, add_bias, array, slope_and_intercept
from torch import nn

from decompx_fast.config import DecompXConfig


@dataclass
class Step:
    """``norm(act(x W + b))``; each part may be missing."""

    map: nn.Linear | None = None
    activation: str | None = None
    norm: nn.LayerNorm | None = None

    def value(self, x: Array) -> Array:
        """The true value at the true ``x`` ``[d]``."""
        z = self.preactivation(x)
        y = z if self.activation is None else ACTIVATIONS[self.activation](z)
        if self.norm is None:
            return y
        return (y - y.mean()) / self.std(y) * array(self.norm.weight) + array(self.norm.bias)

    def preactivation(self, x: Array) -> Array:
        return x if self.map is None else array(self.map.weight) @ x + self.bias

    @property
    def bias(self) -> Array:
        return np.zeros(self.map.out_features) if self.map.bias is None else array(self.map.bias)

    def std(self, y: Array) -> float:
        return np.sqrt(y.var() + self.norm.eps)


def head(u: Array, x: Array, steps: list[Step], config: DecompXConfig) -> Array:
    """The parts ``u`` ``[k, d]`` of the row ``x`` ``[d]`` through all steps: ``[k, C]``."""
    for step in steps:
        z = step.preactivation(x)
        if step.map is not None:
            u = add_bias(u @ array(step.map.weight).T, step.bias, config.bias)
        y = z
        if step.activation is not None:
            kind = config.tanh if step.activation == "tanh" else config.activation
            slope, intercept = slope_and_intercept(step.activation, z, kind)
            u = add_bias(u * slope, intercept if kind == "linear" else None, config.bias)
            y = ACTIVATIONS[step.activation](z)
        if step.norm is not None:
            u = (u - u.mean(1, keepdims=True)) / step.std(y) * array(step.norm.weight)
            u = add_bias(u, array(step.norm.bias), config.bias)
        x = step.value(x)
    if config.bias_token_split is not None:
        u = add_bias(u[:-1], u[-1], config.bias_token_split)
    return u


def states(linearization, config: DecompXConfig, sources: list[int] | None = None) -> tuple[Array, Array]:
    """Of the first input, the decomposed state after all layers ``[i, k, d]``, and the true one ``[i, d]``."""
    embedding = array(linearization.embedding, row=True)
    naive = Naive(config, list(range(len(embedding))) if sources is None else sources)
    x = naive.start(embedding)
    for layer in linearization.layers():
        x = naive.layer(x, layer, first=layer.index == 0)
        output = layer.output
    return x, array(output, row=True)


def terms(
    x: Array, true: Array, steps: list[Step], config: DecompXConfig, positions: list[int] | str, outputs: list[int]
) -> Array:
    """``[k, t]``: each term by itself; ``positions`` may be ``"mean"``, and the output -1 the mean over all."""
    found = []
    for number, output in enumerate(outputs):
        if positions == "mean":
            scores = head(x.mean(0), true.mean(0), steps, config)
        else:
            scores = head(x[positions[number]], true[positions[number]], steps, config)
        found.append(scores.mean(1) if output == -1 else scores[:, output])
    return np.stack(found, axis=1)


def value(true: Array, steps: list[Step]) -> Array:
    """The outputs ``[C]`` at a row."""
    for step in steps:
        true = step.value(true)
    return true


def torch_of(found: Array) -> torch.Tensor:
    return torch.from_numpy(found)
