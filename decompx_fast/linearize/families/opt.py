"""OPT: norms before the branches, or after them; words may be narrower than layers, and then heads are so too."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from ..spec import HeadStepSpec, LayerSpec, ModelSpec, SublayerSpec
from .decoder import decoder, heads
from .heads import HeadKind
from .parts import Module, Parts, embedding_limits


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
        return SublayerSpec((attend,), pre_norm=first), SublayerSpec((feed,), pre_norm=second)
    return SublayerSpec((attend,), post_norm=first), SublayerSpec((feed,), post_norm=second)


def opt(parts: Parts) -> ModelSpec:
    """OPT."""
    parts, config = parts.below("decoder"), parts.module.config
    limits = embedding_limits(parts, "embed_tokens", None, None, most=config.max_position_embeddings)
    norm = None if parts["final_layer_norm"] is None else "final_layer_norm"
    return decoder(parts, "layers", opt_layer, norm=norm, limits=limits)


def narrowed(head: HeadKind) -> HeadKind:
    """The same head on states that are narrowed first, where words are narrower than layers."""
    return HeadKind(partial(_narrowed_steps, head=head), partial(_narrowed_call, head=head), head.read)


def _narrowing(model: Module) -> tuple[str, Module | None]:
    path = "decoder.project_out" if hasattr(model, "decoder") else "model.decoder.project_out"
    return path, Parts(model, "", model.config.hidden_size)[path]


def _narrowed_steps(parts: Parts, head: HeadKind) -> tuple[HeadStepSpec, ...]:
    path, module = _narrowing(parts.module)
    if module is None:
        return head.steps(parts)
    narrow = Parts(parts.module, parts.name, parts.module.config.word_embed_proj_dim)
    return (parts.step(path), *head.steps(narrow))


def _narrowed_call(model: Module, rows: Tensor, head: HeadKind) -> Tensor:
    _, module = _narrowing(model)
    return head.call(model, rows if module is None else module(rows))


FAMILIES = heads("OPT", opt, "model", spans=True, around=narrowed)
