"""GPT-OSS: Llama's layers with experts that have biases and clamp what they multiply."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..readers import stored
from ..reading.gated_decoder import TOKENS, families, halves_once
from ..reading.parts import Parts
from ..reading.routing import by_softmax_of_chosen
from ..spec import Affine, FeedForwardSpec, OpSpec, RoutedSpec
from .llama import LLAMA


def clamped_mixture(layer: Parts, path: str) -> tuple[OpSpec, ...]:
    """Experts with biases, ``(clamp(up) + 1) * act(min(gate, limit))``; gates and values stored in turns."""
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


GPT_OSS = replace(LLAMA, network=clamped_mixture, rotate=halves_once)

FAMILIES = families({"GptOss": (GPT_OSS, TOKENS)})
