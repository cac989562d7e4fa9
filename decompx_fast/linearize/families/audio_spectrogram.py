"""AST: a Vision Transformer on the spectrogram of a sound."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reading.parts import Module, Parts, model_spec, plain_attention
from ..reading.pictures import CLASS, pair, vit_layer
from ..reading.sounds import fixed_grid
from ..spec import HeadStepSpec, InputLimits, ModelSpec, SoundLimits
from ..terms import Pooled


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
        parts.each(f"{base}.layers"),
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


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {"ASTForAudioClassification": ast}
