"""What a model is, as one short string: two models with the same digest compute the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def model_sha256(model: nn.Module) -> str:
    """A digest of the weights and the configuration of a model that is not wrapped."""
    config: Any = getattr(model, "config", None)
    described = {} if config is None else _plain(config.to_dict())
    digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _plain(config: Mapping[str, object]) -> dict[str, object]:
    """The configuration without where it was loaded from and by which version."""
    return {name: value for name, value in config.items() if name not in ("_name_or_path", "transformers_version")}
