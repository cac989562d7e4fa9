"""DINOv2, with and without registers: a classifier of pictures by the class and the mean of the patches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reading.parts import Module, Parts
from ..reading.pictures import CLASS, layer_of, picture_model, pictures_of
from ..spec import LayerSpec, ModelSpec
from ..terms import Pooled


def dinov2_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, scale, add; norm, network, scale, add; the network may be gated."""
    scales = layer["layer_scale1.lambda1"], layer["layer_scale2.lambda1"]
    return layer_of(layer, ("norm1", "norm2"), scales=scales)


def dinov2(model: Module, base: str = "dinov2") -> ModelSpec:
    """``Dinov2ForImageClassification``: a classifier on the position of the class and the mean of the patches."""
    config = model.config
    registers = getattr(config, "num_register_tokens", 0)
    special = (CLASS, *(f"[REG{n}]" for n in range(registers)))
    picture = pictures_of(getattr(model, base).embeddings.patch_embeddings, special)
    return picture_model(
        model,
        base,
        "encoder.layer",
        dinov2_layer,
        lambda parts: (parts.step("classifier", features=2 * config.hidden_size),),
        picture,
        width=config.hidden_size,
        read=Pooled(((0, 1), (len(special), None))),
        asks=False,
    )


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "Dinov2ForImageClassification": dinov2,
    "Dinov2WithRegistersForImageClassification": partial(dinov2, base="dinov2_with_registers"),
}
