"""Random classifiers that magnify rounding, and what their scores are in float64."""

from __future__ import annotations

import copy
import random

import models
import torch

from decompx_fast import DecompX, Explanation


def hard_classifier(seed: int) -> torch.nn.Module:
    """Saturated attention, norms of tiny variance, large common parts of a state: none, one or several of them."""
    draw = random.Random(seed)
    family, layers = draw.choice(["bert", "electra", "roberta"]), draw.choice([2, 4, 8])
    model = models.classifier(family, seed=seed, dtype=torch.float32, layers=layers, labels=3, num_attention_heads=2)
    gain = 10 ** draw.uniform(1, 4) if draw.random() < 0.7 else 1.0
    variance = 10 ** draw.uniform(-5, 0) if draw.random() < 0.4 else 1.0
    common = 10 ** draw.uniform(1, 4) if draw.random() < 0.4 else 0.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query.weight" in name:
                parameter *= gain
            if "output.dense.weight" in name or ("LayerNorm.weight" in name and "encoder" in name):
                parameter *= variance
            if "output.dense.bias" in name:
                parameter += common
    return model


def saturated_classifier(seed: int, gain: float, layers: int = 6) -> torch.nn.Module:
    """A classifier whose attention, its queries times ``gain``, looks at one token or nearly so."""
    model = models.classifier(dtype=torch.float32, layers=layers, seed=seed)
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.self.query.weight *= gain
    return model


def truth(model: torch.nn.Module, ids: list[int], **arguments) -> Explanation:
    """The scores of the same weights, all in float64: the embedding too."""
    return DecompX(copy.deepcopy(model).double(), **arguments).explain(ids)


def error_of(found: Explanation, exact: Explanation) -> float:
    """The largest error of a score, or of the bias token."""
    gaps = [(found.scores.double() - exact.scores).abs().max()]
    if exact.bias_token is not None:
        gaps.append((found.bias_token.double() - exact.bias_token).abs().max())
    return max(gap.item() for gap in gaps)
