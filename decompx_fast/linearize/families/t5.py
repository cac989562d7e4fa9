"""T5 and its kin: RMSNorms before the branches, relative positions, no biases; Flan-T5, mT5, UMT5."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import UnsupportedModelError
from ..reading.encoder_decoder import CLASSES_AT_END, Stack, headed, joined, next_token, of_text
from ..reading.heads import BARE, SPANS, TOKENS, HeadKind, with_head
from ..reading.parts import Module, Parts, model_spec
from ..spec import AttentionSpec, Context, InputLimits, LayerSpec, ModelSpec, SublayerSpec


def relative(query: Tensor, key: Tensor, _context: Context, *, attention: Module) -> tuple[Tensor, Tensor, Tensor]:
    """What is added to the logits ``[1, h, i, j]``: a number for each head and bucket of distances."""
    i, j = (torch.arange(x.shape[2], device=query.device) for x in (query, key))
    bucket, options = attention._relative_position_bucket, {}
    if "num_buckets" in inspect.signature(bucket).parameters:  # a static method; UMT5's knows its own
        options = {
            "bidirectional": not attention.is_decoder,
            "num_buckets": attention.relative_attention_num_buckets,
            "max_distance": attention.relative_attention_max_distance,
        }
    numbers = attention.relative_attention_bias.weight.detach().to(query.dtype)
    return query, key, numbers[bucket(j[None] - i[:, None], **options)].permute(2, 0, 1).unsqueeze(0)


def block(layer: Parts, first: Module) -> LayerSpec:
    """Attention, in a decoder cross attention, network; each after a norm. ``first`` is the attention of the first
    layer, whose positions those have that have none of their own."""
    own, decodes = layer["layer.0.SelfAttention"], bool(layer["is_decoder"])
    positions = partial(relative, attention=own if own.has_relative_attention_bias else first)

    if decodes and own.config._attn_implementation == "sdpa" and not getattr(own, "is_causal", True):
        raise UnsupportedModelError(
            f"{layer.name} attends to what comes after a token, unless there is padding: so do UMT5's decoders in some "
            "versions of transformers (5.17 is one). Load the model with attn_implementation='eager'"
        )

    def attend(path: str) -> AttentionSpec:
        paths = [f"{path}.{name}" for name in "qkvo"]
        return layer.attention(paths, heads=own.n_heads, size=own.key_value_proj_dim, scale=1.0)

    network = f"layer.{1 + decodes}"
    names = (
        ("wi_1", "wo", "act", "wi_0") if hasattr(layer[f"{network}.DenseReluDense"], "wi_1") else ("wi", "wo", "act")
    )
    feed = layer.network(*(f"{network}.DenseReluDense.{name}" for name in names))
    itself = replace(attend("layer.0.SelfAttention"), causal=decodes, positions=positions)
    parts = [SublayerSpec((itself,), pre_norm=layer.rms_norm("layer.0.layer_norm"))]
    if decodes:
        cross = replace(attend("layer.1.EncDecAttention"), memory=True)
        parts.append(SublayerSpec((cross,), pre_norm=layer.rms_norm("layer.1.layer_norm")))
    return (*parts, SublayerSpec((feed,), pre_norm=layer.rms_norm(f"{network}.layer_norm")))


def stack(parts: Parts) -> Stack:
    """An encoder or a decoder."""
    describe = partial(block, first=parts["block.0.layer.0.SelfAttention"])
    norm = (parts["final_layer_norm"], parts.rms_norm("final_layer_norm"))
    return Stack(parts, "block", describe, norm)


def body(parts: Parts) -> ModelSpec:
    """Encoder and decoder."""
    return joined(stack(parts.below("encoder")), stack(parts.below("decoder")), positions=None, in_float32=True)


def encoder_body(parts: Parts) -> ModelSpec:
    """The encoder alone."""
    one = stack(parts.below("encoder"))
    layers = one.parts.each("block")
    limits = InputLimits(None, {"input_ids": one.parts["embed_tokens"].num_embeddings})
    return model_spec(layers, one.describe, (), limits, final_norm=one.norm, in_float32=True)


def _parts(model: Module) -> Parts:
    return Parts(model, "", model.config.d_model)


#: By what a class decides whether states are multiplied before the head; by the second in earlier versions.
SCALES = ("scale_decoder_outputs", "tie_word_embeddings")


def generator(model: Module) -> ModelSpec:
    """What the model writes, token by token."""
    scaled = any(getattr(model.config, name) for name in SCALES if name in _names_in_forward(model))
    return headed(model, body(_parts(model)), next_token(scale=_scale if scaled else None), None)


def _names_in_forward(model: Module) -> tuple[str, ...]:
    """What transformers' own forward of a class looks at: the code of a version says it, and nothing that it holds."""
    own: Any = next(cls for cls in type(model).__mro__ if cls.__module__.startswith("transformers."))
    names: tuple[str, ...] = inspect.unwrap(own.forward).__code__.co_names
    return names


def _scale(model: Module) -> float:
    return float(model.config.d_model**-0.5)


def classifier(model: Module) -> ModelSpec:
    """Classes of the text, read at its end in the decoder."""
    return of_text(model, body(_parts(model).below("transformer")), CLASSES_AT_END, "transformer")


def spans(model: Module) -> ModelSpec:
    """Answers, read in the decoder."""
    return of_text(model, body(_parts(model)), SPANS, None)


def encoder(model: Module, *, base: str, head: HeadKind) -> ModelSpec:
    """A model of the encoder alone."""
    return with_head(encoder_body(_parts(model).below(base)), _parts(model), head, base or None)


def families(prefix: str) -> dict[str, Callable[[Module], ModelSpec]]:
    """The classes of a project, by their names."""
    return {
        f"{prefix}ForConditionalGeneration": generator,
        f"{prefix}ForSequenceClassification": classifier,
        f"{prefix}ForQuestionAnswering": spans,
        f"{prefix}ForTokenClassification": partial(encoder, base="transformer", head=TOKENS),
        f"{prefix}EncoderModel": partial(encoder, base="", head=BARE),
    }


FAMILIES = {name: family for prefix in ("T5", "MT5", "UMT5") for name, family in families(prefix).items()}
