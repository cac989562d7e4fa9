"""Longformer: BERT's layers in a window, with global tokens that all attend, and that attend by maps of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from ..reading.classifiers import dense_and_out_proj
from ..reading.heads import BARE, LM_HEAD, SPANS, TOKENS, HeadKind, headed, pooled, with_head
from ..reading.pairs import global_question
from ..reading.parts import Module, Parts, embedding_limits, post_norm, stack, whole
from ..spec import Context, HubSpec, LayerSpec, ModelSpec
from .bert import ATTENTION


def global_tokens(n: int, context: Context) -> Tensor | None:
    """Which tokens the model was told are global, or told itself; the padding to whole windows is cut off."""
    where = context["is_index_global_attn"][:, :n]
    return where if bool(where.any()) else None


def longformer_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm, feed-forward, add and norm."""
    radius = layer["attention.self.one_sided_attn_window_size"]
    attend = layer.attention(ATTENTION, heads=layer["attention.self.num_heads"], window=radius + 1)
    query, key, value = (layer.affine(f"attention.self.{name}_global") for name in ("query", "key", "value"))
    # The model asks this map of the global tokens alone, so that its module has not the outputs of all.
    query = replace(query, module=None)
    attend = replace(attend, hubs=HubSpec(query, key, value, radius, 1, global_tokens))
    feed = layer.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
    return post_norm(attend, feed, layer.norm("attention.output.LayerNorm"), layer.norm("output.LayerNorm"))


def longformer_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whose softmax computes in float32, whatever the head; ``encoder`` is where they are in the model."""
    base = whole(model, encoder)
    limits = embedding_limits(base.below("embeddings"))
    # It scales its queries in place, and pads to whole windows.
    spec = stack(base, "encoder.layer", longformer_layer, limits=limits, in_float32=True, in_place=True)
    return replace(spec, pads=True)


def _asking(model: Module, head: HeadKind, *, choice: bool = False) -> ModelSpec:
    spec = longformer_body(model, "longformer")
    given = partial(global_question, separator=model.config.sep_token_id, choice=choice)
    return replace(with_head(spec, Parts(model, "", spec.width), head, "longformer"), given=given)


#: In a sequence classifier the first token is global.
FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "LongformerForQuestionAnswering": partial(_asking, head=SPANS),
    "LongformerForMultipleChoice": partial(_asking, head=pooled("longformer", "classifier"), choice=True),
    **headed(
        "Longformer",
        longformer_body,
        "longformer",
        {"ForTokenClassification": TOKENS, "ForMaskedLM": LM_HEAD, "Model": BARE},
        dense_and_out_proj,
    ),
}
