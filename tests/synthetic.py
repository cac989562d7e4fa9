"""Small random models: Hugging Face ones, and layers of every other shape that the linearisation describes."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from decompx_fast.linearize.evaluate import linearize_layer, restore_layer
from decompx_fast.linearize.evaluate_head import linearize_head
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.spec import Affine, AttentionSpec, FeedForwardSpec, HeadStepSpec, NormSpec, SublayerSpec

FAMILIES = ("bert", "roberta")


def hugging_face(
    family="bert",
    *,
    batch=1,
    n=7,
    layers=3,
    seed=0,
    d=12,
    heads=3,
    f=20,
    dtype=torch.float64,
    device="cpu",
    **more,
):
    """A tiny classifier with random biases and norm weights, linearised on random tokens."""
    config_class, model_class = {
        "bert": (BertConfig, BertForSequenceClassification),
        "roberta": (RobertaConfig, RobertaForSequenceClassification),
    }[family]
    config = config_class(
        vocab_size=60,
        hidden_size=d,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=f,
        max_position_embeddings=max(n, 16) + 4,
        num_labels=3,
        **more,
    )
    generator = torch.Generator().manual_seed(seed)
    model = model_class(config).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
            is_norm_weight = "LayerNorm.weight" in name
            parameter.copy_(1 + 0.3 * noise if is_norm_weight else noise * (0.5 if parameter.ndim == 1 else d**-0.5))
    tokens = torch.randint(5, 60, (batch, n), generator=generator)
    return linearize(model.to(device), {"input_ids": tokens.to(device)})


class SpecLinearization:
    """A model made of specifications of layers, as the protocol of linearisations wants it."""

    def __init__(self, layers, embedding: Tensor, head, position: int = 0) -> None:
        self._layers, self._head, self._position = layers, head, position
        self.embedding = embedding
        self.num_layers = len(layers)
        self.reads_all = position == "mean"
        self.encoder = None
        x = embedding
        for index in range(self.num_layers):
            x = self.layer(index, x).output
        self.logits = linearize_head(head, position, x).logits

    def layers(self):
        x = self.embedding
        for index in range(self.num_layers):
            layer = self.layer(index, x)
            yield layer
            x = layer.output

    def layer(self, index, x):
        return linearize_layer(self._layers[index], index, x)

    def restore(self, layer):
        return restore_layer(self._layers[layer.index], layer)

    def head(self, x):
        return linearize_head(self._head, self._position, x)


class Parts:
    """Random parts of layers, of one size."""

    def __init__(self, seed=0, d=12, f=20, heads=4, dtype=torch.float64, device="cpu"):
        self.d, self.f, self.heads, self.dtype, self.device = d, f, heads, dtype, device
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape):
        # Drawn in float64 on the CPU, so that a model is the same in every dtype and on every device.
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64).to(self.device, self.dtype)

    def affine(self, n_in, n_out, bias=True):
        return Affine(self.normal(n_in, n_out) / n_in**0.5, 0.5 * self.normal(n_out) if bias else None)

    def norm(self, bias=True, centre=True):
        return NormSpec(1 + 0.3 * self.normal(self.d), 0.5 * self.normal(self.d) if bias else None, 1e-5, centre)

    def attention(self, kv_heads=None, bias=True, **options):
        kv_heads = kv_heads or self.heads
        size = self.d // self.heads
        query, out = self.affine(self.d, self.d, bias), self.affine(self.d, self.d, bias)
        key, value = (self.affine(self.d, kv_heads * size, bias) for _ in range(2))
        return AttentionSpec(query, key, value, out, self.heads, kv_heads, size**-0.5, **options)

    def network(self, activation="gelu", bias=True, gated=False):
        gate = self.affine(self.d, self.f, bias) if gated else None
        return FeedForwardSpec(self.affine(self.d, self.f, bias), self.affine(self.f, self.d, bias), activation, gate)


def _gpt(p):
    return SublayerSpec((p.attention(causal=True),), p.norm()), SublayerSpec((p.network("gelu_tanh"),), p.norm())


def _llama(p):
    attention = p.attention(kv_heads=2, bias=False, causal=True)
    network = p.network("silu", bias=False, gated=True)
    return SublayerSpec((attention,), p.norm(False, False)), SublayerSpec((network,), p.norm(False, False))


def _gemma(p):
    attention = p.attention(kv_heads=1, bias=False, causal=True, window=3)
    network = p.network("gelu_tanh", bias=False, gated=True)
    norms = [p.norm(False, False) for _ in range(4)]
    return SublayerSpec((attention,), norms[0], norms[1]), SublayerSpec((network,), norms[2], norms[3])


def _biased_branch_norms(p):
    return (
        SublayerSpec((p.attention(window=2),), p.norm(), p.norm()),
        SublayerSpec((p.network(gated=True),), p.norm(), p.norm()),
    )


def _parallel(p):
    return (SublayerSpec((p.attention(causal=True), p.network()), p.norm()),)


def _parallel_everything(p):
    ops = (p.network(), p.attention(), p.network("silu", gated=True))
    return (SublayerSpec(ops, p.norm(), p.norm(), p.norm()),)


def _network_first(p):
    return (
        SublayerSpec((p.network(),), post_norm=p.norm()),
        SublayerSpec((p.attention(),), post_norm=p.norm()),
        SublayerSpec((p.attention(kv_heads=2),), p.norm()),
        SublayerSpec((p.network("relu"),), p.norm()),
    )


def _networks_only(p):
    return (SublayerSpec((p.network(),), post_norm=p.norm()),)


LAYERS = {
    "gpt": _gpt,
    "llama": _llama,
    "gemma": _gemma,
    "biased_branch_norms": _biased_branch_norms,
    "parallel": _parallel,
    "parallel_everything": _parallel_everything,
    "network_first": _network_first,
    "networks_only": _networks_only,
}


def of_shape(shape, *, batch=2, n=6, layers=3, seed=0, position=-1, **sizes):
    """A linearised model with layers of one of :data:`LAYERS`, read at ``position``."""
    parts = Parts(seed, **sizes)
    head = (HeadStepSpec(parts.affine(parts.d, parts.d), "tanh"), HeadStepSpec(parts.affine(parts.d, 3)))
    return SpecLinearization(
        [LAYERS[shape](parts) for _ in range(layers)],
        parts.normal(batch, n, parts.d),
        head,
        position % n,
    )
