"""Tiny random models of every task, in float64."""

from __future__ import annotations

from typing import Any

import models
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForQuestionAnswering,
    BertForTokenClassification,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForTokenClassification,
)

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")

HEADS = {
    "token-classification": BertForTokenClassification,
    "question-answering": BertForQuestionAnswering,
    "fill-mask": BertForMaskedLM,
    "multiple-choice": BertForMultipleChoice,
    "next-sentence-prediction": BertForNextSentencePrediction,
}

#: An input of each task.
INPUTS: dict[str, Any] = {
    "token-classification": "John Smith met Unbelievably Jackson in New York.",
    "question-answering": ("Who met Jackson?", "In New York, John Smith met Jackson."),
    "fill-mask": "Paris is [MASK] of France.",
    "multiple-choice": ("The man was ill.", "He saw a doctor."),
    "next-sentence-prediction": ("The man was ill.", "He saw a doctor."),
}


def model(task: str, *, seed: int = 3, dtype: torch.dtype = torch.float64, **options: Any) -> nn.Module:
    """A BERT with WordPiece's vocabulary."""
    config = BertConfig(
        vocab_size=models.WORD_PIECES,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=40,
        **options,
    )
    if task == "token-classification":
        config.id2label = dict(enumerate(LABELS))
        config.label2id = {label: n for n, label in enumerate(LABELS)}
    made = HEADS[task](config).eval().to(dtype)
    models.randomize(made, seed)
    return made


def roberta(task: str, vocab: int, seed: int = 3) -> nn.Module:
    """A RoBERTa for a byte-level tokenizer."""
    config = RobertaConfig(
        vocab_size=vocab,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=62,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        num_labels=len(LABELS),
    )
    config.id2label = dict(enumerate(LABELS))
    config.label2id = {label: n for n, label in enumerate(LABELS)}
    head = {"token-classification": RobertaForTokenClassification, "fill-mask": RobertaForMaskedLM}[task]
    made = head(config).eval().double()
    models.randomize(made, seed)
    return made
