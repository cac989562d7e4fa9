"""BART and its kin: BART, Marian, PLBart, BlenderbotSmall (norms after the residual), mBART, Pegasus, M2M100 and NLLB,
Blenderbot (norms before the branches, and one at the end of both stacks)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..reading.encoder_decoder import CLASSES_AT_END, Stack, headed, joined, next_token, of_text
from ..reading.heads import SPANS, HeadKind
from ..reading.parts import Module, Parts
from ..spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, SublayerSpec

#: The maps of an attention, by their names in it.
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def layer_of(layer: Parts, before: bool) -> LayerSpec:
    """Attention, in a decoder cross attention, network; each with a norm, ``before`` the branch or after the sum."""
    decodes = hasattr(layer.module, "encoder_attn")

    def part(op: AttentionSpec | FeedForwardSpec, norm: str) -> SublayerSpec:
        found = layer.norm(norm)
        return SublayerSpec((op,), pre_norm=found) if before else SublayerSpec((op,), post_norm=found)

    def attend(path: str) -> AttentionSpec:
        return layer.attention([f"{path}.{name}" for name in PROJECTIONS], heads=layer[path].num_heads)

    return (
        part(replace(attend("self_attn"), causal=decodes), "self_attn_layer_norm"),
        *([part(replace(attend("encoder_attn"), memory=True), "encoder_attn_layer_norm")] if decodes else []),
        part(layer.network("fc1", "fc2", "activation_fn"), "final_layer_norm"),
    )


def stack(parts: Parts, before: bool) -> Stack:
    """An encoder or a decoder; where norms come ``before`` the branches, with one at the end."""
    norm = (parts["layer_norm"], parts.norm("layer_norm")) if before else None
    return Stack(parts, "layers", partial(layer_of, before=before), norm)


def body(model: Module, before: bool) -> ModelSpec:
    """Encoder and decoder."""
    parts = Parts(model, "", model.config.d_model).below("model")
    stacks = [stack(parts.below(name), before) for name in ("encoder", "decoder")]
    return joined(*stacks, positions=model.config.max_position_embeddings)


def generator(model: Module, *, before: bool, head: HeadKind) -> ModelSpec:
    """What the model writes, token by token."""
    return headed(model, body(model, before), head, "model")


def reader(model: Module, *, before: bool, head: HeadKind, wraps: bool = False) -> ModelSpec:
    """A model whose decoder reads the text itself."""
    return of_text(model, body(model, before), head, "model", wraps=wraps)


#: The next token, with and without a bias of the vocabulary.
NEXT, PLAIN_NEXT = next_token(bias="final_logits_bias"), next_token()

#: By the name of the class: whether norms come before the branches, and the head.
GENERATORS = {
    "BartForConditionalGeneration": (False, NEXT),
    "BlenderbotForConditionalGeneration": (True, NEXT),
    "BlenderbotSmallForConditionalGeneration": (False, NEXT),
    "M2M100ForConditionalGeneration": (True, PLAIN_NEXT),
    "MBartForConditionalGeneration": (True, NEXT),
    "MarianMTModel": (False, NEXT),
    "PLBartForConditionalGeneration": (False, NEXT),
    "PegasusForConditionalGeneration": (True, NEXT),
}

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    **{name: partial(generator, before=before, head=head) for name, (before, head) in GENERATORS.items()},
    "BartForQuestionAnswering": partial(reader, before=False, head=SPANS),
    "BartForSequenceClassification": partial(reader, before=False, head=CLASSES_AT_END),
    "MBartForQuestionAnswering": partial(reader, before=True, head=SPANS, wraps=True),
    "MBartForSequenceClassification": partial(reader, before=True, head=CLASSES_AT_END, wraps=True),
    "PLBartForSequenceClassification": partial(reader, before=False, head=CLASSES_AT_END, wraps=True),
}
