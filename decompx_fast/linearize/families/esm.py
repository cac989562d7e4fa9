"""ESM, which reads proteins: norms before the branches, rotary or absolute positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from ...errors import UnsupportedModelError
from ..reading.classifiers import dense_and_out_proj
from ..reading.heads import BARE, TOKENS, headed, module, steps_of
from ..reading.parts import Module, Parts, embedding_limits, pre_norm, stack, whole
from ..reading.positions import rotary_positions_in_float32
from ..spec import Context, HeadStepSpec, LayerSpec, ModelSpec
from .bert import ATTENTION


def scaled(query: Tensor, key: Tensor, _context: Context) -> tuple[Tensor, Tensor, None]:
    """ESM scales its queries, not the logits."""
    return query * query.shape[-1] ** -0.5, key, None


def rotated(query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor, None]:
    """It does so before they are rounded to be rotated."""
    query, key, _ = scaled(query, key, context)
    return rotary_positions_in_float32(query, key, context)


def esm_layer(layer: Parts) -> LayerSpec:
    """Norm, attention with rotary or absolute positions, add; norm, network, add."""
    kind = layer["attention.self.position_embedding_type"]
    if kind not in ("rotary", "absolute"):
        raise UnsupportedModelError(f"{layer.name} uses position_embedding_type={kind!r}: only 'rotary' and 'absolute'")
    attend = layer.attention(
        ATTENTION,
        heads=layer["attention.self.num_attention_heads"],
        scale=1.0,
        positions=rotated if kind == "rotary" else scaled,
    )
    feed = layer.network("intermediate.dense", "output.dense", "gelu")
    return pre_norm(attend, feed, layer.norm("attention.LayerNorm"), layer.norm("LayerNorm"))


def esm_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head, and the norm after them; ``encoder`` is where they are in the model."""
    base = whole(model, encoder)
    limits = embedding_limits(base.below("embeddings"), most=model.config.max_position_embeddings)
    return stack(base, "encoder.layer", esm_layer, limits=limits, norm="encoder.emb_layer_norm_after")


def _esm_predictions(parts: Parts) -> tuple[HeadStepSpec, ...]:
    """The bias of the vocabulary is no part of its map."""
    dense, decoder = steps_of(("dense", "gelu", "layer_norm"), ("decoder",))(parts)
    assert decoder.map is not None
    # The module gives other numbers than this map, so that it must not be listened to.
    return dense, replace(decoder, map=replace(decoder.map, bias=parts["bias"].detach(), module=None))


_ESM = {"ForTokenClassification": TOKENS, "ForMaskedLM": module("lm_head", _esm_predictions), "Model": BARE}

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = headed("Esm", esm_body, "esm", _ESM, dense_and_out_proj)
