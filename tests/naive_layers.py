"""One post-norm layer of BERT's family by its definition, read from the model's modules: NumPy, one input, loops.

The oracle of the methods that read attention weights and value vectors; it shares nothing with the package.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from naive import ndtr
from torch import nn

Array = np.ndarray


def array(tensor: torch.Tensor) -> Array:
    return tensor.detach().double().numpy()


@dataclass
class Affine:
    """``x W + b`` of a linear module."""

    weight: Array
    bias: Array

    @classmethod
    def of(cls, module: nn.Linear) -> Affine:
        return cls(array(module.weight).T, array(module.bias))

    def __call__(self, x: Array) -> Array:
        return x @ self.weight + self.bias


class NormModule:
    """LayerNorm: as the model computes it, and its linear part with the statistics of another state."""

    def __init__(self, module: nn.LayerNorm) -> None:
        self.weight, self.bias, self.eps = array(module.weight), array(module.bias), module.eps

    def linear(self, u: Array, state: Array) -> Array:
        """``(u - mean(u)) / std(state) * weight`` of one vector."""
        return (u - u.mean()) / np.sqrt(state.var() + self.eps) * self.weight

    def __call__(self, state: Array) -> Array:
        return np.stack([self.linear(row, row) + self.bias for row in state])


class NaiveLayer:
    """A layer on its true input ``x`` ``[i, d]``; ``alpha`` ``[h, i, j]`` and all its true states."""

    def __init__(self, module: nn.Module, x: Array) -> None:
        attention, dense = module.attention.self, module.attention.output.dense
        self.heads = attention.num_attention_heads
        self.query, self.key, self.value = map(Affine.of, (attention.query, attention.key, attention.value))
        self.out = Affine.of(dense)
        self.norm1, self.norm2 = NormModule(module.attention.output.LayerNorm), NormModule(module.output.LayerNorm)
        self.into, self.outof = Affine.of(module.intermediate.dense), Affine.of(module.output.dense)
        self.x, self.n = x, len(x)
        self.size = self.query.weight.shape[1] // self.heads
        self.alpha = np.stack([self.head_weights(h) for h in range(self.heads)])
        self.values = self.value(x)
        self.pre1 = x + self.mix(self.values)
        self.y = self.norm1(self.pre1)
        self.pre2 = self.y + self.feed_forward(self.y)
        self.output = self.norm2(self.pre2)

    def columns(self, h: int) -> slice:
        return slice(h * self.size, (h + 1) * self.size)

    def head_weights(self, h: int) -> Array:
        query, key = self.query(self.x)[:, self.columns(h)], self.key(self.x)[:, self.columns(h)]
        weights = np.exp(query @ key.T / np.sqrt(self.size))
        return weights / weights.sum(1, keepdims=True)

    def mix(self, values: Array) -> Array:
        """The output of the attention for any values ``[j, h v]``."""
        mixed = [self.alpha[h] @ values[:, self.columns(h)] for h in range(self.heads)]
        return self.out(np.concatenate(mixed, axis=1))

    def feed_forward(self, y: Array) -> Array:
        z = self.into(y)
        return self.outof(z * ndtr(z))

    def part(self, i: int, j: int) -> Array:
        """``sum_h alpha[h,i,j] f_h(x[j])``."""
        total = np.zeros(self.x.shape[1])
        for h in range(self.heads):
            head = self.columns(h)
            total += self.alpha[h, i, j] * self.values[j, head] @ self.out.weight[head]
        return total

    def block_part(self, i: int, j: int) -> Array:
        """With the residual connection, through LN1 without its bias."""
        return self.norm1.linear(self.part(i, j) + (self.x[i] if i == j else 0), self.pre1[i])

    def layer_part(self, i: int, j: int, *, ffn: bool) -> Array:
        """Through the second residual connection, the frozen FFN if wanted, and LN2; without their biases."""
        u = self.block_part(i, j)
        if ffn:
            z = self.into(self.y[i])
            u = u + (u @ self.into.weight * (z * ndtr(z) / z)) @ self.outof.weight
        return self.norm2.linear(u, self.pre2[i])

    def without_value(self, j: int) -> Array:
        """The layer's output where the value vector of ``j`` is zero and all else as it was."""
        values = self.values.copy()
        values[j] = 0
        y = self.norm1(self.x + self.mix(values))
        return self.norm2(y + self.feed_forward(y))


def naive_layers(model: nn.Module, inputs: dict[str, torch.Tensor]) -> list[NaiveLayer]:
    """Every layer on its true input; ``inputs`` ``[1, i]``."""
    base = model.base_model
    with torch.no_grad():
        x = array(base.embeddings(**inputs)[0])
    layers = []
    for module in base.encoder.layer:
        layers.append(NaiveLayer(module, x))
        x = layers[-1].output
    return layers
