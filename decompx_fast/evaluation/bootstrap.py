"""Confidence intervals: what a mean over texts would be for other texts of the same kind."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
CONFIDENCE = 0.95
_BLOCK = 100  # resamples drawn together


class Estimate(NamedTuple):
    """A mean, and the interval in which it lies with :data:`CONFIDENCE`."""

    mean: float
    low: float
    high: float


def bootstrap_means(values: NDArray[np.float64], *, seed: int, resamples: int = RESAMPLES) -> NDArray[np.float64]:
    """Means of each column over texts drawn with replacement.

    Args:
        values: ``[n, m]``; all columns are of the same texts, and each resample is the same for all.
        seed: of the draws: the same texts are drawn for the same seed and ``n``.
        resamples: how many.

    Returns:
        ``[resamples, m]``.
    """
    n = len(values)
    draw, out = np.random.default_rng(seed), []
    for start in range(0, resamples, _BLOCK):
        counts = draw.multinomial(n, np.full(n, 1 / n), size=min(_BLOCK, resamples - start))  # [r, n]
        out.append(counts @ values / n)
    return np.concatenate(out)


def estimate(values: NDArray[np.float64], means: NDArray[np.float64]) -> Estimate:
    """The mean of ``values`` ``[n]`` and its percentile interval from its ``means`` ``[resamples]``.

    Source: Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
    """
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(float(values.mean()), float(low), float(high))
