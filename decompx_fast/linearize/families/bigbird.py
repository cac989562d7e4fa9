"""BigBird: BERT's layers. With all attention (``original_full``), which is also what short inputs get by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ...activations import get_activation
from ...errors import UnsupportedModelError
from ..spec import ModelSpec
from .bert import bert_layer
from .parts import Module, Parts, embedding_limits, model_spec


def sparse_from(config: Module) -> int:
    """How many tokens are still attended to all by all in a model of blocks: transformers' own rule."""
    return int((5 + 2 * config.num_random_blocks) * config.block_size)


def attend_fully(model: Module, inputs: Mapping[str, Tensor]) -> None:
    """Switch the private copy of a model of blocks to full attention, as its own forward would for a short input.

    Raises:
        UnsupportedModelError: for a longer input, whose attention would be sparse.
    """
    if model.bert.attention_type == "original_full":
        return
    tokens, most = inputs["input_ids"].shape[1], sparse_from(model.config)
    if tokens > most:
        raise UnsupportedModelError(
            f"this BigBird has attention_type={model.bert.attention_type!r}, which pads an input of {tokens} tokens to "
            f"whole blocks and attends some of them several times: it can be explained for up to {most} tokens, for "
            'which the model attends to all of them. For longer ones load it with attention_type="original_full", or '
            'call model.bert.set_attention_type("original_full"): its logits then change a little'
        )
    with torch.device("meta"):  # the new modules take over the weights, so none need be drawn
        model.bert.set_attention_type("original_full")


def bigbird(model: Module) -> ModelSpec:
    """``BigBirdForSequenceClassification``: dense, activation, out_proj."""
    parts = Parts(model, "", model.config.hidden_size)
    layers = [parts.below(f"bert.encoder.layer.{n}") for n in range(len(model.bert.encoder.layer))]
    head = (
        parts.step("classifier.dense", get_activation(model.config.hidden_act).name),
        parts.step("classifier.out_proj"),
    )
    spec = model_spec(layers, bert_layer, head, embedding_limits(parts.below("bert.embeddings")))
    return replace(spec, prepare=attend_fully)


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {"BigBirdForSequenceClassification": bigbird}
