"""StarCoder2: LayerNorms, rotary positions, perhaps a window."""

from __future__ import annotations

from functools import partial

from ..reading.decoder import heads
from ..reading.normed_rotary import attention, decoder, one_after_the_other
from ..reading.parts import Parts
from ..reading.positions import rotary_positions
from ..spec import LayerSpec


def starcoder2_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, perhaps in a window, add; norm, network, add."""
    attend = attention(layer, "o_proj", rotary_positions, layer["self_attn.config"].sliding_window)
    return one_after_the_other(layer, attend, layer.network("mlp.c_fc", "mlp.c_proj", "mlp.act"))


starcoder2 = partial(decoder, describe_layer=starcoder2_layer, words="embed_tokens", norm="norm")

FAMILIES = heads("Starcoder2", starcoder2, "model", tokens="score")
