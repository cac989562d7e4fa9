"""WavLM: Wav2Vec2 with relative positions that each head gates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..reading.parts import Module, Parts
from ..spec import Affine, AttentionSpec, Context, ModelSpec
from .wav2vec2 import wav2vec2


def gated_relative_positions(layer: Parts, attend: AttentionSpec, *, table: Callable[[int], Tensor]) -> AttentionSpec:
    """WavLM's: a bias of relative positions, the same in all layers, times a gate that each head makes of its part of
    the state. So queries come with what the gate is made of: 8 numbers more for each head."""
    module = layer["attention"]
    gate, heads = layer.affine("attention.gru_rel_pos_linear", module.head_dim), attend.heads
    weight = attend.query.weight.new_zeros(layer.width, heads, module.head_dim + gate.weight.shape[1])
    weight[..., : module.head_dim] = attend.query.weight.unflatten(1, (heads, -1))
    for h in range(heads):
        weight[h * module.head_dim : (h + 1) * module.head_dim, h, module.head_dim :] = gate.weight
    biases = [one.bias for one in (attend.query, gate)]
    assert biases[0] is not None and biases[1] is not None
    bias = torch.cat((biases[0].view(heads, -1), biases[1].expand(heads, -1)), dim=1)
    constant = module.gru_rel_pos_const.detach().view(-1, 1, 1)
    positions = partial(gated_positions, size=module.head_dim, constant=constant, table=table)
    return replace(attend, query=Affine(weight.flatten(1), bias.flatten()), positions=positions)


def gated_positions(
    query: Tensor, key: Tensor, context: Context, *, size: int, constant: Tensor, table: Callable[[int], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """``(a (b c - 1) + 2) table`` with sigmoids ``a`` and ``b`` of the sums of four numbers each, which follow the
    ``size`` numbers of a query; ``c`` is a head's ``constant`` ``[h, 1, 1]``, the table ``[h, i, j]``."""
    a, b = query[..., size:].unflatten(-1, (2, 4)).sum(-1, keepdim=True).sigmoid().unbind(-2)  # [b, h, i, 1]
    bias = (a * (b * constant.to(query.dtype) - 1) + 2) * table(query.shape[2]).to(query.dtype)
    return query[..., :size], key, bias


def wavlm(model: Module) -> ModelSpec:
    """``WavLMForSequenceClassification``: Wav2Vec2's with gated relative positions."""
    first = model.wavlm.encoder.layers[0].attention
    table = partial(relative_table, module=first)
    return wav2vec2(model, "wavlm", gated=partial(gated_relative_positions, table=table))


def relative_table(n: int, *, module: Module) -> Tensor:
    """The bias of ``n`` positions, ``[h, i, j]``, as the first layer's attention has it."""
    found: Tensor = module.compute_bias(n, n)
    return found.detach()


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {"WavLMForSequenceClassification": wavlm}
