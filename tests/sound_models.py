"""Tiny random classifiers of sounds, sounds for them, and their decomposition in NumPy."""

from __future__ import annotations

from typing import Any

import naive_vision
import numpy as np
import torch
import transformers
from naive import ACTIVATIONS, Array, add_bias, array, slope_and_intercept
from naive_vision import State
from torch import nn

SIZES = {"hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 40, "num_hidden_layers": 2, "num_labels": 3}

#: Frames of 8 samples, 4 apart; a positional convolution of an even width, as it is usual.
WAVE = SIZES | {
    "conv_dim": (8, 8),
    "conv_kernel": (4, 3),
    "conv_stride": (2, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 10,
}
ALL_LAYERS = {"use_weighted_layer_sum": True}
STABLE = {"do_stable_layer_norm": True, "feat_extract_norm": "layer"}

#: Patches of 4 x 4, 3 apart, of a spectrogram of 16 frames and 10 bins: a grid of 3 x 5.
AST = SIZES | {"patch_size": 4, "frequency_stride": 3, "time_stride": 3, "max_length": 16, "num_mel_bins": 10}
WHISPER = {
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "max_source_positions": 9,
    "num_mel_bins": 10,
    "classifier_proj_size": 10,
    "num_labels": 3,
    "decoder_layers": 1,
    "decoder_attention_heads": 4,
}

#: Of each class in transformers.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ast": ("ASTForAudioClassification", AST),
    "hubert": ("HubertForSequenceClassification", WAVE),
    "unispeech": ("UniSpeechForSequenceClassification", WAVE | STABLE),
    "unispeech_sat": ("UniSpeechSatForSequenceClassification", WAVE),
    "wav2vec2": ("Wav2Vec2ForSequenceClassification", WAVE),
    "wav2vec2_odd": ("Wav2Vec2ForSequenceClassification", WAVE | {"num_conv_pos_embeddings": 5}),
    "wav2vec2_stable": ("Wav2Vec2ForSequenceClassification", WAVE | STABLE),
    "wavlm": ("WavLMForSequenceClassification", WAVE),
    "wavlm_stable": ("WavLMForSequenceClassification", WAVE | STABLE),
    "hubert_all_layers": ("HubertForSequenceClassification", WAVE | ALL_LAYERS),
    "wav2vec2_all_layers": ("Wav2Vec2ForSequenceClassification", WAVE | STABLE | ALL_LAYERS),
    "whisper": ("WhisperForAudioClassification", WHISPER),
    "whisper_all_layers": ("WhisperForAudioClassification", WHISPER | ALL_LAYERS),
}


def classifier(case: str, seed: int = 0, dtype: torch.dtype = torch.float64, **more: Any) -> nn.Module:
    """In eval mode, with three classes; every weight random, no bias zero and no norm weight one."""
    name, options = CASES[case]
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**(options | more))).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            gain = 1 if parameter.ndim == 1 and path.endswith("weight") else 0
            parameter.copy_(gain + 0.3 * noise)
    return model


def inputs(case: str, batch: int = 2, samples: int = 50) -> dict[str, torch.Tensor]:
    """Random waveforms, or spectrograms of the size that the model takes."""
    generator = torch.Generator().manual_seed(samples)
    shape = {"ast": (16, 10), "whisper": (10, 18)}.get(case.partition("_")[0], (samples,))
    values = torch.randn(batch, *shape, generator=generator, dtype=torch.float64)
    return {"input_features" if case.startswith("whisper") else "input_values": values}


