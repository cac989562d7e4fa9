"""Small random models of the families of Llama-like decoders and mixtures of experts, for their tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import transformers
from models import randomized
from torch import Tensor, nn

COMMON = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "vocab_size": 50,
    "max_position_embeddings": 40,
    "num_labels": 3,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}
HEADS_OF_8 = {"head_dim": 8}
WINDOW = {"sliding_window": 3}
MIXTURE = {"moe_intermediate_size": 10, "num_experts": 5, "num_experts_per_tok": 2}
SHARED = {"shared_expert_intermediate_size": 12, "mlp_only_layers": [0]}
GEMMA2 = HEADS_OF_8 | WINDOW | {"query_pre_attn_scalar": 10}
GPT_OSS = HEADS_OF_8 | WINDOW | {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": None}

#: Of each class in transformers, less its prefix: options beside :data:`COMMON`.
LLAMA_LIKE: dict[str, tuple[str, dict]] = {
    "llama": ("Llama", {}),
    "llama_biases": ("Llama", HEADS_OF_8 | {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "mistral": ("Mistral", WINDOW),
    "qwen2": ("Qwen2", WINDOW | {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("Qwen3", HEADS_OF_8),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0]}),
    "olmo": ("Olmo", {}),
    "olmo2": ("Olmo2", {}),
    "gemma": ("Gemma", HEADS_OF_8 | {"num_key_value_heads": 1}),
    "gemma2": ("Gemma2", GEMMA2 | {"attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3Text", GEMMA2 | {"layer_types": ["sliding_attention", "full_attention"]}),
    "gemma3_both_ways": ("Gemma3Text", GEMMA2 | {"use_bidirectional_attention": True}),
    "glm": ("Glm", HEADS_OF_8 | {"partial_rotary_factor": 0.5, "attention_bias": True}),
    "glm4": ("Glm4", HEADS_OF_8 | {"partial_rotary_factor": 0.5, "attention_bias": False}),
    "phi3": ("Phi3", {"sliding_window": 4, "partial_rotary_factor": 0.67}),
}
MIXTURES: dict[str, tuple[str, dict]] = {
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2Moe", MIXTURE | SHARED | {"norm_topk_prob": False}),
    "qwen3_moe": ("Qwen3Moe", MIXTURE | HEADS_OF_8 | {"norm_topk_prob": True}),
    "gpt_oss": ("GptOss", GPT_OSS | {"swiglu_limit": 0.7, "attention_bias": True}),
}
CASES = LLAMA_LIKE | MIXTURES

#: The same for language models, some of which have no other heads.
LANGUAGE_MODELS: dict[str, tuple[str, dict]] = {
    "cohere": ("Cohere", {"use_qk_norm": True, "logit_scale": 0.3}),
    "cohere2": ("Cohere2", WINDOW | {"layer_types": ["sliding_attention", "full_attention"], "logit_scale": 0.3}),
    "gemma2": ("Gemma2", GEMMA2 | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3Text", GEMMA2),
    "granite": (
        "Granite",
        {
            "logits_scaling": 2.5,
            "residual_multiplier": 0.4,
            "embedding_multiplier": 1.7,
            "attention_multiplier": 0.3,
            "attention_bias": True,
        },
    ),
    "olmoe": ("Olmoe", {"num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": False}),
} | {name: CASES[name] for name in ("llama", "glm4", "phi3", "qwen2", "qwen2_moe", "gpt_oss")}

#: Cases whose model computes its softmax or rotates in float32 whatever its dtype: they are compared no more closely.
IN_FLOAT32 = {"gemma2", "cohere", "cohere2"}


def decoder(case: str, task: str = "SequenceClassification", seed: int = 0, dtype=torch.float64, **options):
    """In eval mode; every weight random, no bias zero and no norm weight one. In float64 norms compute in it too."""
    name, own = (LANGUAGE_MODELS if task == "CausalLM" else CASES)[case]
    config = getattr(transformers, f"{name}Config")(**(COMMON | own | options))
    cls = getattr(transformers, f"{name.removesuffix('Text') if task == 'CausalLM' else name}For{task}")  # Gemma 3
    model = cls._from_config(config, experts_implementation="eager").to(dtype).eval()
    randomized(model, seed)
    if dtype == torch.float64:
        for module in model.modules():
            widen(module)
    return model


def inputs(batch: int = 2, tokens: int = 7) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return {"input_ids": torch.randint(5, 50, (batch, tokens), generator=generator)}


def widen(module: nn.Module) -> None:
    """Let a norm compute in float64, where transformers rounds to float32, so that a model is exact to float64."""
    kind = type(module)
    formula = next((formula for name, formula in NORMS.items() if kind.__name__.endswith(name)), None)
    if formula is not None and not isinstance(module, nn.LayerNorm):
        if kind.__name__.startswith("Gemma"):
            formula = _one_plus
        module.__class__ = type(kind.__name__, (kind,), {"forward": formula})


def _rms(self, x: Tensor) -> Tensor:
    return self.weight * x / (x.square().mean(-1, keepdim=True) + self.variance_epsilon).sqrt()


def _one_plus(self, x: Tensor) -> Tensor:
    return (1 + self.weight) * x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()


def _centred(self, x: Tensor) -> Tensor:
    y = F.layer_norm(x, x.shape[-1:], eps=getattr(self, "variance_epsilon", 1e-5))
    return y * self.weight if hasattr(self, "weight") else y


NORMS = {"RMSNorm": _rms, "LayerNorm": _centred}
