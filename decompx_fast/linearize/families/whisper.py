"""Whisper's encoder, which classifies sounds by their spectrograms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..reading.parts import Module, Parts, model_spec, pre_norm
from ..reading.sounds import fixed_grid, weights_of_layers
from ..spec import InputLimits, LayerSpec, ModelSpec, SoundLimits

WHISPER_ATTENTION = [f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")]


def whisper_layer(layer: Parts) -> LayerSpec:
    """A norm and an attention, a norm and a network; keys without a bias, and queries scaled before they meet."""
    attend = layer.attention(WHISPER_ATTENTION, heads=layer["self_attn"].num_heads)
    feed = layer.network("fc1", "fc2", "activation_fn")
    return pre_norm(attend, feed, layer.norm("self_attn_layer_norm"), layer.norm("final_layer_norm"))


def whisper(model: Module) -> ModelSpec:
    """``WhisperForAudioClassification``: two maps on the mean of the frames of the encoder.

    A frame is what two convolutions make of five or so columns of the spectrogram, of which each covers two.
    """
    config = model.config
    parts = Parts(model, "", config.d_model)
    step = parts["encoder.conv1"].stride[0] * parts["encoder.conv2"].stride[0]
    positions = config.max_source_positions
    sizes = config.num_mel_bins, positions * step
    grid = partial(fixed_grid, grid=(1, positions))
    sound = SoundLimits("input_features", ("mel", "time"), sizes, (), (config.num_mel_bins, step), grid)
    spec = model_spec(
        parts.each("encoder.layers"),
        whisper_layer,
        (parts.step("projector"), parts.step("classifier", features=config.classifier_proj_size)),
        InputLimits(None, {}, sound=sound),
        read="mean",
        final_norm=(parts["encoder.layer_norm"], parts.norm("encoder.layer_norm")),
    )
    return replace(spec, layer_weights=weights_of_layers(model))


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {"WhisperForAudioClassification": whisper}
