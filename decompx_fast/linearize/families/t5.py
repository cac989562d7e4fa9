"""T5 and its kin: RMSNorms before the branches, relative positions, no biases; Flan-T5, mT5."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..reading.encoder_decoder import CLASSES_AT_END, Stack, headed, joined, layer_of, next_token, of_text
from ..reading.heads import BARE, SPANS, TOKENS, HeadKind, with_head
from ..reading.parts import Module, Parts, names_in_forward, whole
from ..reading.positions import bucketed_positions
from ..spec import AttentionSpec, LayerSpec, ModelSpec


def block(layer: Parts, first: Module) -> LayerSpec:
    """Attention, in a decoder cross attention, network; each after a norm. ``first`` is the attention of the first
    layer, whose positions those have that have none of their own."""
    own, decodes = layer["layer.0.SelfAttention"], bool(layer["is_decoder"])

    def attend(path: str) -> AttentionSpec:
        paths = [f"{path}.{name}" for name in "qkvo"]
        return layer.attention(paths, heads=own.n_heads, size=own.key_value_proj_dim, scale=1.0)

    network = layer.below(f"layer.{1 + decodes}.DenseReluDense")
    names = ("wi_1", "wo", "act", "wi_0") if hasattr(network.module, "wi_1") else ("wi", "wo", "act")
    positions = partial(bucketed_positions, attention=own if own.has_relative_attention_bias else first)
    itself = replace(attend("layer.0.SelfAttention"), positions=positions)
    cross = attend("layer.1.EncDecAttention") if decodes else None
    norms = [layer.rms_norm(f"layer.{number}.layer_norm") for number in range(2 + decodes)]
    return layer_of(itself, cross, network.network(*names), norms, norms_first=True)


def stack(parts: Parts) -> Stack:
    """An encoder or a decoder."""
    describe = partial(block, first=parts["block.0.layer.0.SelfAttention"])
    return Stack(parts, "block", describe, (parts["final_layer_norm"], parts.rms_norm("final_layer_norm")))


def body(model: Module, base: str | None) -> ModelSpec:
    """Encoder and decoder; ``base`` is where they are in the model."""
    stacks = [stack(whole(model, base or "", model.config.d_model).below(name)) for name in ("encoder", "decoder")]
    return joined(*stacks, positions=None, in_float32=True)


#: By what a class decides whether states are multiplied before the head; by the second in earlier versions.
SCALES = ("scale_decoder_outputs", "tie_word_embeddings")


def generator(model: Module) -> ModelSpec:
    """What the model writes, token by token."""
    scaled = any(getattr(model.config, name) for name in SCALES if name in names_in_forward(model))
    return headed(model, body(model, None), next_token(scale=model.config.d_model**-0.5 if scaled else 1.0), None)


def reader(model: Module, *, base: str | None, head: HeadKind) -> ModelSpec:
    """A model whose decoder reads the text itself."""
    return of_text(model, body(model, base), head, base)


def encoder(model: Module, *, base: str | None, head: HeadKind) -> ModelSpec:
    """A model of the encoder alone."""
    parts = whole(model, "", model.config.d_model)
    alone = stack(parts.below(base or "").below("encoder")).alone(positions=None, in_float32=True)
    return with_head(alone, parts, head, base)


def families(prefix: str) -> dict[str, Callable[[Module], ModelSpec]]:
    """The classes of a project, by their names."""
    return {
        f"{prefix}ForConditionalGeneration": generator,
        f"{prefix}ForSequenceClassification": partial(reader, base="transformer", head=CLASSES_AT_END),
        f"{prefix}ForQuestionAnswering": partial(reader, base=None, head=SPANS),
        f"{prefix}ForTokenClassification": partial(encoder, base="transformer", head=TOKENS),
        f"{prefix}EncoderModel": partial(encoder, base=None, head=BARE),
    }


FAMILIES = {name: family for prefix in ("T5", "MT5") for name, family in families(prefix).items()}
