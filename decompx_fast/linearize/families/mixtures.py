"""Mixtral, OLMoE and Qwen's mixtures: Llama's layers whose network is a few of many, chosen for each position by a
router."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..readers import stored
from ..reading.gated_decoder import ALL, LANGUAGE, families, gated_network
from ..reading.parts import Parts
from ..reading.routing import always, by_softmax
from ..spec import Affine, FeedForwardSpec, OpSpec, RoutedSpec
from .llama import LLAMA, MISTRAL


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


MIXTRAL = replace(MISTRAL, network=partial(mixture, normed=True))
QWEN_MOE = replace(LLAMA, network=mixture)
OLMOE = replace(LLAMA, network=mixture, joined_norms=True)

FAMILIES = families(
    {
        "Mixtral": (MIXTRAL, ALL),
        "Olmoe": (OLMOE, LANGUAGE),
        "Qwen2Moe": (QWEN_MOE, ALL),
        "Qwen3Moe": (QWEN_MOE, ALL),
    }
)
