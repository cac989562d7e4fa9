"""Models that compare texts and pictures by a vector of each: CLIP, MetaCLIP 2, SigLIP.

Each of the two encoders is described by itself; the map after it is the last step of its head.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import InputError, UnsupportedModelError
from ..reading.parts import Module
from ..spec import ModelSpec
from . import clip_towers, siglip_towers

#: What describes a tower, by the class of its encoder.
ENCODERS = clip_towers.FAMILIES | siglip_towers.FAMILIES

#: The models that are made of two such towers.
PAIRED = ("CLIPModel", "MetaClip2Model", "SiglipModel")


def tower(model: Module) -> ModelSpec:
    """:class:`..towers.Tower`.

    Raises:
        UnsupportedModelError: for an encoder that is none of :data:`ENCODERS`.
    """
    for cls in type(model.encoder).__mro__:
        if cls.__name__ in ENCODERS:
            return ENCODERS[cls.__name__](model)
    raise UnsupportedModelError(
        f"{type(model.encoder).__name__} is no encoder that can be explained: supported are "
        f"{', '.join(sorted(ENCODERS))}"
    )


def two_towers(model: Module) -> ModelSpec:
    """Refuse :class:`..towers.TwoTowers` as one model.

    Raises:
        InputError: says what it is for.
    """
    raise InputError(
        f"{type(model.model).__name__} compares texts with pictures, by an encoder of each, and has no logits of an "
        "input by itself: use similarity(text, picture)"
    )


TOWERS: dict[str, Callable[[Module], ModelSpec]] = {"Tower": tower, "TwoTowers": two_towers}
