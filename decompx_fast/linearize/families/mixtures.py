"""Mixtures of experts: Llama's layers whose network is a few of many, chosen for each position by a router."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..readers import stored
from ..reading.gated_decoder import ALL, LANGUAGE, TOKENS, families, gated_network, halves_once
from ..reading.parts import Parts
from ..spec import Affine, FeedForwardSpec, OpSpec, RoutedSpec
from .llama import LLAMA, MISTRAL


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


def mixture(layer: Parts, path: str, *, normed: bool | None = None) -> tuple[OpSpec, ...]:
    """Experts, and perhaps one more that is shared; or, in layers that have none, a plain gated network.

    Args:
        layer, path: of the network.
        normed: whether the weights of the chosen experts sum to 1; ``None``: as the router says.
    """
    block = layer.below(path)
    if not hasattr(block.module, "experts"):
        return (gated_network(layer, path),)
    gate, experts = block["gate"], block["experts"]
    gates_and_values = stored(experts, "gate_up_proj", f"{block.name}.experts")  # [e, 2 f, d]
    outs = stored(experts, "down_proj", f"{block.name}.experts")  # [e, d, f]
    activation = block.activation("experts.act_fn")
    found = []
    for both, out in zip(gates_and_values, outs, strict=True):
        packed = Affine(both.t(), None)
        found.append(FeedForwardSpec(packed.part(1, 2), Affine(out.t(), None), activation, packed.part(0, 2)))
    router = Affine(stored(gate, "weight", f"{block.name}.gate").t(), None)
    route = partial(by_softmax, top=gate.top_k, normed=gate.norm_topk_prob if normed is None else normed)
    routed = RoutedSpec(router, tuple(found), route, gate.top_k, gate)
    if not hasattr(block.module, "shared_expert"):
        return (routed,)
    shared = (gated_network(layer, f"{path}.shared_expert"),)
    return routed, RoutedSpec(layer.affine(f"{path}.shared_expert_gate"), shared, always, 1)


def clamped_mixture(layer: Parts, path: str) -> tuple[OpSpec, ...]:
    """GPT-OSS: experts with biases, ``(clamp(up) + 1) * act(min(gate, limit))``; gates and values stored in turns."""
    block = layer.below(path)
    router, experts, name = block["router"], block["experts"], f"{block.name}.experts"
    weights = [
        stored(experts, parameter, name) for parameter in ("gate_up_proj", "down_proj")
    ]  # [e, d, 2 f], [e, f, d]
    biases = [stored(experts, f"{parameter}_bias", name) for parameter in ("gate_up_proj", "down_proj")]
    found = [
        FeedForwardSpec(
            Affine(both[:, 1::2], both_bias[1::2]),
            Affine(out, out_bias),
            f"clamped_silu:{experts.alpha}:{experts.limit}",
            Affine(both[:, ::2], both_bias[::2]),
            limit=experts.limit,
            shift=1.0,
        )
        for both, out, both_bias, out_bias in zip(*weights, *biases, strict=True)
    ]
    weight, bias = (stored(router, parameter, f"{block.name}.router") for parameter in ("weight", "bias"))
    route = partial(by_softmax_of_chosen, top=router.top_k)
    return (RoutedSpec(Affine(weight.t(), bias), tuple(found), route, router.top_k, router),)


MIXTRAL = replace(MISTRAL, network=partial(mixture, normed=True))
QWEN_MOE = replace(LLAMA, network=mixture)
OLMOE = replace(LLAMA, network=mixture, joined_norms=True)
GPT_OSS = replace(LLAMA, network=clamped_mixture, rotate=halves_once)

FAMILIES = families(
    {
        "GptOss": (GPT_OSS, TOKENS),
        "Mixtral": (MIXTRAL, ALL),
        "Olmoe": (OLMOE, LANGUAGE),
        "Qwen2Moe": (QWEN_MOE, ALL),
        "Qwen3Moe": (QWEN_MOE, ALL),
    }
)
