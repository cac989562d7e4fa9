"""Classifiers of pictures: ViT, ViT-MSN, I-JEPA, and DeiT with one head and with two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ..reading.parts import Module, Parts
from ..reading.pictures import CLASS, classifier, picture_model, pictures_of, vit_layer
from ..spec import Affine, HeadStepSpec, ModelSpec
from ..terms import Pooled


def vit(model: Module) -> ModelSpec:
    """``ViTForImageClassification`` and ``ViTMSNForImageClassification``: a classifier on the position of the class."""
    picture = pictures_of(model.vit.embeddings.patch_embeddings, (CLASS,))
    return picture_model(model, "vit", "layers", vit_layer, classifier, picture, width=model.config.hidden_size)


def ijepa(model: Module) -> ModelSpec:
    """``IJepaForImageClassification``: a classifier on the mean of the patches, which are all that there is."""
    picture = pictures_of(model.ijepa.embeddings.patch_embeddings, ())
    width = model.config.hidden_size
    return picture_model(model, "ijepa", "layers", vit_layer, classifier, picture, width=width, read="mean")


def deit(model: Module) -> ModelSpec:
    """``DeiTForImageClassification``: ViT's, with a second position that no head reads."""
    return deit_body(model, classifier)


def joined(first: Affine, second: Affine) -> Affine:
    """The mean of two maps, as one of what they read, one after the other: ``[x, y] [W; V] / 2 + (b + c) / 2``."""
    assert first.bias is not None and second.bias is not None
    return Affine(torch.cat((first.weight, second.weight)) / 2, (first.bias + second.bias) / 2)


def deit_with_teacher(model: Module) -> ModelSpec:
    """``DeiTForImageClassificationWithTeacher``: the mean of the heads of class and teacher."""

    def head(parts: Parts) -> tuple[HeadStepSpec, ...]:
        return (HeadStepSpec(joined(parts.affine("cls_classifier"), parts.affine("distillation_classifier"))),)

    read = Pooled(((0, 1), (1, 2)))
    return replace(deit_body(model, head), read=read)


def deit_body(model: Module, head: Callable[[Parts], tuple[HeadStepSpec, ...]]) -> ModelSpec:
    """DeiT with some head."""
    picture = pictures_of(model.deit.embeddings.patch_embeddings, (CLASS, "[DIST]"))
    return picture_model(model, "deit", "layers", vit_layer, head, picture, width=model.config.hidden_size)


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "DeiTForImageClassification": deit,
    "DeiTForImageClassificationWithTeacher": deit_with_teacher,
    "IJepaForImageClassification": ijepa,
    "ViTForImageClassification": vit,
    "ViTMSNForImageClassification": vit,
}
