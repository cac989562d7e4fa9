"""The encoders of SigLIP: one of texts that attends its padding, and one of pictures whose pooling is an attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...errors import UnsupportedModelError
from ..reading.parts import Module, Parts
from ..reading.pictures import clip_layer, picture_model, pictures_of
from ..reading.towers import pooling_layer, text_tower
from ..spec import HeadStepSpec, ModelSpec

#: Read at the last position, be it padding, which is attended as any other token is.
text = partial(text_tower, read=-1, causal=False, padded=True, after="encoder.head")


def picture(model: Module) -> ModelSpec:
    """A pooling by the attention of one learned query, which is one more layer."""
    if not model.encoder.use_head:
        raise UnsupportedModelError("this SigLIP pools no patches (vision_use_head=False), so it gives no vector")
    spec = picture_model(
        model,
        "encoder",
        "encoder.layers",
        clip_layer,
        lambda parts: (HeadStepSpec(),),
        pictures_of(model.encoder.embeddings, ()),
        width=model.config.hidden_size,
        final_norm="post_layernorm",
    )
    pooling = Parts(model.encoder.head, "encoder.head", model.config.hidden_size)
    return replace(
        spec,
        layer_modules=(*spec.layer_modules, pooling.module),
        layers=(*spec.layers, pooling_layer(pooling)),
        state_modules=(*spec.state_modules, pooling.module),
    )


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {"SiglipTextModel": text, "SiglipVisionModel": picture}
