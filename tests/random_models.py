"""Linearisations with random weights, of every shape that a layer can have: what engines are compared on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

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


#: Hidden size and FFN size of :class:`Parts`, where none is given.
D, F_SIZE = 12, 32


class Parts:
    """Random parts of layers, of one size."""

    def __init__(
        self,
        seed: int = 0,
        *,
        d: int = D,
        f: int = F_SIZE,
        heads: int = 4,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.d, self.f, self.heads, self.dtype, self.device = d, f, heads, dtype, device
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        # Drawn in float64 on the CPU, so that a model is the same in every dtype and on every device.
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64).to(self.device, self.dtype)

    def affine(self, d_in: int, d_out: int, bias: bool = True) -> Affine:
        return Affine(self.normal(d_in, d_out) / d_in**0.5, 0.3 * self.normal(d_out) if bias else None)

    def norm(self, bias: bool = True, centre: bool = True) -> NormSpec:
        return NormSpec(1 + 0.3 * self.normal(self.d), 0.3 * self.normal(self.d) if bias else None, 1e-6, centre)

    def rms_norm(self) -> NormSpec:
        return self.norm(bias=False, centre=False)

    def attention(self, kv_heads: int | None = None, bias: bool = True, **options: Any) -> AttentionSpec:
        kv_heads, size = kv_heads or self.heads, self.d // self.heads
        query, key, value = (self.affine(self.d, n * size, bias) for n in (self.heads, kv_heads, kv_heads))
        out = self.affine(self.d, self.d, bias)
        return AttentionSpec(query, key, value, out, self.heads, kv_heads, size**-0.5, **options)

    def network(self, activation: str = "gelu", bias: bool = True, gated: bool = False) -> FeedForwardSpec:
        gate = self.affine(self.d, self.f, bias) if gated else None
        return FeedForwardSpec(self.affine(self.d, self.f, bias), self.affine(self.f, self.d, bias), activation, gate)


def post_norm(p: Parts, last: bool) -> LayerSpec:
    """BERT."""
    return (
        SublayerSpec((p.attention(),), post_norm=p.norm()),
        SublayerSpec((p.network(),), post_norm=p.norm()),
    )


def pre_norm(p: Parts, last: bool) -> LayerSpec:
    """GPT-2, with the final norm as that of the last sublayer."""
    attention, network = gpt(p, last)
    return attention, replace(network, post_norm=p.norm() if last else None)


def rms_gated(p: Parts, last: bool) -> LayerSpec:
    """Llama: RMSNorm, gate, grouped-query and causal attention, but with biases; and without a value bias."""
    attention = p.attention(kv_heads=2, causal=True)
    attention = replace(attention, value=Affine(attention.value.weight, None))
    return (
        SublayerSpec((attention,), pre_norm=p.rms_norm()),
        SublayerSpec((p.network("silu", gated=True),), pre_norm=p.rms_norm()),
    )


def around(p: Parts, last: bool) -> LayerSpec:
    """Norms before and after the branch, as in Gemma, but with biases; causal in a window."""
    return (
        SublayerSpec((p.attention(kv_heads=1, causal=True, window=3),), pre_norm=p.norm(), out_norm=p.norm()),
        SublayerSpec((p.network(gated=True),), pre_norm=p.norm(), out_norm=p.norm()),
    )


def parallel(p: Parts, last: bool) -> LayerSpec:
    """Attention and feed-forward network side by side; a window to both sides."""
    return (SublayerSpec((p.network("relu"), p.attention(window=2)), pre_norm=p.norm()),)


def branches(p: Parts, last: bool) -> LayerSpec:
    """The same with a norm for each of the two, as in GPT-NeoX; causal."""
    network = replace(p.network(), norm=p.norm())
    return (SublayerSpec((p.attention(causal=True), network), pre_norm=p.norm()),)


def gpt(p: Parts, last: bool) -> LayerSpec:
    """GPT-2 but for its final norm."""
    return (
        SublayerSpec((p.attention(causal=True),), pre_norm=p.norm()),
        SublayerSpec((p.network("gelu_tanh"),), pre_norm=p.norm()),
    )


def llama(p: Parts, last: bool) -> LayerSpec:
    """As Llama is, without any bias."""
    attention = p.attention(kv_heads=2, bias=False, causal=True)
    network = p.network("silu", bias=False, gated=True)
    return SublayerSpec((attention,), p.rms_norm()), SublayerSpec((network,), p.rms_norm())


def gemma(p: Parts, last: bool) -> LayerSpec:
    """As Gemma is, without any bias."""
    attention = p.attention(kv_heads=1, bias=False, causal=True, window=3)
    network = p.network("gelu_tanh", bias=False, gated=True)
    norms = [p.rms_norm() for _ in range(4)]
    return SublayerSpec((attention,), norms[0], norms[1]), SublayerSpec((network,), norms[2], norms[3])


def biased_branch_norms(p: Parts, last: bool) -> LayerSpec:
    """Norms before and after the branch; a window to both sides."""
    return (
        SublayerSpec((p.attention(window=2),), p.norm(), p.norm()),
        SublayerSpec((p.network(gated=True),), p.norm(), p.norm()),
    )


def parallel_causal(p: Parts, last: bool) -> LayerSpec:
    """Side by side, the attention first and causal."""
    return (SublayerSpec((p.attention(causal=True), p.network()), p.norm()),)


def parallel_everything(p: Parts, last: bool) -> LayerSpec:
    """Two networks and an attention side by side, with every norm there is."""
    ops = (p.network(), p.attention(), p.network("silu", gated=True))
    return (SublayerSpec(ops, p.norm(), p.norm(), p.norm()),)


def network_first(p: Parts, last: bool) -> LayerSpec:
    """Four sublayers, post-norm and pre-norm ones."""
    return (
        SublayerSpec((p.network(),), post_norm=p.norm()),
        SublayerSpec((p.attention(),), post_norm=p.norm()),
        SublayerSpec((p.attention(kv_heads=2),), p.norm()),
        SublayerSpec((p.network("relu"),), p.norm()),
    )


def networks_only(p: Parts, last: bool) -> LayerSpec:
    """No attention at all."""
    return (SublayerSpec((p.network(),), post_norm=p.norm()),)


#: What makes a layer; whether it is the last.
Shape = Callable[[Parts, bool], LayerSpec]

#: The kinds of layers that families have, all with biases.
KINDS: dict[str, Shape] = {f.__name__: f for f in (post_norm, pre_norm, rms_gated, around, parallel, branches)}

#: Shapes that are further from BERT's, some without biases: what the forward engine has no operator for.
LAYERS: dict[str, Shape] = {
    f.__name__: f
    for f in (
        gpt,
        llama,
        gemma,
        biased_branch_norms,
        parallel_causal,
        parallel_everything,
        network_first,
        networks_only,
    )
}


def random_model(
    kind: str,
    seed: int = 0,
    *,
    b: int = 2,
    n: int = 7,
    layers: int = 2,
    classes: int = 3,
    position: int | str = 0,
    **sizes: Any,
) -> RandomModel:
    """A model of layers of one shape, with a head of three steps; ``sizes`` are those of :class:`Parts`."""
    p = Parts(seed, **sizes)
    make = (KINDS | LAYERS)[kind]
    specs = tuple(make(p, index == layers - 1) for index in range(layers))
    steps = (HeadStepSpec(p.affine(p.d, p.d), "tanh"), HeadStepSpec(p.affine(p.d, p.d), "gelu"))
    return RandomModel(specs, (*steps, HeadStepSpec(p.affine(p.d, classes))), position, p.normal(b, n, p.d))
