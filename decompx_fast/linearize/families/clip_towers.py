"""The encoders of CLIP and MetaCLIP 2: a causal one of texts, and one of pictures that has a position of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from ..reading.parts import Module, Parts
from ..reading.pictures import CLASS, clip_layer, picture_model, pictures_of
from ..reading.towers import text_tower
from ..spec import HeadStepSpec, ModelSpec


def end_of_text(inputs: Mapping[str, Tensor], *, token: int | None) -> Tensor:
    """The position of the first token that ends a text, ``[b]``; ``None``: of the highest number, which that token has
    in the vocabularies of old configurations."""
    ids = inputs["input_ids"]
    return ids.argmax(-1) if token is None else (ids == token).int().argmax(-1)


def text(model: Module) -> ModelSpec:
    """Read at the end of the text."""
    token = model.encoder.eos_token_id
    by_number = token == 2 and type(model.encoder).__name__.startswith("CLIP")
    read = partial(end_of_text, token=None if by_number else token)
    return text_tower(model, read, causal=True, padded=False, after="projection")


def picture(model: Module) -> ModelSpec:
    """A norm and a map on the position of the class."""

    def head(parts: Parts) -> tuple[HeadStepSpec, ...]:
        return (HeadStepSpec(norm=parts.norm("encoder.post_layernorm")), parts.step("projection"))

    taken, width = pictures_of(model.encoder.embeddings, (CLASS,)), model.config.hidden_size
    return picture_model(model, "encoder", "encoder.layers", clip_layer, head, taken, width=width, final_norm=None)


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "CLIPTextModel": text,
    "CLIPVisionModel": picture,
    "MetaClip2TextModel": text,
    "MetaClip2VisionModel": picture,
}
