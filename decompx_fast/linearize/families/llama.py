"""Llama and the decoders that share its layers: how each differs from it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..reading.gated_decoder import (
    ALL,
    CLASSES,
    HEADS,
    LANGUAGE,
    TOKENS,
    Kind,
    families,
    neighbours,
    neighbours_in_float32,
)
from ..reading.parts import Parts

LLAMA = Kind()
MISTRAL = Kind(window=True)
OLMO = Kind(norm=Parts.plain_norm)
OLMO2 = Kind(before=(None, None), after=("post_attention_layernorm", "post_feedforward_layernorm"), joined_norms=True)
COHERE = Kind(
    norm=Parts.own_norm,
    before=("input_layernorm", None),
    rotate=neighbours_in_float32,
    outputs="logit_scale",
)
COHERE2 = replace(COHERE, rotates=lambda attention: attention.sliding_window is not None)
GEMMA = Kind(norm=Parts.one_plus_norm)
GEMMA2 = Kind(
    norm=Parts.one_plus_norm,
    before=("input_layernorm", "pre_feedforward_layernorm"),
    after=("post_attention_layernorm", "post_feedforward_layernorm"),
    capped=True,
    outputs="final_logit_softcapping",
)
GEMMA3 = replace(GEMMA2, capped=False)
GRANITE = Kind(outputs="logits_scaling")
GLM = Kind(rotate=neighbours)
GLM4 = Kind(rotate=neighbours, after=("post_self_attn_layernorm", "post_mlp_layernorm"))

FAMILIES = families(
    {
        "Cohere": (COHERE, LANGUAGE),
        "Cohere2": (COHERE2, LANGUAGE),
        "Gemma": (GEMMA, TOKENS),
        "Gemma2": (GEMMA2, TOKENS),
        "Gemma3Text": (GEMMA3, ["SequenceClassification"]),
        "Glm": (GLM, TOKENS),
        "Glm4": (GLM4, TOKENS),
        "Granite": (GRANITE, LANGUAGE),
        "Llama": (LLAMA, ALL),
        "Mistral": (MISTRAL, ALL),
        "Olmo": (OLMO, CLASSES),
        "Olmo2": (OLMO2, CLASSES),
        "Phi3": (MISTRAL, TOKENS),
        "Qwen2": (LLAMA, ALL),
        "Qwen3": (LLAMA, ALL),
        "SmolLM3": (LLAMA, ALL),
    }
) | {"Gemma3ForCausalLM": partial(HEADS["CausalLM"], kind=GEMMA3)}
