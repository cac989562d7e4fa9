"""Classifiers of sounds: what they read is cut into frames of time, or patches of a spectrogram, each a position.

AST, which is a Vision Transformer on a spectrogram; Wav2Vec2, HuBERT, UniSpeech and UniSpeech-SAT, on the waveform;
Whisper's encoder, on a spectrogram. What the sources are is what leaves the convolutions that make frames of the sound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from ...errors import UnsupportedModelError
from ..spec import (
    ConvolutionSpec,
    HeadStepSpec,
    InputLimits,
    LayerSpec,
    ModelSpec,
    SoundLimits,
    SublayerSpec,
)
from ..terms import Pooled
from .parts import Module, Parts, model_spec
from .pictures import CLASS, pair, vit_layer

WAV2VEC2_ATTENTION = [f"attention.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")]
WHISPER_ATTENTION = [f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")]


def in_float32(model: Module) -> bool:
    """Whether the softmax of a model is taken in float32, whatever its dtype."""
    return getattr(model.config, "_attn_implementation", None) == "eager"


def refuse_weighted_layers(model: Module) -> None:
    """Raise an UnsupportedModelError for a classifier that reads the states of all layers."""
    if model.config.use_weighted_layer_sum:
        raise UnsupportedModelError(
            f"this {type(model).__name__} reads a weighted sum of the states of all layers (use_weighted_layer_sum), "
            "which cannot be described yet"
        )


def ast(model: Module) -> ModelSpec:
    """``ASTForAudioClassification``: a norm and a map on the mean of two positions, of class and teacher."""
    config, base = model.config, "audio_spectrogram_transformer"
    parts = Parts(model, "", config.hidden_size)
    patch = pair(config.patch_size)
    steps = config.frequency_stride, config.time_stride
    sizes = config.num_mel_bins, config.max_length
    grid = tuple((size - width) // step + 1 for size, width, step in zip(sizes, patch, steps, strict=True))
    special = (CLASS, "[DIST]")
    sound = SoundLimits("input_values", ("time", "mel"), sizes[::-1], special, steps, partial(fixed_grid, grid=grid))
    return model_spec(
        [parts.below(f"{base}.layers.{n}") for n in range(len(parts[f"{base}.layers"]))],
        vit_layer,
        (
            HeadStepSpec(norm=parts.norm("classifier.layernorm")),
            parts.step("classifier.dense"),
        ),
        InputLimits(None, {}, sound=sound),
        read=Pooled(((0, 2),)),
        final_norm=(parts[f"{base}.layernorm"], parts.norm(f"{base}.layernorm")),
        in_float32=in_float32(model),
    )


def fixed_grid(_length: int, *, grid: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns where a sound always has the same length."""
    return grid


