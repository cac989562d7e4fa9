"""Wav2Vec2, HuBERT, UniSpeech and UniSpeech-SAT: classifiers of sounds that read the waveform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...errors import UnsupportedModelError
from ..reading.parts import Module, Parts, model_spec, post_norm, pre_norm
from ..reading.sounds import waveform, weights_of_layers
from ..spec import AttentionSpec, ConvolutionSpec, InputLimits, LayerSpec, ModelSpec, SublayerSpec

WAV2VEC2_ATTENTION = [f"attention.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")]


def wav2vec2_layer(
    layer: Parts, *, norms_first: bool, gated: Callable[[Parts, AttentionSpec], AttentionSpec] | None = None
) -> LayerSpec:
    """An attention and a network, each with a norm after the sum, or before; ``gated`` adds relative positions."""
    if getattr(layer.module, "adapter_layer", None) is not None:
        raise UnsupportedModelError(
            f"{layer.name} has an adapter of attention (adapter_attn_dim), which cannot be described yet"
        )
    attend = layer.attention(WAV2VEC2_ATTENTION, heads=layer["attention"].num_heads)
    attend = attend if gated is None else gated(layer, attend)
    feed = layer.network(
        "feed_forward.intermediate_dense", "feed_forward.output_dense", "feed_forward.intermediate_act_fn"
    )
    arranged = pre_norm if norms_first else post_norm
    return arranged(attend, feed, layer.norm("layer_norm"), layer.norm("final_layer_norm"))


def wav2vec2(
    model: Module, base: str, gated: Callable[[Parts, AttentionSpec], AttentionSpec] | None = None
) -> ModelSpec:
    """``Wav2Vec2ForSequenceClassification`` and those that are made like it: two maps on the mean of the frames.

    The first layer is the convolution that tells frames where they are: it adds to each what it makes of those around
    it, before the first attention. The model maps each frame before it takes their mean, which is the same.
    """
    config, encoder = model.config, getattr(model, base).encoder
    parts = Parts(model, "", config.hidden_size)
    path, stable = f"{base}.encoder", config.do_stable_layer_norm
    norm = parts.norm(f"{path}.layer_norm")
    spec = model_spec(
        parts.each(f"{path}.layers"),
        partial(wav2vec2_layer, norms_first=stable, gated=gated),
        (parts.step("projector"), parts.step("classifier", features=config.classifier_proj_size)),
        InputLimits(None, {}, sound=waveform(config)),
        read="mean",
        # the states whose sum is read are those before it
        final_norm=(encoder.layer_norm, norm) if stable and not config.use_weighted_layer_sum else None,
    )
    first = (SublayerSpec((_placed(parts.below(f"{path}.pos_conv_embed")),), post_norm=None if stable else norm),)
    return replace(
        spec,
        layer_modules=(encoder.pos_conv_embed, *spec.layer_modules),
        layers=(first, *spec.layers),
        state_modules=(encoder.dropout, *spec.state_modules),
        layer_weights=weights_of_layers(model, before=1),
    )


def _placed(part: Parts) -> ConvolutionSpec:
    """What tells frames where they are. What a convolution of an even width gives beyond them, the model leaves out."""
    if getattr(part.module, "batch_norm", None) is not None:
        raise UnsupportedModelError(
            f"{part.name} has a batch norm (conv_pos_batch_norm), which cannot be described yet"
        )
    return part.convolution("conv", part.activation("activation"), even=True)


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "HubertForSequenceClassification": partial(wav2vec2, base="hubert"),
    "UniSpeechForSequenceClassification": partial(wav2vec2, base="unispeech"),
    "UniSpeechSatForSequenceClassification": partial(wav2vec2, base="unispeech_sat"),
    "Wav2Vec2ForSequenceClassification": partial(wav2vec2, base="wav2vec2"),
}
