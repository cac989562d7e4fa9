"""Linearisations with random weights, of every shape that a layer can have: what engines are compared on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from decompx_fast.activations import get_activation
from decompx_fast.linearize.evaluate import linearize_layer, restore_layer
from decompx_fast.linearize.evaluate_head import linearize_head
from decompx_fast.linearize.layer import Head, LinearizedLayer, Terms
from decompx_fast.linearize.spec import (
    Affine,
    AttentionSpec,
    FeedForwardSpec,
    HeadStepSpec,
    LayerSpec,
    NormSpec,
    SublayerSpec,
)


@dataclass
class RandomModel:
    """A linearisation of random weights; counts how often a layer is computed a second time."""

    specs: tuple[LayerSpec, ...]
    steps: tuple[HeadStepSpec, ...]
    position: int | str
    embedding: Tensor
    rebuilt: list[int] = field(default_factory=list)
    restored: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_layers = len(self.specs)
        self.reads_all = self.position == "mean"
        self.encoder = None
        *_, last = self.layers()
        self.last = last.output
        if self.position != "each":
            self.logits = self.head(last.output).logits

    def layers(self) -> Iterator[LinearizedLayer]:
        x = self.embedding
        for index, spec in enumerate(self.specs):
            layer = linearize_layer(spec, index, x)
            yield layer
            x = layer.output

    def layer(self, index: int, x: Tensor) -> LinearizedLayer:
        self.rebuilt.append(index)
        return linearize_layer(self.specs[index], index, x)

    def restore(self, layer: LinearizedLayer) -> LinearizedLayer:
        self.restored.append(layer.index)
        return restore_layer(self.specs[layer.index], layer)

    def head(self, x: Tensor, terms: Terms | None = None) -> Head:
        return linearize_head(self.steps, self.position, x, terms)

    def values(self, terms: Terms) -> Tensor:
        """``[b, t]``: the whole head on every state, and of that what is asked for."""
        y = self.last
        if terms.positions is None:
            y = y.mean(1, keepdim=True) if self.position == "mean" else y[:, [self.position]]
        for step in self.steps:
            y = step.map(y)
            y = y if step.activation is None else get_activation(step.activation)(y)
        y = torch.cat([y, y.mean(-1, keepdim=True)], dim=-1)  # the last output is also the one of index -1
        b = torch.arange(len(y))[:, None]
        return y[b, 0 if terms.positions is None else terms.positions, terms.outputs]


#: Hidden size, heads, size of a head, FFN size.
D, HEADS, SIZE, F_SIZE = 12, 4, 3, 32


class Weights:
    """Random weights, all with biases."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype

    def tensor(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def affine(self, d_in: int, d_out: int) -> Affine:
        return Affine(self.tensor(d_in, d_out) / d_in**0.5, 0.3 * self.tensor(d_out))

    def layer_norm(self) -> NormSpec:
        return NormSpec(1 + 0.3 * self.tensor(D), 0.3 * self.tensor(D), 1e-6)

    def rms_norm(self) -> NormSpec:
        return NormSpec(1 + 0.3 * self.tensor(D), None, 1e-6, centre=False)

    def attention(self, kv_heads: int = HEADS, **options) -> AttentionSpec:
        inner, kv = self.affine(D, HEADS * SIZE), [self.affine(D, kv_heads * SIZE) for _ in range(2)]
        out = self.affine(HEADS * SIZE, D)
        return AttentionSpec(inner, *kv, out, HEADS, kv_heads, SIZE**-0.5, **options)

    def feed_forward(self, activation: str, gated: bool = False) -> FeedForwardSpec:
        gate = self.affine(D, F_SIZE) if gated else None
        return FeedForwardSpec(self.affine(D, F_SIZE), self.affine(F_SIZE, D), activation, gate)


def post_norm(w: Weights, last: bool) -> LayerSpec:
    """BERT."""
    return (
        SublayerSpec((w.attention(),), post_norm=w.layer_norm()),
        SublayerSpec((w.feed_forward("gelu"),), post_norm=w.layer_norm()),
    )


def pre_norm(w: Weights, last: bool) -> LayerSpec:
    """GPT-2, with the final norm as that of the last sublayer."""
    return (
        SublayerSpec((w.attention(causal=True),), pre_norm=w.layer_norm()),
        SublayerSpec(
            (w.feed_forward("gelu_tanh"),),
            pre_norm=w.layer_norm(),
            post_norm=w.layer_norm() if last else None,
        ),
    )


def rms_gated(w: Weights, last: bool) -> LayerSpec:
    """Llama: RMSNorm, gate, grouped-query and causal attention; and without a value bias."""
    attention = w.attention(kv_heads=2, causal=True)
    attention = replace(attention, value=Affine(attention.value.weight, None))
    return (
        SublayerSpec((attention,), pre_norm=w.rms_norm()),
        SublayerSpec((w.feed_forward("silu", gated=True),), pre_norm=w.rms_norm()),
    )


def around(w: Weights, last: bool) -> LayerSpec:
    """Norms before and after the branch, as in Gemma, but with biases; causal in a window."""
    return (
        SublayerSpec(
            (w.attention(kv_heads=1, causal=True, window=3),),
            pre_norm=w.layer_norm(),
            out_norm=w.layer_norm(),
        ),
        SublayerSpec((w.feed_forward("gelu", gated=True),), pre_norm=w.layer_norm(), out_norm=w.layer_norm()),
    )


def parallel(w: Weights, last: bool) -> LayerSpec:
    """Attention and feed-forward network side by side; a window to both sides."""
    return (SublayerSpec((w.feed_forward("relu"), w.attention(window=2)), pre_norm=w.layer_norm()),)


def branches(w: Weights, last: bool) -> LayerSpec:
    """The same with a norm for each of the two, as in GPT-NeoX; causal."""
    network = replace(w.feed_forward("gelu"), norm=w.layer_norm())
    return (SublayerSpec((w.attention(causal=True), network), pre_norm=w.layer_norm()),)


KINDS: dict[str, Callable[[Weights, bool], LayerSpec]] = {
    "post_norm": post_norm,
    "pre_norm": pre_norm,
    "rms_gated": rms_gated,
    "around": around,
    "parallel": parallel,
    "branches": branches,
}


def random_model(
    kind: str,
    seed: int = 0,
    *,
    b: int = 2,
    n: int = 7,
    layers: int = 2,
    classes: int = 3,
    position: int = 0,
    dtype: torch.dtype = torch.float64,
) -> RandomModel:
    w = Weights(seed, dtype)
    specs = tuple(KINDS[kind](w, index == layers - 1) for index in range(layers))
    steps = (HeadStepSpec(w.affine(D, D), "tanh"), HeadStepSpec(w.affine(D, D), "gelu"))
    return RandomModel(specs, (*steps, HeadStepSpec(w.affine(D, classes))), position, w.tensor(b, n, D))
