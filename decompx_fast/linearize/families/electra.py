"""ELECTRA: BERT's layers; embeddings may be narrower, and its two models have heads of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..reading.classifiers import SUMMARY, classifier, dense_and_out_proj, summary_read
from ..reading.heads import BARE, SPANS, TOKENS, HeadKind, headed, in_turn, steps_of
from ..reading.parts import Module
from ..spec import ModelSpec
from .bert import bert_body

#: ELECTRA's generator, whose vocabulary is as wide as its embeddings, and its discriminator: was a token replaced?
GENERATOR = in_turn(
    ("generator_predictions.dense", "generator_predictions.activation", "generator_predictions.LayerNorm"),
    ("generator_lm_head",),
    calls=("generator_predictions", "generator_lm_head"),
)

DISCRIMINATOR = HeadKind(
    steps_of(
        ("discriminator_predictions.dense", "discriminator_predictions.activation"),
        ("discriminator_predictions.dense_prediction",),
    ),
    lambda model, rows: model.discriminator_predictions(rows).unsqueeze(-1),
)

_ELECTRA = {
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": SPANS,
    "ForMaskedLM": GENERATOR,
    "ForPreTraining": DISCRIMINATOR,
    "ForMultipleChoice": replace(SUMMARY, read_of=summary_read),
    "Model": BARE,
}

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "ElectraForSequenceClassification": partial(classifier, encoder="electra", head=dense_and_out_proj, body=bert_body),
    **headed("Electra", bert_body, "electra", _ELECTRA),
}
