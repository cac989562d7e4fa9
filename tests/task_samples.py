"""Inputs as a reader gives them and outputs as a model would, for the tests of what each task asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from decompx_fast.request.encoded import Encoded
from decompx_fast.request.encoding import Reader
from decompx_fast.request.tasks.columns import Best


@dataclass
class Given:
    """Outputs of a model that are all known, ``[i, C]``."""

    values: torch.Tensor

    @property
    def count(self) -> int:
        return self.values.shape[1]

    def rows(self, positions: Sequence[int]) -> torch.Tensor:
        return self.values[list(positions)]

    def best(self, positions: Sequence[int], k: int) -> Best:
        rows = self.values[list(positions)]
        values, outputs = rows.topk(k)
        return Best(values, outputs, rows.softmax(-1).gather(1, outputs))


def encode(tokenizer: Any, item: Any, **options: Any) -> Encoded:
    """One input as the explainer reads it."""
    encoded, single = Reader(tokenizer, None, **options).read(item)
    (found,) = encoded
    assert single and isinstance(found, Encoded)
    return found


def labelled(encoded: Encoded, labels: Sequence[str], said: dict[str, str], background: str = "O") -> Given:
    """Outputs that give the tokens whose characters (or whose token) are ``said`` that label, by 4, all others the
    background by 2."""
    values = torch.zeros(len(encoded), len(labels), dtype=torch.float64)
    for n in range(len(encoded)):
        span = encoded.spans[n]
        text = encoded.tokens[n] if span is None else encoded.texts[span[0]][span[1] : span[2]].strip()
        label = said.get(text, background)
        values[n, labels.index(label)] = 4.0 if text in said else 2.0
    return Given(values)
