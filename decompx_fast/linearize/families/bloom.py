"""BLOOM: an attention that falls with the distance (ALiBi), and queries, keys and values in turns in one map."""

from __future__ import annotations

from dataclasses import replace

from ...errors import UnsupportedModelError
from ..reading.decoder import heads
from ..reading.parts import Parts, embedding_limits, pre_norm, stack
from ..reading.positions import alibi
from ..spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, SublayerSpec


def bloom_ops(layer: Parts) -> tuple[AttentionSpec, FeedForwardSpec]:
    """Attention and network; queries, keys and values take turns in one map."""
    attention = layer["self_attention"]
    if attention.pretraining_tp > 1 and attention.slow_but_exact:
        raise UnsupportedModelError(
            f"{layer.name} multiplies in slices and leaves biases out (slow_but_exact with pretraining_tp="
            f"{attention.pretraining_tp}): set slow_but_exact=False in its configuration"
        )
    attend = layer.attention(
        ["self_attention.query_key_value", "self_attention.dense"],
        heads=attention.num_heads,
        causal=True,
        positions=alibi,
        turns=attention.num_heads,
    )
    return attend, layer.network("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", "mlp.gelu_impl")


def bloom_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, add; norm, network, add."""
    attend, feed = bloom_ops(layer)
    return pre_norm(attend, feed, layer.norm("input_layernorm"), layer.norm("post_attention_layernorm"))


def bloom_normed_layer(layer: Parts) -> LayerSpec:
    """The same where what is normed is added to, and not what was before: the norm ends the sublayer before it."""
    attend, feed = bloom_ops(layer)
    return (SublayerSpec((attend,), post_norm=layer.norm("post_attention_layernorm")), SublayerSpec((feed,)))


def bloom(parts: Parts) -> ModelSpec:
    """BLOOM, whose softmax computes in float32."""
    limits = embedding_limits(parts, positions=None)
    after_norm = parts.module.config.apply_residual_connection_post_layernorm
    describe = bloom_normed_layer if after_norm else bloom_layer
    spec = stack(parts, "h", describe, norm="ln_f", limits=limits, in_float32=True)
    return _shifted(spec, parts) if after_norm else spec


def _shifted(spec: ModelSpec, parts: Parts) -> ModelSpec:
    """With the stream cut after the norm that begins a layer: the first belongs to the embedding, each other one to
    the layer before it."""
    layers, count = list(spec.layers), len(spec.layers)
    for number in range(count - 1):
        *before, last = layers[number]
        layers[number] = (*before, replace(last, post_norm=parts.norm(f"h.{number + 1}.input_layernorm")))
    return replace(
        spec,
        layers=tuple(layers),
        layer_modules=tuple(parts[f"h.{number}.self_attention"] for number in range(count)),
        state_modules=(*(parts[f"h.{number}.input_layernorm"] for number in range(1, count)), parts["ln_f"]),
    )


FAMILIES = heads("Bloom", bloom, "transformer", tokens="classifier", spans=True)
