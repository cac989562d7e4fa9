"""GPT-J: attention and network side by side after one norm; neighbours are rotated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from ..reading.decoder import heads
from ..reading.parts import Module, Parts, embedding_limits, plain_attention, stack
from ..reading.positions import paired_rotary_positions
from ..spec import AttentionSpec, Context, LayerSpec, ModelSpec, Positions, SublayerSpec


def gptj_layer(layer: Parts) -> LayerSpec:
    """One norm, then attention and network side by side; neighbours are rotated, in part of each head."""
    attend = layer.attention(
        [f"attn.{name}_proj" for name in ("q", "k", "v", "out")],
        heads=layer["attn.num_attention_heads"],
        causal=True,
        positions=positions_of(layer["attn"]),
    )
    return beside_network(layer, attend)


def beside_network(layer: Parts, attend: AttentionSpec) -> LayerSpec:
    """One norm, then this attention and the network side by side."""
    feed = layer.network("mlp.fc_in", "mlp.fc_out", "mlp.act")
    return (SublayerSpec((attend, feed), pre_norm=layer.norm("ln_1")),)


def body(parts: Parts, describe_layer: Callable[[Parts], LayerSpec]) -> ModelSpec:
    """The layers and the norm after them. Attention weights are computed in float32 whatever the dtype by transformers'
    plain implementation, and by attentions with a table of their own."""
    limits = embedding_limits(parts, "wte", None, "wte", most=parts.module.config.max_position_embeddings)
    in_float32 = plain_attention(parts.module) or any(_has_table(layer.attn) for layer in parts["h"])
    return stack(parts, "h", describe_layer, norm="ln_f", limits=limits, in_float32=in_float32)


def _has_table(attention: Module) -> bool:
    """Whether it has sines and cosines of its own, and attends in its own way: so in earlier versions of transformers,
    where the model hands none to it."""
    return hasattr(attention, "embed_positions")


def positions_of(attention: Module) -> Positions:
    """By the table that it has, or by what the model hands to it."""
    return partial(_by_table, attention=attention) if _has_table(attention) else paired_rotary_positions


def _by_table(query: Tensor, key: Tensor, context: Context, *, attention: Module) -> tuple[Tensor, Tensor, None]:
    """Pairs of neighbours are rotated, by sines and cosines ``[most, 2 r]`` of the attention's own."""
    found = attention.embed_positions.to(query.device)[context["position_ids"]].to(query.dtype)
    return paired_rotary_positions(query, key, {"position_embeddings": found.chunk(2, dim=-1)})


FAMILIES = heads("GPTJ", partial(body, describe_layer=gptj_layer), "transformer", spans=True)
