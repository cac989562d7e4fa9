"""What one method's scores and the model have to say about the texts: all that metrics read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Outcomes:
    """What the model says about the texts, in full and changed by the order that one method gives to their tokens.

    Attributes:
        labels: ``[n]``, the right class; ``None`` if it is not known.
        predicted: ``[n]``, the class that is predicted for the full text.
        probability: ``[n]``, of that class, for the full text.
        perturbed_probability: by the name of a perturbation ``[n, levels]``: the probability of that same class.
        perturbed_predicted: by the name of a perturbation ``[n, levels]``: the class that is predicted now.
        orders: for each text the places of its tokens without the special ones, the most important first.
        states: by the name of a perturbation ``[n, d]``: the encoder's pooled state of what it leaves.
        infidelity: by the name of a perturbation ``[n]``: see :func:`decompx_fast.evaluation.measures.infidelity`.
        checks: by the name of a sanity check ``[n, levels]``; NaN for texts of which it was not made.
        rationales: for each text whether a person marked each token ``[i]``; ``None`` for a text without marks.
        seed: of the split into folds.
        groups: ``[n]``, the same number for equal texts; ``None``: all are different.
    """

    labels: NDArray[np.int64] | None
    predicted: NDArray[np.int64]
    probability: Array
    perturbed_probability: Mapping[str, Array]
    perturbed_predicted: Mapping[str, NDArray[np.int64]]
    orders: Sequence[Sequence[int]] = ()
    states: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    infidelity: Mapping[str, Array] = field(default_factory=dict)
    checks: Mapping[str, Array] = field(default_factory=dict)
    rationales: Sequence[NDArray[np.bool_] | None] | None = None
    seed: int = 0
    groups: NDArray[np.int64] | None = None
