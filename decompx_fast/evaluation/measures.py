"""Faithfulness as numbers: functions of what the model says about changed texts, ``[n, levels]``, one row for a text.

Each takes the outcomes of a method and the name of the perturbation that it reads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .masking import count_of
from .outcomes import Array, Outcomes
from .rationales import out_of_fold_correct


def probability_drop(outcomes: Outcomes, name: str) -> Array:
    """``p(c | text) - p(c | changed text)`` ``[n, levels]``, for the class ``c`` predicted for the full text."""
    return outcomes.probability[:, None] - outcomes.perturbed_probability[name]


def log_odds(outcomes: Outcomes, name: str) -> Array:
    """``log p(c | changed text) - log p(c | text)`` ``[n, levels]``; a probability that is rounded to 0 is the least
    that a float has."""
    least = np.finfo(np.float64).tiny
    changed, full = np.maximum(outcomes.perturbed_probability[name], least), np.maximum(outcomes.probability, least)
    return np.log(changed) - np.log(full)[:, None]


def still_right(outcomes: Outcomes, name: str) -> Array:
    """``[n, levels]``: 1 where the class predicted for the changed text is the label, else 0."""
    return (outcomes.perturbed_predicted[name] == _labels(outcomes)[:, None]).astype(np.float64)


def flip_fraction(outcomes: Outcomes, name: str) -> Array:
    """``[n, 1]``: the least part of the tokens whose deletion changes the predicted class; 1 where none does."""
    found = np.ones((len(outcomes.orders), 1))
    for row, (order, flips) in enumerate(zip(outcomes.orders, _flips(outcomes, name), strict=True)):
        for count, column in _distinct(len(order), flips.size):
            if flips[column]:
                found[row] = count / len(order)
                break
    return found


def first_flips(outcomes: Outcomes, name: str) -> Array:
    """``[n, 1]``: 1 where the deletion of the most important token changes the predicted class, else 0."""
    return _flips(outcomes, name)[:, :1].astype(np.float64)


def monotone_steps(outcomes: Outcomes, name: str) -> Array:
    """``[n, 1]``: the part of the steps in which ``p(c)`` does not fall, as tokens are put back, the least important
    first."""
    found = np.zeros((len(outcomes.orders), 1))
    rows = zip(outcomes.orders, outcomes.probability, outcomes.perturbed_probability[name], strict=True)
    for row, (order, full, lessened) in enumerate(rows):
        away = [full, *(lessened[column] for _, column in _distinct(len(order), lessened.size))]
        found[row] = (np.diff(away[::-1]) >= 0).mean()
    return found


def infidelity_column(outcomes: Outcomes, name: str) -> Array:
    """``[n, 1]``: the infidelity of each text."""
    return outcomes.infidelity[name][:, None]


def rationale_right(outcomes: Outcomes, name: str) -> Array:
    """``[n, 1]``: 1 where a classifier trained on the rationales of other texts is right about this text's, else 0."""
    states, labels = outcomes.states[name], _labels(outcomes)
    return out_of_fold_correct(states, labels, seed=outcomes.seed, groups=outcomes.groups)[:, None]


def infidelity(scores: Tensor, absent: Tensor, drops: Tensor) -> float:
    """How far sums of scores are from what the model loses without the same tokens.

        mean_s (beta sum_k I[s,k] score[k] - drop[s])^2,   beta the factor that makes it least

    Args:
        scores: ``[i]``.
        absent: ``[s, i]`` bool: which tokens each version lacks.
        drops: ``[s]`` float64: the logit of the text less that of the version.

    Source: Yeh et al., NeurIPS 2019, definition 2.1 and section 4 (the factor).
    """
    said = absent.double() @ scores.double()
    norm = said.square().sum()
    beta = (said * drops).sum() / norm if norm > 0 else norm
    return float((beta * said - drops).square().mean())


def _distinct(tokens: int, levels: int) -> list[tuple[int, int]]:
    """The numbers of tokens that ``1, 2 ... levels`` percent are, each with the first column that has it."""
    found: dict[int, int] = {}
    for column in range(levels):
        found.setdefault(count_of(column + 1, tokens), column)
    return list(found.items())


def _flips(outcomes: Outcomes, name: str) -> NDArray[np.bool_]:
    return outcomes.perturbed_predicted[name] != outcomes.predicted[:, None]


def _labels(outcomes: Outcomes) -> NDArray[np.int64]:
    if outcomes.labels is None:
        raise ValueError("this metric needs labels")
    return outcomes.labels
