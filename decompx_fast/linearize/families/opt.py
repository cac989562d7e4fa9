"""OPT: norms before the branches, or after them; words may be narrower than layers, and then heads are so too."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..reading.decoder import heads
from ..reading.heads import HeadKind
from ..reading.parts import Parts, embedding_limits, plain_attention, post_norm, pre_norm, stack
from ..spec import HeadStepSpec, LayerSpec, ModelSpec


def opt_layer(layer: Parts) -> LayerSpec:
    """Attention, add; network, add; a norm before each, or after."""
    attend = layer.attention(
        [*(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out"))],
        heads=layer["self_attn.num_heads"],
        causal=True,
    )
    feed = layer.network("fc1", "fc2", "activation_fn")
    first, second = layer.norm("self_attn_layer_norm"), layer.norm("final_layer_norm")
    if layer["do_layer_norm_before"]:
        return pre_norm(attend, feed, first, second)
    return post_norm(attend, feed, first, second)


def opt(parts: Parts) -> ModelSpec:
    """OPT."""
    parts, config = parts.below("decoder"), parts.module.config
    limits = embedding_limits(parts, "embed_tokens", None, None, most=config.max_position_embeddings)
    norm = None if parts["final_layer_norm"] is None else "final_layer_norm"
    return stack(parts, "layers", opt_layer, norm=norm, limits=limits, in_float32=plain_attention(parts.module))


def narrowed(head: HeadKind) -> HeadKind:
    """The same head on states that are narrowed first, where words are narrower than layers: the model without a head
    does so, and what it gives is what the head's own modules are called with."""
    return replace(head, steps=partial(_narrowed_steps, head=head))


def _narrowed_steps(parts: Parts, head: HeadKind) -> tuple[HeadStepSpec, ...]:
    path = "decoder.project_out" if hasattr(parts.module, "decoder") else "model.decoder.project_out"
    if parts[path] is None:
        return head.steps(parts)
    narrow = Parts(parts.module, parts.name, parts.module.config.word_embed_proj_dim)
    return (parts.step(path), *head.steps(narrow))


FAMILIES = heads("OPT", opt, "model", spans=True, around=narrowed)
