"""MobileBERT: layers that work on a narrower state between two maps, with several networks, and no norms but diagonals.

Its embedding is made of three neighbouring tokens together: a position stands for the three of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...errors import UnsupportedModelError
from ..readers import stored
from ..reading.bottlenecks import attention, between
from ..reading.heads import HeadKind, headed, in_turn, text_heads
from ..reading.parts import Module, Parts, embedding_limits, stack, whole
from ..spec import HeadStepSpec, LayerSpec, ModelSpec, Stacked, SublayerSpec
from .bert import ATTENTION


def mobilebert_layer(outer: Parts) -> LayerSpec:
    """Narrow; attention, add and norm; networks, each with add and norm; widen, add and norm."""
    layer = Parts(outer.module, outer.name, outer["attention.self.config"].true_hidden_size)
    shares = layer["use_bottleneck"] and not layer["bottleneck.use_bottleneck_attention"]
    if shares and not layer["bottleneck.key_query_shared_bottleneck"]:
        raise UnsupportedModelError(
            f"{layer.name} has bottlenecks, but none for its attention (use_bottleneck_attention and "
            "key_query_shared_bottleneck are False): its queries and keys do not fit their maps"
        )
    shared = ("bottleneck.attention.dense", "bottleneck.attention.LayerNorm") if shares else None
    attend = attention(layer, outer, ATTENTION, shared)
    inner = [SublayerSpec((attend,), post_norm=layer.norm_or_diagonal("attention.output.LayerNorm"), reads_wide=shares)]
    for part in (*(layer.each("ffn") if hasattr(layer.module, "ffn") else ()), layer):
        feed = part.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
        inner.append(SublayerSpec((feed,), post_norm=part.norm_or_diagonal("output.LayerNorm")))
    if not layer["use_bottleneck"]:
        return tuple(inner)
    into, out = ((f"{path}.dense", f"{path}.LayerNorm") for path in ("bottleneck.input", "output.bottleneck"))
    return between(outer, layer, into, inner, out)


def mobilebert_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model."""
    base = whole(model, encoder)
    return stack(base, "encoder.layer", mobilebert_layer, limits=embedding_limits(base.below("embeddings")))


def _pooled_steps(parts: Parts, *, path: str) -> tuple[HeadStepSpec, ...]:
    """The pooler, which may do nothing, and one map."""
    pooler = (parts.step("mobilebert.pooler.dense", "tanh"),) if parts["mobilebert.pooler.do_activate"] else ()
    return *pooler, parts.step(path)


def _pooled(path: str) -> HeadKind:
    called = in_turn(calls=(path,), pooler="mobilebert.pooler").call
    return HeadKind(partial(_pooled_steps, path=path), called, read=0)


def _predictions(parts: Parts) -> tuple[HeadStepSpec, ...]:
    """Dense, activation, norm, and a map to the vocabulary: the embeddings, and below them more rows of their own."""
    head = parts.below("cls.predictions")
    dense = head.step("transform.dense", head.activation("transform.transform_act_fn"), "transform.LayerNorm")
    words, more = (stored(head[name], "weight", f"{head.name}.{name}") for name in ("decoder", "dense"))
    return dense, HeadStepSpec(Stacked.of((words.T, more), head["decoder.bias"].detach()))


_MASKED, _CHOICE = HeadKind(_predictions, in_turn(calls=("cls",)).call), _pooled("classifier")

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = headed(
    "MobileBert",
    mobilebert_body,
    "mobilebert",
    text_heads(_MASKED, _CHOICE, _pooled("cls.seq_relationship")),
    _CHOICE.steps,
)
