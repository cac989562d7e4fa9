"""ELECTRA: BERT's layers; embeddings may be narrower, and its two models have heads of their own."""

from __future__ import annotations

from collections.abc import Callable

from ..reading.classifiers import dense_and_out_proj, summarized
from ..reading.heads import HeadKind, headed, in_turn, steps_of, text_heads
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

_ELECTRA = text_heads(GENERATOR, summarized("classifier")) | {"ForPreTraining": DISCRIMINATOR}

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = headed(
    "Electra", bert_body, "electra", _ELECTRA, dense_and_out_proj
)
