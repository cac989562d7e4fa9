"""Terms and columns in the engines: the head that is read for them, the model's own values, and closing an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor

from ..linearize.layer import Head, Linearization, ReadsTerms
from ..linearize.layer import Reading as Reading
from ..linearize.layer import Terms as Terms
from .attribution import Attribution


def head_for(linearization: Linearization, x: Tensor, terms: Terms | None) -> Head:
    """The head on the last layer's output ``x`` ``[b, i, d]``, read for these terms; ``None``: by itself, whole."""
    if terms is None:
        return linearization.head(x)
    return cast(ReadsTerms, linearization).head(x, terms)


def layer_weights_of(linearization: Linearization) -> Tensor | None:
    """``[layers + 1]``, of the states before the first layer and after each whose sum the head reads the mean of;
    ``None``: it reads the last alone."""
    return getattr(linearization, "layer_weights", None)


def true_values(linearization: Linearization, terms: Terms | None) -> Tensor:
    """The model's own values of the columns, ``[b, m]``; without terms its logits."""
    if terms is None:
        return linearization.logits
    return terms.combine(cast(ReadsTerms, linearization).values(terms))


def close(
    scores: Tensor,
    bias_token: Tensor | None,
    linearization: Linearization,
    terms: Terms | None,
    stages: Mapping[str, Tensor],
) -> Attribution:
    """The answer for the columns, from scores ``[b, k, t]`` and the bias token's ``[b, t]`` of the terms, and by how
    much any column's parts miss the model's own value of it."""
    if terms is not None:
        scores = terms.combine(scores)
        bias_token = None if bias_token is None else terms.combine(bias_token)
    return Attribution(scores, bias_token, largest_gap(scores, bias_token, linearization, terms), stages)


def largest_gap(scores: Tensor, bias_token: Tensor | None, linearization: Linearization, terms: Terms | None) -> Tensor:
    """``[b]`` float64, of all columns."""
    total = scores.sum(1) if bias_token is None else scores.sum(1) + bias_token
    return (total - true_values(linearization, terms)).abs().amax(-1).double()
