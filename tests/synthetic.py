"""Small random classifiers of Hugging Face, linearised: what engines and plans are compared on."""

from __future__ import annotations

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from decompx_fast.linearize.linearization import linearize

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
