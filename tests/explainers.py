"""Tiny explainers that several test files ask: three classes with names, with BERT's tokenizer or token ids alone."""

from __future__ import annotations

from typing import Any

import models
import torch

from decompx_fast import DecompX

LABELS = {0: "NEGATIVE", 1: "NEUTRAL", 2: "POSITIVE"}

#: Rounding of two layers in float64.
EXACT = 1e-12

#: An engine, and options that it can answer.
ENGINES: dict[str, dict[str, Any]] = {
    "reference": {},
    "forward": {},
    "adjoint": {"bias": "bias_token", "bias_token_split": "absdot"},
}


def bert(positions: int = 20) -> DecompX:
    """With BERT's tokenizer, in float64."""
    model = models.classifier(labels=3, vocab=models.WORD_PIECES, positions=positions, id2label=LABELS, hidden_size=8)
    return DecompX(model, models.word_piece(), engine="reference")


def roberta(positions: int = 20) -> DecompX:
    """Two classes, with a byte-level tokenizer, in float64."""
    model = models.classifier("roberta", vocab=320, positions=positions)
    return DecompX(model, models.byte_pair(), engine="reference")


def bare(**arguments: Any) -> DecompX:
    """Without a tokenizer, for ids and encodings: a vocabulary of 200, 40 positions, 2 token types."""
    return DecompX(models.classifier(labels=3, id2label=LABELS), **arguments)


def logits_of(explainer: DecompX, *texts: str) -> torch.Tensor:
    """What the model itself says."""
    inputs = explainer.tokenizer(*texts, return_tensors="pt")
    with torch.no_grad():
        return explainer.model(**inputs).logits[0]


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = EXACT) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < tolerance * expected.abs().max()
