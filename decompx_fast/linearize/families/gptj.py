"""GPT-J and CodeGen: attention and network side by side after one norm; neighbours are rotated."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from ..reading.decoder import heads
from ..reading.parts import Module, Parts, embedding_limits, plain_attention, stack
from ..reading.positions import paired_rotary_positions
from ..spec import AttentionSpec, Context, InputLimits, LayerSpec, ModelSpec, Positions, SublayerSpec


def gptj_layer(layer: Parts) -> LayerSpec:
    """One norm, then attention and network side by side; neighbours are rotated, in part of each head."""
    attend = layer.attention(
        [f"attn.{name}_proj" for name in ("q", "k", "v", "out")],
        heads=layer["attn.num_attention_heads"],
        causal=True,
        positions=_positions(layer["attn"]),
    )
    feed = layer.network("mlp.fc_in", "mlp.fc_out", "mlp.act")
    return (SublayerSpec((attend, feed), pre_norm=layer.norm("ln_1")),)


#: How many processors CodeGen was trained with, each of which has its group of a map's outputs; a number in the code of
#: earlier versions of transformers.
CODEGEN_GROUPS = 4


def codegen_layer(layer: Parts) -> LayerSpec:
    """The same; the outputs of one map come in four groups, each with its queries, values and keys."""
    attention = layer["attn"]
    groups = getattr(attention, "mp_num", CODEGEN_GROUPS)
    size = attention.head_dim * attention.num_attention_heads // groups
    packed = layer.affine("attn.qkv_proj")
    query, value, key = (packed.columns_of(n * size, (n + 1) * size, groups) for n in range(3))
    attend = AttentionSpec(
        query,
        key,
        value,
        layer.affine("attn.out_proj"),
        attention.num_attention_heads,
        attention.num_attention_heads,
        attention.head_dim**-0.5,
        causal=True,
        positions=_positions(attention),
    )
    feed = layer.network("mlp.fc_in", "mlp.fc_out", "mlp.act")
    return (SublayerSpec((attend, feed), pre_norm=layer.norm("ln_1")),)


def gptj(parts: Parts) -> ModelSpec:
    """GPT-J."""
    return stack(parts, "h", gptj_layer, norm="ln_f", limits=rotary_limits(parts), in_float32=_in_float32(parts))


def codegen(parts: Parts) -> ModelSpec:
    """CodeGen."""
    return stack(parts, "h", codegen_layer, norm="ln_f", limits=rotary_limits(parts), in_float32=_in_float32(parts))


def _has_table(attention: Module) -> bool:
    """Whether it has sines and cosines of its own, and attends in its own way: so in earlier versions of transformers,
    where the model hands none to it."""
    return hasattr(attention, "embed_positions")


def _in_float32(parts: Parts) -> bool:
    """Whether attention weights are computed in float32 whatever the dtype."""
    return plain_attention(parts.module) or any(_has_table(layer.attn) for layer in parts["h"])


def _positions(attention: Module) -> Positions:
    return partial(_by_table, attention=attention) if _has_table(attention) else paired_rotary_positions


def _by_table(query: Tensor, key: Tensor, context: Context, *, attention: Module) -> tuple[Tensor, Tensor, None]:
    """Pairs of neighbours are rotated, by sines and cosines ``[most, 2 r]`` of the attention's own."""
    found = attention.embed_positions.to(query.device)[context["position_ids"]].to(query.dtype)
    return paired_rotary_positions(query, key, {"position_embeddings": found.chunk(2, dim=-1)})


def rotary_limits(parts: Parts) -> InputLimits:
    return embedding_limits(parts, "wte", None, "wte", most=parts.module.config.max_position_embeddings)


FAMILIES = {
    **heads("GPTJ", gptj, "transformer", spans=True),
    **heads("CodeGen", codegen, "transformer", classes=False),
}
