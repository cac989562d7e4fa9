"""Classifiers of pictures made of the vision towers of CLIP, MetaCLIP 2 and SigLIP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reading.parts import Module, Read
from ..reading.pictures import CLASS, classifier, clip_layer, picture_model, pictures_of
from ..spec import ModelSpec
from ..terms import Pooled


def tower(model: Module, *, special: tuple[str, ...], read: Read, final_norm: str | None) -> ModelSpec:
    """A classifier on a mean of a vision tower's positions.

    Args:
        model: of the architecture.
        special: the positions before the patches.
        read: what the mean is of.
        final_norm: after all layers, by its name; ``None``: there is none before the head.
    """
    picture = pictures_of(model.vision_model.embeddings, special)
    width = model.config.vision_config.hidden_size
    options = {"width": width, "read": read, "final_norm": final_norm}
    return picture_model(model, "vision_model", "encoder.layers", clip_layer, classifier, picture, **options)


#: The mean of the patches, without a norm before it.
clip = partial(tower, special=(CLASS,), read=Pooled(((1, None),)), final_norm=None)

#: The mean of the patches, which are all that there is.
siglip = partial(tower, special=(), read="mean", final_norm="post_layernorm")

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "CLIPForImageClassification": clip,
    "MetaClip2ForImageClassification": clip,
    "SiglipForImageClassification": siglip,
}
