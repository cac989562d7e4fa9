"""What decoders have in common: the heads that transformers puts on each of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..spec import HeadStepSpec, ModelSpec
from .heads import BARE, SPANS, HeadKind, linear, with_head
from .parts import Module, Parts

#: What a decoder's file describes: its layers, from the parts of the model without a head.
Body = Callable[[Parts], ModelSpec]

#: The heads: classes of the last token, the next token at each position, the last token's state.
CLASSES, NEXT, STATE = linear("score"), linear("lm_head"), replace(BARE, read=-1)


def heads(
    prefix: str,
    body: Body,
    base: str,
    *,
    classes: bool = True,
    causal: str = "ForCausalLM",
    tokens: str | None = None,
    spans: bool = False,
    around: Callable[[HeadKind], HeadKind] = lambda head: head,
) -> dict[str, Callable[[Module], ModelSpec]]:
    """A decoder with each head that transformers has for it, by the name of the class.

    Args:
        prefix: of those names.
        body: describes its layers.
        base: where they are in a model with a head.
        classes: whether there is a sequence classifier.
        causal: what the class of the language model is called after the prefix.
        tokens: the map of the token classifier, if there is one.
        spans: whether there is a head for question answering.
        around: changes a head for this decoder.
    """
    found: dict[str, HeadKind] = {causal: NEXT}
    if tokens is not None:
        found["ForTokenClassification"] = linear(tokens)
    if spans:
        found["ForQuestionAnswering"] = SPANS
    families: dict[str, Callable[[Module], ModelSpec]] = {
        prefix + name: partial(_with_head, body=body, base=base, head=around(head)) for name, head in found.items()
    }
    if classes:
        head = around(CLASSES)
        families[f"{prefix}ForSequenceClassification"] = partial(_classifier, body=body, base=base, head=head)
    return families | {f"{prefix}Model": partial(_with_head, body=body, base=None, head=around(STATE))}


def _with_head(model: Module, *, body: Body, base: str | None, head: HeadKind) -> ModelSpec:
    parts = Parts(model, "", model.config.hidden_size)
    return with_head(body(parts if base is None else parts.below(base)), parts, head, base)


def _classifier(model: Module, *, body: Body, base: str, head: HeadKind) -> ModelSpec:
    parts = Parts(model, "", model.config.hidden_size)
    return classifier(model, body(parts.below(base)), head.steps(parts))


def classifier(model: Module, layers: ModelSpec, head: tuple[HeadStepSpec, ...]) -> ModelSpec:
    """A classifier of the last token. It is run with its head, so that it is seen which token the model itself reads.

    Args:
        model: the whole.
        layers: of it, as :func:`.parts.stack` describes them.
        head: the steps from the state to the logits.
    """
    return replace(layers, head=head, read=last_token(model), prepare=without_padding)


def last_token(model: Module) -> int | Callable[[Mapping[str, Tensor]], Tensor]:
    """What a classifier reads, as transformers finds it: the last token that is not the padding token. The text may end
    with such tokens, where they stand for the end of a text too; if there is no other, the first is read."""
    padding = model.config.get_text_config().pad_token_id
    return -1 if padding is None else partial(_last_but, padding=padding)


def _last_but(inputs: Mapping[str, Tensor], *, padding: int) -> Tensor:
    tokens = inputs["input_ids"]
    return ((tokens != padding) * torch.arange(tokens.shape[1], device=tokens.device)).argmax(-1)


def without_padding(model: Module, inputs: Mapping[str, Tensor]) -> None:
    """Lets a model without a padding token take a batch: none of its inputs is padded, so it reads the last token."""
    if model.config.pad_token_id is None:
        model.config = copy.copy(model.config)  # the copy's alone, not the user's
        model.config.pad_token_id = -1  # no token has this number
