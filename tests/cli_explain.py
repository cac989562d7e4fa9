"""What ``decompx-fast explain`` is tested on, and what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import models
import torch

#: More than the classifier reads.
LONG = "word " * 600


def save_classifier(folder: Path) -> str:
    """A tiny classifier with a tokenizer, as ``save_pretrained`` writes it; it reads 64 tokens."""
    models.classifier(vocab=models.WORD_PIECES, positions=64, dtype=torch.float32).save_pretrained(folder)
    models.word_piece().save_pretrained(folder)
    return str(folder)


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
