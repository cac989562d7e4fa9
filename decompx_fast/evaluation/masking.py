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
from ..request.versions import without_tokens
from .classifier import Inputs


@dataclass(frozen=True)
class Perturbation:
    """A way to change a text by the order of its tokens, at several strengths.

    Attributes:
        name: of the columns that hold what the model says about the results.
        action: ``mask``: the chosen tokens become the mask token; ``remove``: they are taken out; ``keep``: all
            others are taken out.
        of: whether the most or the least important tokens are chosen.
        percents: how many of the tokens are chosen, one level each.
    """

    name: str
    action: Literal["mask", "remove", "keep"]
    of: Literal["most", "least"]
    percents: tuple[int, ...]


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


def perturbed(encoded: Encoded, order: Sequence[int], perturbation: Perturbation, mask_token_id: int) -> list[Inputs]:
    """The inputs at each level of a perturbation.

    Args:
        encoded: the text.
        order: of :func:`importance_order`.
        perturbation: what to do.
        mask_token_id: of the token that takes the place of masked ones.
    """
    from_front = order if perturbation.of == "most" else order[::-1]
    out: list[Inputs] = []
    for percent in perturbation.percents:
        chosen = torch.zeros(len(encoded), dtype=torch.bool)
        chosen[from_front[: count_of(percent, len(order))]] = True
        gone = chosen if perturbation.action != "keep" else ~(chosen | torch.tensor(encoded.special))
        out.append(without_tokens(encoded.inputs, gone, mask_token_id if perturbation.action == "mask" else None))
    return out


def input_key(inputs: Inputs) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The same for inputs that the model cannot tell apart."""
    return tuple((name, tuple(values.tolist())) for name, values in inputs.items())
