"""Positions that an attention has beside its queries and keys: relative ones that are added, and rotary ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..spec import Context
from .parts import Module


def added_positions(name: str) -> Callable[[Tensor, Tensor, Context], tuple[Tensor, Tensor, Tensor | None]]:
    """Relative positions that the model computes once and hands to each layer as the argument ``name``."""
    return partial(_added_positions, name=name)


def _added_positions(query: Tensor, key: Tensor, context: Context, *, name: str) -> tuple[Tensor, Tensor, Tensor]:
    return query, key, context[name].to(query.dtype)


def bucketed_positions(
    query: Tensor, key: Tensor, _context: Context, *, attention: Module
) -> tuple[Tensor, Tensor, Tensor]:
    """Relative positions that an attention of T5 looks up, ``[1, h, i, j]``: by head and bucket of distances."""
    i, j = (torch.arange(x.shape[2], device=query.device) for x in (query, key))
    bucket, options = attention._relative_position_bucket, {}
    if "num_buckets" in inspect.signature(bucket).parameters:  # a static method; UMT5's knows its own
        options = {
            "bidirectional": not attention.is_decoder,
            "num_buckets": attention.relative_attention_num_buckets,
            "max_distance": attention.relative_attention_max_distance,
        }
    numbers = attention.relative_attention_bias.weight.detach().to(query.dtype)
    return query, key, numbers[bucket(j[None] - i[:, None], **options)].permute(2, 0, 1).unsqueeze(0)


def rotary_positions(query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor, None]:
    """Rotary positions whose cosines and sines ``[b, i, r]`` the model hands to each layer; halves are rotated, of the
    first ``r`` numbers of a head."""
    cos, sin = (part.unsqueeze(1) for part in context["position_embeddings"])
    query, key = (_rotate_first(x, cos.to(x.dtype), sin.to(x.dtype)) for x in (query, key))
    return query, key, None


def rotary_positions_in_float32(query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor, None]:
    """The same for models that round queries and keys to float32 first, whatever they compute in."""
    cos, sin = (part.unsqueeze(1) for part in context["position_embeddings"])
    query, key = ((x.float() * cos + _rotated(x.float()) * sin).to(x.dtype) for x in (query, key))
    return query, key, None


def interleaved_rotary_positions(query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor, None]:
    """Rotary positions as RoFormer has them: pairs of neighbours are rotated, by ``sinusoidal_pos`` ``[.., i, v]``."""
    sin, cos = (
        part.repeat_interleave(2, dim=-1).to(query.dtype) for part in context["sinusoidal_pos"].chunk(2, dim=-1)
    )
    query, key = (x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2) * sin for x in (query, key))
    return query, key, None


def paired_rotary_positions(query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor, None]:
    """Rotary positions as GPT-J has them: of the first ``2 r`` numbers of a head pairs of neighbours are rotated, by
    the sines and cosines ``[b, i, r]`` that the model hands to each layer."""
    sin, cos = (part.unsqueeze(1).repeat_interleave(2, dim=-1) for part in context["position_embeddings"])
    query, key = (_rotate_pairs(x, cos.to(x.dtype), sin.to(x.dtype)) for x in (query, key))
    return query, key, None


def _rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned, kept = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    turned = turned * cos + torch.stack((-turned[..., 1::2], turned[..., ::2]), dim=-1).flatten(-2) * sin
    return torch.cat((turned, kept), dim=-1)


def _rotate_first(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned, kept = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    turned = turned * cos + _rotated(turned) * sin
    return torch.cat((turned, kept), dim=-1) if kept.shape[-1] else turned


def _rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def alibi(query: Tensor, key: Tensor, context: Context, *, factor: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """What BLOOM and Falcon add to the logits, which depends on the attended position alone: ``alibi``, of all inputs
    and heads, ``[(b h), 1, j]`` or ``[b, h, 1, j]``. In a row only its differences count."""
    b, h, n, _ = query.shape
    return query, key, (context["alibi"].reshape(b, h, 1, n) * factor).to(query.dtype)
