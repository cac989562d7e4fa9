"""BigBird: BERT's layers, which attend fully, or in blocks (``block_sparse``) where the input is long."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...activations import get_activation
from ..reading.heads import BARE, PREDICTIONS, TOKENS, HeadKind, headed, in_turn
from ..reading.parts import Module, Parts, embedding_limits, stack, whole
from ..spec import AttentionSpec, Context, HubSpec, LayerSpec, ModelSpec, SublayerSpec
from .bert import bert_layer


def sparse_from(config: Module) -> int:
    """How many tokens are still attended to all by all in a model of blocks: transformers' own rule."""
    return int((5 + 2 * config.num_random_blocks) * config.block_size)


def attend_fully(model: Module, inputs: Mapping[str, Tensor]) -> None:
    """Switch the private copy of a model of blocks to full attention, as its own forward would for a short input."""
    encoder: Module = getattr(model, "bert", model)
    sparse = encoder.attention_type != "original_full"
    if sparse and inputs["input_ids"].shape[1] <= sparse_from(model.config):
        with torch.device("meta"):  # the new modules take over the weights, so none need be drawn
            encoder.set_attention_type("original_full")


def outer_blocks(n: int, context: Context, *, block: int) -> Tensor | None:
    """The first and the last block of a model that attends in blocks; ``None`` where it attends fully."""
    mask = context.get("band_mask")
    if mask is None:
        return None
    number = torch.arange(n, device=mask.device) // block
    return ((number == 0) | (number == number[-1])).expand(len(mask), -1)


def repeated_block(
    query: Tensor, key: Tensor, context: Context, *, block: int, times: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """In eval mode every block that is drawn is the first one, which the softmax then counts once more for each."""
    if "band_mask" not in context or not times:
        return query, key, None
    bias = key.new_zeros(1, 1, 1, key.shape[2])
    bias[..., :block] = math.log(1 + times)
    return query, key, bias


def bigbird_layer(layer: Parts) -> LayerSpec:
    """BERT's layer; in blocks, each attends itself, its neighbours, and the first and the last, which attend all."""
    attention, feed = bert_layer(layer)
    (op,) = attention.ops
    assert isinstance(op, AttentionSpec)
    config = layer["attention.config"]
    size, times = config.block_size, config.num_random_blocks
    hubs = HubSpec(op.query, op.key, op.value, 1, size, partial(outer_blocks, block=size))
    op = replace(op, hubs=hubs, positions=partial(repeated_block, block=size, times=times))
    return replace(attention, ops=(op,)), feed


def bigbird_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model."""
    base = whole(model, encoder)
    spec = stack(base, "encoder.layer", bigbird_layer, limits=embedding_limits(base.below("embeddings")))
    return replace(spec, prepare=attend_fully, pads=True)


def bigbird(model: Module) -> ModelSpec:
    """``BigBirdForSequenceClassification``: dense, activation, out_proj."""
    spec = bigbird_body(model, "bert")
    parts, name = Parts(model, "", spec.width), get_activation(model.config.hidden_act).name
    return replace(spec, head=(parts.step("classifier.dense", name), parts.step("classifier.out_proj")))


def question_types(inputs: Mapping[str, Tensor], *, separator: int) -> dict[str, Any]:
    """Which of the two texts each token is of, as the model has it where it is not told: the first ends at the first
    separator."""
    if "token_type_ids" in inputs:
        return {}
    ids = inputs["input_ids"]
    question = (ids == separator).int().argmax(-1, keepdim=True) + 1
    return {"token_type_ids": (torch.arange(ids.shape[1], device=ids.device) >= question).long()}


def answers(model: Module) -> ModelSpec:
    """``BigBirdForQuestionAnswering``: a network of its own after the last layer, which is that layer's last sublayer
    here, and one map. What the model takes off the question's tokens, so that none is an answer, is left out."""
    spec = bigbird_body(model, "bert")
    parts = Parts(model, "", spec.width)
    head = parts.below("qa_classifier")
    feed = head.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
    last = (*spec.layers[-1], SublayerSpec((feed,), post_norm=head.norm("output.LayerNorm")))
    return replace(
        spec,
        layers=(*spec.layers[:-1], last),
        state_modules=(*spec.state_modules[:-1], head["output"]),
        head=(parts.step("qa_classifier.qa_outputs"),),
        read="each",
        backbone=model.bert,
        tail=model.qa_classifier,
        given=partial(question_types, separator=model.sep_token_id),
        outputs_of=_answer_logits,
    )


def _answer_logits(model: Module, rows: Tensor) -> Tensor:
    found: Tensor = model.qa_classifier(rows)
    return found


def _pooled(path: str) -> HeadKind:
    """The pooler with its activation, which are no module of their own, and one map."""
    pooler = ("bert.pooler", "bert.activation")
    return in_turn(pooler, (path,), calls=(*pooler, path), read=0)


_HEADS = {
    "ForTokenClassification": TOKENS,
    "ForMaskedLM": PREDICTIONS,
    "ForMultipleChoice": _pooled("classifier"),
    "ForPreTraining": _pooled("cls.seq_relationship"),
    "Model": BARE,
}

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "BigBirdForQuestionAnswering": answers,
    "BigBirdForSequenceClassification": bigbird,
    **headed("BigBird", bigbird_body, "bert", _HEADS),
}
