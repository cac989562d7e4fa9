"""Versions of a text of which some tokens are absent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..errors import InputError, OptionError
from .encoded import Encoded
from .sources import Sources

Baseline = Literal["mask", "pad", "remove"]
BASELINES: tuple[Baseline, ...] = get_args(Baseline)


def without_tokens(inputs: Mapping[str, Tensor], absent: Tensor, fill: int | None) -> dict[str, Tensor]:
    """What a model reads of a text without some of its tokens.

    Args:
        inputs: ``[i]`` int64 each (boxes ``[i, 4]``).
        absent: ``[i]`` bool.
        fill: the token that takes the place of each; ``None``: they are taken out.
    """
    if fill is None:
        return {name: values[~absent] for name, values in inputs.items()}
    return {**inputs, "input_ids": inputs["input_ids"].masked_fill(absent, fill)}


def version(encoded: Encoded, absent: Tensor, fill: int | None) -> Encoded:
    """The text without some of its tokens; arguments as for :func:`without_tokens`."""
    inputs = without_tokens(encoded.inputs, absent, fill)
    if fill is not None:
        return replace(encoded, inputs=inputs)
    there = (~absent).tolist()
    return replace(
        encoded,
        inputs=inputs,
        tokens=tuple(compress(encoded.tokens, there)),
        spans=tuple(compress(encoded.spans, there)),
        special=tuple(compress(encoded.special, there)),
        words=encoded.words and tuple(compress(encoded.words, there)),
    )


def fill_of(baseline: Baseline, tokenizer: Any, argument: str = "baseline") -> int | None:
    """The token that takes the place of absent ones; ``None``: they are removed. ``argument`` is what messages call it.

    Raises:
        OptionError: for another baseline.
        InputError: if the tokenizer has no such token.
    """
    if baseline not in BASELINES:
        raise OptionError(f"{argument}={baseline!r}: use one of {', '.join(map(repr, BASELINES))}")
    if baseline == "remove":
        return None
    found = getattr(tokenizer, f"{baseline}_token_id", None)
    if found is None:
        others = "'remove'" if baseline == "pad" else "'remove' or 'pad'"
        raise InputError(
            f"{argument}={baseline!r} puts the {baseline} token in the place of others, and this tokenizer has none: "
            f"use {argument}={others}"
        )
    return int(found)


@dataclass(frozen=True)
class Players:
    """The sources that may be absent; special tokens, which every text has, are none of them.

    Attributes:
        sources: ``[p]`` int64, which sources they are.
        of_token: ``[i]`` int64, the player of each token; -1 for a special one.
    """

    sources: Tensor
    of_token: Tensor

    @classmethod
    def of(cls, encoded: Encoded, sources: Sources | None) -> Players:
        """Of an input: its tokens, or groups of them."""
        ids = torch.arange(len(encoded), device="cpu") if sources is None else sources.ids
        special = torch.tensor(encoded.special, device="cpu")
        found, numbers = ids[~special].unique(return_inverse=True)
        return cls(found, torch.full((len(encoded),), -1, device="cpu").masked_scatter(~special, numbers))

    def __len__(self) -> int:
        return len(self.sources)

    def absent(self, present: Tensor) -> Tensor:
        """The tokens ``[i]`` bool of the players that are not ``present`` ``[p]`` bool."""
        return torch.cat([~present, present.new_zeros(1)])[self.of_token]

    def scores(self, found: Tensor, present: Tensor | None = None) -> Tensor:
        """The sums ``[p, c]`` of the scores of their tokens.

        Args:
            found: ``[i, c]`` of the text, or of a version of it, from which absent tokens may have been taken out.
            present: ``[p]`` bool, which it has; ``None``: all.
        """
        of_token = self.of_token
        if present is not None and len(found) < len(of_token):
            of_token = of_token[~self.absent(present)]
        own = of_token >= 0
        return found.new_zeros(len(self), found.shape[1]).index_add_(0, of_token[own], found[own])


def generator_of(ids: Sequence[int], seed: int, purpose: str) -> torch.Generator:
    """A source of random numbers that depends on nothing but an input's token ids, a seed and what it is for."""
    written = ",".join(map(str, ids))
    digest = hashlib.sha256(f"{seed}|{purpose}|{written}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))
