"""Data2Vec's classifiers of pictures: BEiT by other names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reading.parts import Module, Parts
from ..reading.pictures import nested_attention, scaled_layer
from ..spec import LayerSpec, ModelSpec, PictureLimits
from .beit import beit_model, beit_positions


def data2vec(model: Module) -> ModelSpec:
    """``Data2VecVisionForImageClassification``."""
    shared = getattr(model.data2vec_vision.encoder, "relative_position_bias", None)

    def layer(parts: Parts, picture: PictureLimits) -> LayerSpec:
        own = getattr(parts["attention.attention"], "relative_position_bias", None)
        tables = [table for table in (shared, own) if table is not None]
        attend = nested_attention(parts, partial(beit_positions, tables=tables, patch=picture.patch))
        feed = parts.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
        norms = "layernorm_before", "layernorm_after"
        return scaled_layer(parts, norms, attend, feed, (parts["lambda_1"], parts["lambda_2"]))

    return beit_model(model, "data2vec_vision", "encoder.layer", layer)


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {"Data2VecVisionForImageClassification": data2vec}
