"""CodeGen: GPT-J's layers, whose queries, values and keys are of one map."""

from __future__ import annotations

from functools import partial

from ..reading.decoder import heads
from ..reading.parts import Parts
from ..spec import AttentionSpec, LayerSpec
from .gptj import beside_network, body, positions_of

#: How many processors CodeGen was trained with, each of which has its group of a map's outputs; a number in the code of
#: earlier versions of transformers.
CODEGEN_GROUPS = 4


def codegen_layer(layer: Parts) -> LayerSpec:
    """GPT-J's layer; the outputs of one map come in four groups, each with its queries, values and keys."""
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
        positions=positions_of(attention),
    )
    return beside_network(layer, attend)


FAMILIES = heads("CodeGen", partial(body, describe_layer=codegen_layer), "transformer", classes=False)
