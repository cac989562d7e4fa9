"""Tiny random classifiers of pictures of every family, and pictures for them."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

#: Pictures of 16 x 16 in patches of 4: a grid of 4 x 4.
SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "image_size": 16,
    "patch_size": 4,
}
DINOV2 = {"mlp_ratio": 2, "layerscale_value": 1.0}
BEIT = {"use_relative_position_bias": True, "use_absolute_position_embeddings": False, "layer_scale_init_value": 0.1}

#: Of each class in transformers, less its prefix: what follows it, and options beside :data:`SIZES`.
CASES: dict[str, tuple[str, str, dict]] = {
    "vit": ("ViT", "", {}),
    "vit_without_biases": ("ViT", "", {"qkv_bias": False, "hidden_act": "gelu_new"}),
    "vit_wide": ("ViT", "", {"image_size": [12, 20]}),
    "deit": ("DeiT", "", {}),
    "deit_teacher": ("DeiT", "WithTeacher", {}),
    "dinov2": ("Dinov2", "", DINOV2),
    "dinov2_gated": ("Dinov2", "", DINOV2 | {"use_swiglu_ffn": True}),
    "dinov2_registers": ("Dinov2WithRegisters", "", DINOV2 | {"num_register_tokens": 3}),
    "beit": ("Beit", "", BEIT),
    "beit_shared": (
        "Beit",
        "",
        {"use_shared_relative_position_bias": True, "use_mean_pooling": False, "layer_scale_init_value": 0.0},
    ),
    "beit_absolute": ("Beit", "", BEIT | {"use_absolute_position_embeddings": True}),
    "clip": ("CLIP", "", {"hidden_act": "quick_gelu"}),
    "data2vec": ("Data2VecVision", "", BEIT),
    "data2vec_shared": (
        "Data2VecVision",
        "",
        {"use_shared_relative_position_bias": True, "use_mean_pooling": False, "layer_scale_init_value": 0.0},
    ),
    "ijepa": ("IJepa", "", {}),
    "metaclip2": ("MetaClip2", "", {"hidden_act": "gelu"}),
    "vit_msn": ("ViTMSN", "", {}),
    "siglip": ("Siglip", "", {"hidden_act": "gelu_pytorch_tanh"}),
}

#: Those that have no embeddings of positions that could be interpolated for another size.
OF_ONE_SIZE = ("vit_wide",)


def classifier(case: str, seed: int = 0, dtype: torch.dtype = torch.float64, **more: Any) -> nn.Module:
    """In eval mode, with three classes; every weight random, no bias zero and no norm weight one."""
    name, suffix, options = CASES[case]
    options = SIZES | options | more
    if name in ("CLIP", "MetaClip2", "Siglip"):
        text = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        options = {"vision_config": options, "text_config": text | {"vocab_size": 50}}
    config = getattr(transformers, f"{name}Config")(**({"num_labels": 3} | options))
    model = getattr(transformers, f"{name}ForImageClassification{suffix}")(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            gain = 1 if parameter.ndim == 1 and (path.endswith("weight") or "lambda" in path) else 0
            parameter.copy_(gain + 0.3 * noise)
    return model


def picture_size(case: str) -> tuple[int, int]:
    """``(height, width)`` of the pictures that a case has position embeddings for."""
    size = CASES[case][2].get("image_size", SIZES["image_size"])
    return (size, size) if isinstance(size, int) else tuple(size)


def inputs(case: str, batch: int = 2, size: tuple[int, int] | None = None) -> dict[str, torch.Tensor]:
    """Random pixels ``[b, 3, height, width]``, of the case's own size if none is given."""
    height, width = size or picture_size(case)
    generator = torch.Generator().manual_seed(height * width)
    return {"pixel_values": torch.randn(batch, 3, height, width, generator=generator, dtype=torch.float64)}
