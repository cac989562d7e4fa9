"""Layers that work on a narrower state: what leads to it and back, and what of an attention still reads the wide one.

Paths are those of modules in a layer, whose parts come twice: ``outer`` as wide as the stream, ``layer`` as the
narrower state.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..spec import Affine, AttentionSpec, LayerSpec, NormSpec, StateMapSpec, SublayerSpec
from .parts import Parts

#: A map and a norm after it, by their paths.
MapAndNorm = tuple[str, str]


def between(outer: Parts, layer: Parts, into: MapAndNorm, inner: Sequence[SublayerSpec], out: MapAndNorm) -> LayerSpec:
    """A map to the narrower state and a norm, what works on it, a map back, the sum with the layer's input, a norm."""
    (narrow, first), (widen, last) = into, out
    return (
        SublayerSpec((StateMapSpec("narrow", outer.affine(narrow)),), post_norm=layer.norm_or_diagonal(first)),
        *inner,
        SublayerSpec((StateMapSpec("widen", layer.affine(widen)),), post_norm=layer.norm_or_diagonal(last)),
    )


def attention(layer: Parts, outer: Parts, paths: Sequence[str], shared: MapAndNorm | None) -> AttentionSpec:
    """An attention in such a layer.

    Args:
        layer, outer: its parts.
        paths: of the maps of queries, keys, values and the output.
        shared: what queries and keys are read through where they share it, both of the wide state, as values are then;
            ``None``: all three read the narrower one.
    """
    query, key, value, out = paths
    module = layer[query.rpartition(".")[0]]
    heads, size = module.num_attention_heads, module.attention_head_size
    before: tuple[Affine, NormSpec] | None = None
    if shared is not None:
        before = (outer.affine(shared[0]), layer.norm_or_diagonal(shared[1]))
    values = layer if shared is None else outer
    maps = layer.affine(query), layer.affine(key), values.affine(value), layer.affine(out, heads * size)
    return AttentionSpec(*maps, heads, heads, size**-0.5, before=before)