def convolved(e: Array, embed: nn.Module, kind: str, rule: str) -> State:
    """What the positional convolution adds: each frame's part is made tap by tap."""
    weight, bias = array(embed.conv.weight), array(embed.conv.bias)  # [d, d / groups, t]
    d, size, taps = weight.shape
    n, groups = len(e), embed.conv.groups
    u = np.zeros((n, n + (rule == "bias_token"), d))
    for i, tap in np.ndindex(n, taps):
        j = i + tap - taps // 2
        if 0 <= j < n:
            for g in range(groups):
                part = slice(g * d // groups, (g + 1) * d // groups)
                u[i, j, part] += weight[part, :, tap] @ e[j, g * size : (g + 1) * size]
    x = u.sum(1) + bias
    u = np.stack([add_bias(row, bias, rule) for row in u])
    slope, _ = slope_and_intercept(kind, x, "zero_origin")
    return State(u * slope[:, None], ACTIVATIONS[kind](x))


def gated(attention: nn.Module, first: nn.Module, u: Array) -> Array:
    """WavLM's bias of relative positions ``[h, i, j]``: entry by entry, times the gate of each head."""
    n, heads = len(u), attention.num_heads
    w, b = array(attention.gru_rel_pos_linear.weight), array(attention.gru_rel_pos_linear.bias)
    constant, table = array(attention.gru_rel_pos_const).reshape(-1), array(first.compute_bias(n, n))
    found = np.empty((heads, n, n))
    for h, i in np.ndindex(heads, n):
        state = u[i].reshape(heads, -1)[h]
        a, c = (1 / (1 + np.exp(-part.sum())) for part in np.split(w @ state + b, 2))
        found[h, i] = (a * (c * constant[h] - 1) + 2) * table[h, i]
    return found


def decompose(model: nn.Module, given: torch.Tensor, rule: str) -> tuple[Array, Array]:
    """Scores ``[k, c]`` and logits ``[c]`` of one sound ``[1, ...]``."""
    base = next(child for name, child in model.named_children() if name not in ("projector", "classifier"))
    encoder = getattr(base, "encoder", base)
    positional = getattr(encoder, "pos_conv_embed", None)
    kept: list[torch.Tensor] = []
    handle = (encoder.layers[0] if positional is None else positional).register_forward_pre_hook(
        lambda _m, args, kwargs: kept.append(args[0]), with_kwargs=True
    )
    with torch.no_grad():
        model(given)
    handle.remove()
    x = array(kept[0], row=True)
    u = np.zeros((len(x), len(x) + (rule == "bias_token"), x.shape[1]))
    u[np.arange(len(x)), np.arange(len(x))] = x
    state, config = State(u, x), model.config
    stable = positional is None or config.do_stable_layer_norm
    if positional is not None:
        z = convolved(x, positional, config.feat_extract_activation, rule)
        state = State(u + z.u, x + z.x)
        state = state if stable else naive_vision.norm(state, encoder.layer_norm, rule)
    states = [state]
    for layer in encoder.layers:
        states.append(layered(layer, encoder.layers[0], states[-1], config, rule, stable=stable))
    summed = getattr(config, "use_weighted_layer_sum", False)
    if stable and not (summed and positional is not None):
        last = encoder.layernorm if hasattr(encoder, "layernorm") else encoder.layer_norm
        states[-1] = naive_vision.norm(states[-1], last, rule)
    if not summed:
        return headed(model, states[-1], rule)
    weights = np.exp(array(model.layer_weights))
    weights /= weights.sum()
    u, x = (sum(w * getattr(one, name) for w, one in zip(weights, states, strict=True)) for name in ("u", "x"))
    return headed(model, State(u, x), rule)


def layered(layer: nn.Module, first: nn.Module, state: State, config: Any, rule: str, *, stable: bool) -> State:
    """One layer, its norms before the branches if ``stable``, or after the sums."""
    attention = getattr(layer, "self_attn", None) or layer.attention
    names = {"layer_norm": "final_layer_norm", "layernorm_before": "layernorm_after"}
    names |= {"self_attn_layer_norm": "final_layer_norm"} if hasattr(layer, "self_attn") else {}
    before, after = next((getattr(layer, a), getattr(layer, b)) for a, b in names.items() if hasattr(layer, a))
    kind = getattr(config, "activation_function", None) if hasattr(layer, "self_attn") else config.hidden_act
    out = getattr(attention, "out_proj", None) or attention.o_proj
    u = naive_vision.norm(state, before, rule) if stable else state
    bias = gated(attention, first.attention, u.x) if hasattr(attention, "gru_rel_pos_linear") else None
    z = naive_vision.attention(u, attention, out, bias, 1.0, rule)
    state = State(state.u + z.u, state.x + z.x)
    state = state if stable else naive_vision.norm(state, before, rule)
    u = naive_vision.norm(state, after, rule) if stable else state
    maps = networks(layer)
    hidden = naive_vision.affine(u, maps[0], rule)
    slope, _ = slope_and_intercept(kind, hidden.x, "zero_origin")
    hidden = State(hidden.u * slope[:, None], ACTIVATIONS[kind](hidden.x))
    z = naive_vision.affine(hidden, maps[1], rule)
    state = State(state.u + z.u, state.x + z.x)
    return state if stable else naive_vision.norm(state, after, rule)


def networks(layer: nn.Module) -> tuple[nn.Linear, nn.Linear]:
    """The two maps of a network, by whatever names."""
    if hasattr(layer, "feed_forward"):
        return layer.feed_forward.intermediate_dense, layer.feed_forward.output_dense
    holder = layer.mlp if hasattr(layer, "mlp") else layer
    return holder.fc1, holder.fc2


def headed(model: nn.Module, state: State, rule: str) -> tuple[Array, Array]:
    """What each class reads."""
    if hasattr(model, "projector"):
        mean = State(state.u.mean(0)[None], state.x.mean(0)[None])
        found = naive_vision.affine(naive_vision.affine(mean, model.projector, rule), model.classifier, rule)
    else:
        mean = State(state.u[:2].mean(0)[None], state.x[:2].mean(0)[None])
        normed = naive_vision.norm(mean, model.classifier.layernorm, rule)
        found = naive_vision.affine(normed, model.classifier.dense, rule)
    return found.u[0], found.x[0]
