"""Classifiers of pictures made of the vision towers of CLIP, MetaCLIP 2 and SigLIP."""

from __future__ import annotations

from collections.abc import Callable

from ..reading.parts import Module
from ..reading.pictures import CLASS, classifier, clip_layer, picture_model, pictures_of
from ..spec import ModelSpec
from ..terms import Pooled


def clip(model: Module) -> ModelSpec:
    """``CLIPForImageClassification`` and MetaCLIP 2's: a classifier on the mean of the patches, without a norm before
    it."""
    picture = pictures_of(model.vision_model.embeddings, (CLASS,))
    return picture_model(
        model,
        "vision_model",
        "encoder.layers",
        clip_layer,
        classifier,
        picture,
        width=model.config.vision_config.hidden_size,
        read=Pooled(((1, None),)),
        final_norm=None,
    )


def siglip(model: Module) -> ModelSpec:
    """``SiglipForImageClassification``: a classifier on the mean of the patches, which are all that there is."""
    picture = pictures_of(model.vision_model.embeddings, ())
    return picture_model(
        model,
        "vision_model",
        "encoder.layers",
        clip_layer,
        classifier,
        picture,
        width=model.config.vision_config.hidden_size,
        read="mean",
        final_norm="post_layernorm",
    )


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "CLIPForImageClassification": clip,
    "MetaClip2ForImageClassification": clip,
    "SiglipForImageClassification": siglip,
}
