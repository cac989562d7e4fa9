"""FlauBERT: XLM's layers."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import UnsupportedModelError
from ..reading.parts import Module, whole
from ..spec import ModelSpec
from .xlm import families, xlm_body


def flaubert_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model."""
    if whole(model, encoder, model.config.emb_dim)["pre_norm"]:
        raise UnsupportedModelError(
            "this FlauBERT has its norms before the branches (pre_norm=True), so that no module gives the states after "
            "its layers: they could not be checked, so it is refused"
        )
    return xlm_body(model, encoder)


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = families("Flaubert", flaubert_body)
