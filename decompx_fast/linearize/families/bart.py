"""BART and its kin: BART, Marian, PLBart, BlenderbotSmall (norms after the residual), mBART, Pegasus, M2M100 and NLLB,
Blenderbot (norms before the branches, and one at the end of both stacks)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reading.encoder_decoder import CLASSES_AT_END, Stack, headed, joined, layer_of, next_token, of_text
from ..reading.heads import SPANS, HeadKind
from ..reading.parts import Module, Parts
from ..spec import AttentionSpec, LayerSpec, ModelSpec

#: The maps of an attention, by their names in it.
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def bart_layer(layer: Parts, *, norms_first: bool) -> LayerSpec:
    """Attention, in a decoder cross attention, network; each with a norm after the sum, or before."""

    def attend(path: str) -> AttentionSpec:
        return layer.attention([f"{path}.{name}" for name in PROJECTIONS], heads=layer[path].num_heads)

    paths = ["self_attn", *(["encoder_attn"] if hasattr(layer.module, "encoder_attn") else [])]
    norms = [layer.norm(path) for path in (*(f"{path}_layer_norm" for path in paths), "final_layer_norm")]
    own, cross = attend(paths[0]), attend(paths[1]) if len(paths) > 1 else None
    return layer_of(own, cross, layer.network("fc1", "fc2", "activation_fn"), norms, norms_first=norms_first)


def stack(parts: Parts, norms_first: bool) -> Stack:
    """An encoder or a decoder; where norms come first, there is one more at the end."""
    norm = (parts["layer_norm"], parts.norm("layer_norm")) if norms_first else None
    return Stack(parts, "layers", partial(bart_layer, norms_first=norms_first), norm)


def body(model: Module, norms_first: bool) -> ModelSpec:
    """Encoder and decoder."""
    parts = Parts(model, "", model.config.d_model).below("model")
    stacks = [stack(parts.below(name), norms_first) for name in ("encoder", "decoder")]
    return joined(*stacks, positions=model.config.max_position_embeddings)


def generator(model: Module, *, norms_first: bool, head: HeadKind) -> ModelSpec:
    """What the model writes, token by token."""
    return headed(model, body(model, norms_first), head, "model")


def reader(model: Module, *, norms_first: bool, head: HeadKind, wraps: bool = False) -> ModelSpec:
    """A model whose decoder reads the text itself."""
    return of_text(model, body(model, norms_first), head, "model", wraps=wraps)


#: The next token, with and without a bias of the vocabulary.
NEXT, PLAIN_NEXT = next_token(bias="final_logits_bias"), next_token()

#: By the name of the class: whether norms come first, and the head.
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
    **{name: partial(generator, norms_first=first, head=head) for name, (first, head) in GENERATORS.items()},
    "BartForQuestionAnswering": partial(reader, norms_first=False, head=SPANS),
    "BartForSequenceClassification": partial(reader, norms_first=False, head=CLASSES_AT_END),
    "MBartForQuestionAnswering": partial(reader, norms_first=True, head=SPANS, wraps=True),
    "MBartForSequenceClassification": partial(reader, norms_first=True, head=CLASSES_AT_END, wraps=True),
    "PLBartForSequenceClassification": partial(reader, norms_first=False, head=CLASSES_AT_END, wraps=True),
}
