"""MPT: an attention that falls with the distance (ALiBi), without biases."""

from __future__ import annotations

from torch import Tensor

from ...errors import UnsupportedModelError
from ..reading.decoder import heads
from ..reading.parts import Parts, embedding_limits, pre_norm, stack
from ..spec import Context, LayerSpec, ModelSpec


def mpt_alibi(query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
    """What is added to the logits: ``position_bias`` ``[h, 1, most]``, of which the last are of this text."""
    return query, key, context["position_bias"][None, ..., -key.shape[2] :].to(query.dtype)


def mpt_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, network, add; without biases."""
    attention = layer["attn"]
    if attention.clip_qkv:
        raise UnsupportedModelError(
            f"{layer.name} clamps its values (attn_config.clip_qkv={attention.clip_qkv}), which is no linear map: this "
            "model cannot be explained exactly"
        )
    attend = layer.attention(
        ["attn.Wqkv", "attn.out_proj"],
        heads=attention.n_heads,
        scale=attention.softmax_scale,
        causal=True,
        positions=mpt_alibi,
    )
    feed = layer.network("ffn.up_proj", "ffn.down_proj", "ffn.act")
    return pre_norm(attend, feed, layer.norm("norm_1"), layer.norm("norm_2"))


def mpt(parts: Parts) -> ModelSpec:
    """MPT, whose softmax computes in float32."""
    limits = embedding_limits(parts, "wte", None, None, most=parts.module.config.max_seq_len)
    return stack(parts, "blocks", mpt_layer, norm="norm_f", limits=limits, in_float32=True)


FAMILIES = heads("Mpt", mpt, "transformer", tokens="classifier", spans=True)
