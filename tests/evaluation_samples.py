"""A tiny classifier on disk and texts for it, for the tests of the evaluation."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import models
import torch

from decompx_fast.evaluation import Method
from decompx_fast.evaluation.method import Problem

WORDS = "a the film plot acting is was not very good bad dull joy mess hero end slow sharp warm loud".split()


def save_classifier(folder: Path) -> str:
    """A random classifier with a tokenizer, as ``save_pretrained`` writes it, whose answers differ between texts."""
    model = models.classifier(vocab=models.WORD_PIECES, positions=64, dtype=torch.float32)
    model.save_pretrained(folder)
    models.word_piece().save_pretrained(folder)
    return str(folder)


def write_texts(path: Path, n: int) -> Path:
    """``n`` different texts of 4 to 14 words, with labels, as CSV."""
    draw = random.Random(0)
    lines = [f"{number} {' '.join(draw.choices(WORDS, k=4 + number % 11))},{number % 2}" for number in range(n)]
    path.write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def sleep(problem: Problem) -> list[torch.Tensor]:
    """Ten minutes of work; leaves the number of its process in the folder that the environment names."""
    Path(os.environ[ASLEEP], str(os.getpid())).touch()
    time.sleep(600)
    raise AssertionError("nobody ended this process")


#: The name in the environment of the folder in which :data:`SLEEPER` tells that it is at work.
ASLEEP = "DECOMPX_FAST_TEST_ASLEEP"

SLEEPER = Method("sleeper", "Sleeper", True, "works for minutes", sleep)
