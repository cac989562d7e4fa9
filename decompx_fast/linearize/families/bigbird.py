"""BigBird: BERT's layers, which attend fully, or in blocks (``block_sparse``) where the input is long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from ..reading.blocks import attend_fully, in_blocks
from ..reading.classifiers import dense_and_activation
from ..reading.heads import BARE, PREDICTIONS, TOKENS, headed, pooled_beside
from ..reading.pairs import question_types
from ..reading.parts import Module, Parts, embedding_limits, post_norm, stack, whole
from ..spec import LayerSpec, ModelSpec, SublayerSpec
from .bert import bert_ops


def bigbird_layer(layer: Parts) -> LayerSpec:
    """BERT's layer, whose attention may be in blocks."""
    attend, feed = bert_ops(layer)
    attend = in_blocks(attend, layer["attention.config"])
    return post_norm(attend, feed, layer.norm("attention.output.LayerNorm"), layer.norm("output.LayerNorm"))


def bigbird_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model."""
    base = whole(model, encoder)
    spec = stack(base, "encoder.layer", bigbird_layer, limits=embedding_limits(base.below("embeddings")))
    return replace(spec, prepare=partial(attend_fully, base="bert"), pads=True)


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


_pooled = partial(pooled_beside, "bert.pooler", "bert.activation")
_HEADS = {
    "ForTokenClassification": TOKENS,
    "ForMaskedLM": PREDICTIONS,
    "ForMultipleChoice": _pooled("classifier"),
    "ForPreTraining": _pooled("cls.seq_relationship"),
    "Model": BARE,
}

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "BigBirdForQuestionAnswering": answers,
    **headed("BigBird", bigbird_body, "bert", _HEADS, dense_and_activation),
}
