"""Attention in blocks, of which the first and the last are attended from everywhere, and some that are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..spec import AttentionSpec, Context, HubSpec
from .parts import Module


def in_blocks(attend: AttentionSpec, config: Module) -> AttentionSpec:
    """The same attention where the model attends in blocks: each attends itself, its neighbours, and the first and the
    last, which attend all."""
    size, times = config.block_size, config.num_random_blocks
    hubs = HubSpec(attend.query, attend.key, attend.value, 1, size, partial(outer_blocks, block=size))
    return replace(attend, hubs=hubs, positions=partial(repeated_block, block=size, times=times))


def attend_fully(model: Module, inputs: Mapping[str, Tensor], *, base: str) -> None:
    """Switch the private copy of a model of blocks to full attention, as its own forward would for a short input;
    ``base`` is where its encoder is, if it is not the model."""
    encoder: Module = getattr(model, base, model)
    sparse = encoder.attention_type != "original_full"
    if sparse and inputs["input_ids"].shape[1] <= sparse_from(model.config):
        with torch.device("meta"):  # the new modules take over the weights, so none need be drawn
            encoder.set_attention_type("original_full")


def sparse_from(config: Module) -> int:
    """How many tokens are still attended to all by all in a model of blocks: transformers' own rule."""
    return int((5 + 2 * config.num_random_blocks) * config.block_size)


def outer_blocks(n: int, context: Context, *, block: int) -> Tensor | None:
    """The first and the last block of a model that attends in blocks; ``None`` where it attends fully."""
    mask = context.get("band_mask")
    if mask is None:
        return None
    number = torch.arange(n, device=mask.device) // block
    return ((number == 0) | (number == number[-1])).expand(len(mask), -1)


def repeated_block(
    query: Tensor, key: Tensor, context: Context, *, block: int, times: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """In eval mode every block that is drawn is the first one, which the softmax then counts once more for each."""
    if "band_mask" not in context or not times:
        return query, key, None
    bias = key.new_zeros(1, 1, 1, key.shape[2])
    bias[..., :block] = math.log(1 + times)
    return query, key, bias
