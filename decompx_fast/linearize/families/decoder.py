"""What decoders have in common: a final norm, and a head that reads the last token that is no padding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..spec import InputLimits, LayerSpec, ModelSpec, NormSpec
from .parts import Module, Parts, model_spec


def without_padding(model: Module, inputs: Mapping[str, Tensor]) -> None:
    """Lets a model without a padding token take a batch: none of its inputs is padded, so it reads the last token."""
    if model.config.pad_token_id is None:
        model.config = copy.copy(model.config)  # the copy's alone, not the user's
        model.config.pad_token_id = -1  # no token has this number


def last_token(model: Module) -> int | Callable[[Mapping[str, Tensor]], Tensor]:
    """What a classifier reads, as transformers finds it: the rightmost token that is not the padding token."""
    padding = model.config.get_text_config().pad_token_id
    return -1 if padding is None else partial(_rightmost, padding=padding)


def _rightmost(inputs: Mapping[str, Tensor], padding: int) -> Tensor:
    kept = (inputs["input_ids"] != padding).long()
    return (kept * torch.arange(kept.shape[1], device=kept.device)).argmax(-1)


def decoder(
    model: Module,
    layers: str,
    describe_layer: Callable[[Parts], LayerSpec],
    *,
    norm: str | None,
    limits: InputLimits,
    read_norm: Callable[[Parts, str], NormSpec] = Parts.norm,
    in_float32: bool = False,
    in_place: bool = False,
    features: int | None = None,
) -> ModelSpec:
    """A classifier that applies ``score`` to what it reads of the last layer after a final norm.

    Args:
        model: of transformers.
        layers: the path of its layers.
        describe_layer: reads one.
        norm: the path of the final norm.
        read_norm: how that is read.
        limits, in_float32, in_place: as :class:`..spec.ModelSpec` has them.
        features: how many inputs ``score`` takes, if not ``d``.
    """
    parts = Parts(model, "", model.config.hidden_size)
    spec = model_spec(
        [parts.below(f"{layers}.{number}") for number in range(len(parts[layers]))],
        describe_layer,
        (parts.step("score", features=features),),
        limits,
        read=last_token(model),
        final_norm=None if norm is None else (parts[norm], read_norm(parts, norm)),
        in_float32=in_float32,
    )
    return replace(spec, prepare=without_padding, in_place=in_place)
