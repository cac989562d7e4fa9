"""BEiT: classifiers of pictures with relative positions of patches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from ..reading.parts import Module, Parts
from ..reading.pictures import CLASS, picture_model, pictures_of, vit_layer
from ..spec import Context, HeadStepSpec, LayerSpec, ModelSpec, PictureLimits
from ..terms import Pooled


def beit_positions(
    query: Tensor, key: Tensor, context: Context, *, tables: list[nn.Module], patch: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Relative positions of patches, by tables of the layer and of all layers; ``resolution`` is the picture's."""
    height, width = context["resolution"]
    window = height // patch[0], width // patch[1]
    biases = [table(window).detach().to(query.dtype) for table in tables]
    return query, key, sum(biases[1:], biases[0]) if biases else None


def beit(model: Module) -> ModelSpec:
    """``BeitForImageClassification``."""
    shared = model.beit.shared_position_bias

    def layer(parts: Parts, picture: PictureLimits) -> LayerSpec:
        tables = [table for table in (shared, parts["relative_position_bias"]) if table is not None]
        positions = partial(beit_positions, tables=tables, patch=picture.patch)
        return vit_layer(parts, scales=(parts["lambda_1"], parts["lambda_2"]), positions=positions)

    return beit_model(model, "beit", "layers", layer)


def beit_model(model: Module, base: str, layers: str, layer: Callable[..., LayerSpec]) -> ModelSpec:
    """A norm and a classifier on the mean of the patches, or a classifier on the class; ``layer`` reads one of the
    ``layers`` of ``base``."""
    config, embeddings = model.config, getattr(model, base).embeddings
    picture = pictures_of(embeddings.patch_embeddings, (CLASS,), fixed=embeddings.position_embeddings is not None)

    def head(parts: Parts) -> tuple[HeadStepSpec, ...]:
        norm = (HeadStepSpec(norm=parts.norm(f"{base}.pooler.layernorm")),) if config.use_mean_pooling else ()
        return (*norm, parts.step("classifier"))

    mean = config.use_mean_pooling
    return picture_model(
        model,
        base,
        layers,
        partial(layer, picture=picture),
        head,
        picture,
        width=config.hidden_size,
        read=Pooled(((1, None),)) if mean else 0,
        final_norm=None if mean else "layernorm",
        asks=False,
    )


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {"BeitForImageClassification": beit}