def frames_grid(length: int, *, kernels: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """One row, and a column for each frame that convolutions in a row make of so many samples."""
    for kernel, stride in zip(kernels, strides, strict=True):
        length = (length - kernel) // stride + 1 if length >= kernel else 0
    return 1, length


def wav2vec2_layer(layer: Parts, *, norms_first: bool) -> LayerSpec:
    """An attention and a network, each with a norm after the sum, or before."""
    if getattr(layer.module, "adapter_layer", None) is not None:
        raise UnsupportedModelError(
            f"{layer.name} has an adapter of attention (adapter_attn_dim), which cannot be described yet"
        )
    attend = layer.attention(WAV2VEC2_ATTENTION, heads=layer["attention"].num_heads)
    feed = layer.network(
        "feed_forward.intermediate_dense", "feed_forward.output_dense", "feed_forward.intermediate_act_fn"
    )
    first, second = layer.norm("layer_norm"), layer.norm("final_layer_norm")
    if norms_first:
        return SublayerSpec((attend,), pre_norm=first), SublayerSpec((feed,), pre_norm=second)
    return SublayerSpec((attend,), post_norm=first), SublayerSpec((feed,), post_norm=second)


def positional_convolution(parts: Parts) -> ConvolutionSpec:
    """``act(conv(e) + b)`` of a convolution that gives as many frames as it takes; one of an even width has no tap at
    its end.

    Raises:
        UnsupportedModelError: if it is something else.
    """
    module, name = parts["conv"], f"{parts.name}.conv"
    taps = module.kernel_size[0] if isinstance(module, nn.Conv1d) else 0
    plain = taps and (module.stride, module.dilation, module.padding_mode) == ((1,), (1,), "zeros")
    if not plain or module.padding != (taps // 2,) or type(module).forward is not nn.Conv1d.forward:
        raise UnsupportedModelError(
            f"the module {name!r} is a {type(module).__name__}, where a one-dimensional convolution was expected that "
            "keeps the number of frames: this model cannot be explained exactly, so it is refused"
        )
    if getattr(parts.module, "batch_norm", None) is not None:
        raise UnsupportedModelError(
            f"{parts.name} has a batch norm (conv_pos_batch_norm), which cannot be described yet"
        )
    weight = module.weight.detach()
    weight = weight if taps % 2 else nn.functional.pad(weight, (0, 1))
    bias = None if module.bias is None else module.bias.detach()
    return ConvolutionSpec(weight, bias, module.groups, parts.activation("activation"))


def wav2vec2(model: Module, base: str) -> ModelSpec:
    """``Wav2Vec2ForSequenceClassification`` and those that are made like it: two maps on the mean of the frames.

    The first layer is the convolution that tells frames where they are: it adds to each what it makes of those around
    it, before the first attention. The model maps each frame before it takes their mean, which is the same.
    """
    refuse_weighted_layers(model)
    config, encoder = model.config, getattr(model, base).encoder
    parts = Parts(model, "", config.hidden_size)
    path, stable = f"{base}.encoder", config.do_stable_layer_norm
    norm = parts.norm(f"{path}.layer_norm")
    spec = model_spec(
        [parts.below(f"{path}.layers.{n}") for n in range(len(encoder.layers))],
        partial(wav2vec2_layer, norms_first=stable),
        (parts.step("projector"), parts.step("classifier", features=config.classifier_proj_size)),
        InputLimits(None, {}, sound=waveform(config)),
        read="mean",
        final_norm=(encoder.layer_norm, norm) if stable else None,
        in_float32=in_float32(model),
    )
    convolution = positional_convolution(parts.below(f"{path}.pos_conv_embed"))
    first = (SublayerSpec((convolution,), post_norm=None if stable else norm),)
    return replace(
        spec,
        layer_modules=(encoder.pos_conv_embed, *spec.layer_modules),
        layers=(first, *spec.layers),
        state_modules=(encoder.dropout, *spec.state_modules),
    )


def waveform(config: Module) -> SoundLimits:
    """What a model takes whose frames are made of samples."""
    kernels, strides = tuple(config.conv_kernel), tuple(config.conv_stride)
    step = 1
    for stride in strides:
        step *= stride
    grid = partial(frames_grid, kernels=kernels, strides=strides)
    return SoundLimits("input_values", ("time",), (None,), (), (1, step), grid)


def whisper_layer(layer: Parts) -> LayerSpec:
    """A norm and an attention, a norm and a network; keys without a bias, and queries scaled before they meet."""
    attend = layer.attention(WHISPER_ATTENTION, heads=layer["self_attn"].num_heads)
    feed = layer.network("fc1", "fc2", "activation_fn")
    return (
        SublayerSpec((attend,), pre_norm=layer.norm("self_attn_layer_norm")),
        SublayerSpec((feed,), pre_norm=layer.norm("final_layer_norm")),
    )


def whisper(model: Module) -> ModelSpec:
    """``WhisperForAudioClassification``: two maps on the mean of the frames of the encoder.

    A frame is what two convolutions make of five or so columns of the spectrogram, of which each covers two.
    """
    refuse_weighted_layers(model)
    config = model.config
    parts = Parts(model, "", config.d_model)
    step = parts["encoder.conv1"].stride[0] * parts["encoder.conv2"].stride[0]
    positions = config.max_source_positions
    sizes = config.num_mel_bins, positions * step
    grid = partial(fixed_grid, grid=(1, positions))
    sound = SoundLimits("input_features", ("mel", "time"), sizes, (), (config.num_mel_bins, step), grid)
    return model_spec(
        [parts.below(f"encoder.layers.{n}") for n in range(len(parts["encoder.layers"]))],
        whisper_layer,
        (parts.step("projector"), parts.step("classifier", features=config.classifier_proj_size)),
        InputLimits(None, {}, sound=sound),
        read="mean",
        final_norm=(parts["encoder.layer_norm"], parts.norm("encoder.layer_norm")),
        in_float32=in_float32(model),
    )


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "ASTForAudioClassification": ast,
    "HubertForSequenceClassification": partial(wav2vec2, base="hubert"),
    "UniSpeechForSequenceClassification": partial(wav2vec2, base="unispeech"),
    "UniSpeechSatForSequenceClassification": partial(wav2vec2, base="unispeech_sat"),
    "Wav2Vec2ForSequenceClassification": partial(wav2vec2, base="wav2vec2"),
    "WhisperForAudioClassification": whisper,
}
