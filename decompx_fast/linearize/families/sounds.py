"""Classifiers of sounds: what they read is cut into frames of time, or patches of a spectrogram, each a position.

AST, which is a Vision Transformer on a spectrogram; Wav2Vec2, HuBERT, UniSpeech, UniSpeech-SAT and WavLM, on the
waveform; Whisper's encoder, on a spectrogram. The sources are what leaves the convolutions that make frames of a sound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from ...errors import UnsupportedModelError
from ..spec import (
    Affine,
    AttentionSpec,
    Context,
    ConvolutionSpec,
    HeadStepSpec,
    InputLimits,
    LayerSpec,
    ModelSpec,
    SoundLimits,
    SublayerSpec,
)
from ..terms import Pooled
from .parts import Module, Parts, model_spec, plain_attention
from .pictures import CLASS, pair, vit_layer

WAV2VEC2_ATTENTION = [f"attention.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")]
WHISPER_ATTENTION = [f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")]


def weights_of_layers(model: Module, before: int = 0) -> Callable[[], Tensor] | None:
    """Gives what the states before the first layer and after each are weighted by, ``[layers + 1]``, where a classifier
    reads all of them; zeros for as many states ``before`` those."""
    if not model.config.use_weighted_layer_sum:
        return None
    return partial(softmax_weights, model.layer_weights, before=before)


def softmax_weights(weights: Tensor, *, before: int) -> Tensor:
    """Their softmax, after so many zeros."""
    shares = weights.detach().softmax(-1)
    return torch.cat((shares.new_zeros(before), shares))


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
        in_float32=plain_attention(model),
    )


def fixed_grid(_length: int, *, grid: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns where a sound always has the same length."""
    return grid


def frames_grid(length: int, *, kernels: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """One row, and a column for each frame that convolutions in a row make of so many samples."""
    for kernel, stride in zip(kernels, strides, strict=True):
        length = (length - kernel) // stride + 1 if length >= kernel else 0
    return 1, length


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
    first, second = layer.norm("layer_norm"), layer.norm("final_layer_norm")
    if norms_first:
        return SublayerSpec((attend,), pre_norm=first), SublayerSpec((feed,), pre_norm=second)
    return SublayerSpec((attend,), post_norm=first), SublayerSpec((feed,), post_norm=second)


def positional_convolution(parts: Parts) -> ConvolutionSpec:
    """``act(conv(e) + b)`` of a convolution that gives as many frames as it takes; what one of an even width gives
    beyond them is left out by the model.

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
    bias = None if module.bias is None else module.bias.detach()
    return ConvolutionSpec(module.weight.detach(), bias, module.groups, parts.activation("activation"))


def gated_relative_positions(layer: Parts, attend: AttentionSpec, *, table: Callable[[int], Tensor]) -> AttentionSpec:
    """WavLM's: a bias of relative positions, the same in all layers, times a gate that each head makes of its part of
    the state. So queries come with what the gate is made of: 8 numbers more for each head."""
    module = layer["attention"]
    gate, heads = layer.affine("attention.gru_rel_pos_linear", module.head_dim), attend.heads
    weight = attend.query.weight.new_zeros(layer.width, heads, module.head_dim + gate.weight.shape[1])
    weight[..., : module.head_dim] = attend.query.weight.unflatten(1, (heads, -1))
    for h in range(heads):
        weight[h * module.head_dim : (h + 1) * module.head_dim, h, module.head_dim :] = gate.weight
    biases = [one.bias for one in (attend.query, gate)]
    assert biases[0] is not None and biases[1] is not None
    bias = torch.cat((biases[0].view(heads, -1), biases[1].expand(heads, -1)), dim=1)
    constant = module.gru_rel_pos_const.detach().view(-1, 1, 1)
    positions = partial(gated_positions, size=module.head_dim, constant=constant, table=table)
    return replace(attend, query=Affine(weight.flatten(1), bias.flatten()), positions=positions)


def gated_positions(
    query: Tensor, key: Tensor, context: Context, *, size: int, constant: Tensor, table: Callable[[int], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """``(a (b c - 1) + 2) table`` with sigmoids ``a`` and ``b`` of the sums of four numbers each, which follow the
    ``size`` numbers of a query; ``c`` is a head's ``constant`` ``[h, 1, 1]``, the table ``[h, i, j]``."""
    a, b = query[..., size:].unflatten(-1, (2, 4)).sum(-1, keepdim=True).sigmoid().unbind(-2)  # [b, h, i, 1]
    bias = (a * (b * constant.to(query.dtype) - 1) + 2) * table(query.shape[2]).to(query.dtype)
    return query[..., :size], key, bias


def wavlm(model: Module) -> ModelSpec:
    """``WavLMForSequenceClassification``: the same with gated relative positions."""
    first = model.wavlm.encoder.layers[0].attention
    table = partial(relative_table, module=first)
    return wav2vec2(model, "wavlm", gated=partial(gated_relative_positions, table=table))


def relative_table(n: int, *, module: Module) -> Tensor:
    """The bias of ``n`` positions, ``[h, i, j]``, as the first layer's attention has it."""
    found: Tensor = module.compute_bias(n, n)
    return found.detach()


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
        [parts.below(f"{path}.layers.{n}") for n in range(len(encoder.layers))],
        partial(wav2vec2_layer, norms_first=stable, gated=gated),
        (parts.step("projector"), parts.step("classifier", features=config.classifier_proj_size)),
        InputLimits(None, {}, sound=waveform(config)),
        read="mean",
        # the states whose sum is read are those before it
        final_norm=(encoder.layer_norm, norm) if stable and not config.use_weighted_layer_sum else None,
    )
    convolution = positional_convolution(parts.below(f"{path}.pos_conv_embed"))
    first = (SublayerSpec((convolution,), post_norm=None if stable else norm),)
    return replace(
        spec,
        layer_modules=(encoder.pos_conv_embed, *spec.layer_modules),
        layers=(first, *spec.layers),
        state_modules=(encoder.dropout, *spec.state_modules),
        layer_weights=weights_of_layers(model, before=1),
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
    config = model.config
    parts = Parts(model, "", config.d_model)
    step = parts["encoder.conv1"].stride[0] * parts["encoder.conv2"].stride[0]
    positions = config.max_source_positions
    sizes = config.num_mel_bins, positions * step
    grid = partial(fixed_grid, grid=(1, positions))
    sound = SoundLimits("input_features", ("mel", "time"), sizes, (), (config.num_mel_bins, step), grid)
    spec = model_spec(
        [parts.below(f"encoder.layers.{n}") for n in range(len(parts["encoder.layers"]))],
        whisper_layer,
        (parts.step("projector"), parts.step("classifier", features=config.classifier_proj_size)),
        InputLimits(None, {}, sound=sound),
        read="mean",
        final_norm=(parts["encoder.layer_norm"], parts.norm("encoder.layer_norm")),
    )
    return replace(spec, layer_weights=weights_of_layers(model))


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "ASTForAudioClassification": ast,
    "HubertForSequenceClassification": partial(wav2vec2, base="hubert"),
    "UniSpeechForSequenceClassification": partial(wav2vec2, base="unispeech"),
    "UniSpeechSatForSequenceClassification": partial(wav2vec2, base="unispeech_sat"),
    "Wav2Vec2ForSequenceClassification": partial(wav2vec2, base="wav2vec2"),
    "WavLMForSequenceClassification": wavlm,
    "WhisperForAudioClassification": whisper,
}
