"""OPT: norms before the branches, or after them; its words may be narrower than its layers."""

from __future__ import annotations

from dataclasses import replace

from ..spec import HeadStepSpec, LayerSpec, ModelSpec, SublayerSpec
from .decoder import decoder
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


def opt(model: Module) -> ModelSpec:
    """``OPTForSequenceClassification``; words are widened in the embedding, and states narrowed again in the head."""
    parts = Parts(model, "", model.config.hidden_size)
    base = parts.below("model.decoder")
    limits = embedding_limits(base, "embed_tokens", None, None, most=model.config.max_position_embeddings)
    norm = None if base["final_layer_norm"] is None else "model.decoder.final_layer_norm"
    narrow = base["project_out"] is not None
    features = model.config.word_embed_proj_dim if narrow else None
    spec = decoder(model, "model.decoder.layers", opt_layer, norm=norm, limits=limits, features=features)
    head = (HeadStepSpec(base.affine("project_out")), *spec.head) if narrow else spec.head
    return replace(spec, head=head)


FAMILIES = {"OPTForSequenceClassification": opt}
