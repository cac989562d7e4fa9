"""Which tokens of a text are masked or removed, and the inputs that result.

Special tokens are never among them, and the percentages are of the tokens that are not special. Of ``n`` such tokens,
``K`` percent are ``K n / 100``, rounded (a half upwards), and at least one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import NumericalError
from ..request.encoded import Encoded
from ..request.versions import Baseline
from .classifier import Inputs


@dataclass(frozen=True)
class Design:
    """Which tokens are deleted, at several strengths.

    Attributes:
        action: ``delete`` the chosen tokens, or ``keep`` them and delete all others.
        of: whether the most or the least important tokens are chosen, or any, whatever their order.
        percents: how many of the tokens are chosen, one level each.
    """

    action: Literal["delete", "keep"]
    of: Literal["most", "least", "random"]
    percents: tuple[int, ...]


@dataclass(frozen=True)
class Perturbation:
    """A way to change a text by the order of its tokens.

    Attributes:
        name: of the columns that hold what the model says about the results.
        deletion: what becomes of deleted tokens: the mask or the padding token, or nothing (``remove``).
        design: which tokens are deleted.
    """

    name: str
    deletion: Baseline
    design: Design


def count_of(percent: int, n: int) -> int:
    """How many of ``n`` tokens are ``percent`` percent: rounded, a half upwards, and at least one."""
    return max(1, (2 * percent * n + 100) // 200)


def importance_order(scores: Tensor, special: Sequence[bool], *, signed: bool, generator: torch.Generator) -> list[int]:
    """The places of the tokens that are not special, from the most to the least important.

    Args:
        scores: ``[i]`` float64, one for each token.
        special: whether the tokenizer added the token.
        signed: order by the score. If not: by its magnitude.
        generator: breaks ties: equal scores stand in an order that it draws.

    Raises:
        NumericalError: if a score is NaN; infinities have a place in the order.
    """
    places = torch.tensor([place for place, is_special in enumerate(special) if not is_special])
    shuffled = places[torch.randperm(len(places), generator=generator)]
    values = scores[shuffled]
    if values.isnan().any():
        raise NumericalError(f"a score is NaN (token {int(shuffled[values.isnan()][0])}): it has no place in an order")
    order = torch.argsort(values if signed else values.abs(), descending=True, stable=True)
    return shuffled[order].tolist()


def absent_tokens(
    encoded: Encoded, order: Sequence[int], perturbation: Perturbation, generator: torch.Generator
) -> Tensor:
    """Which tokens are deleted at each level of a perturbation, ``[levels, i]`` bool.

    A removal leaves one token at least, the last of those that would go, where a text has no special ones.

    Args:
        encoded: the text.
        order: of :func:`importance_order`.
        perturbation: what to do.
        generator: draws the tokens of a random design.
    """
    design = perturbation.design
    out = torch.zeros(len(design.percents), len(encoded), dtype=torch.bool)
    for gone, percent in zip(out, design.percents, strict=True):
        chosen = list(order) if design.of == "most" else list(order[::-1])
        if design.of == "random":
            places = torch.tensor(sorted(order))
            chosen = places[torch.randperm(len(places), generator=generator)].tolist()
        count = count_of(percent, len(order))
        gone[chosen[:count] if design.action == "delete" else chosen[count:]] = True
        if perturbation.deletion == "remove" and gone.all():
            gone[chosen[-1]] = False
    return out


def input_key(inputs: Inputs) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The same for inputs that the model cannot tell apart."""
    return tuple((name, tuple(values.tolist())) for name, values in inputs.items())
