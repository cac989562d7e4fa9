"""Confidence intervals: what a mean over texts would be for other texts of the same kind."""

from __future__ import annotations

import math
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


def bootstrap_means(
    values: NDArray[np.float64],
    *,
    seed: int,
    resamples: int = RESAMPLES,
    groups: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Means of each column over texts drawn with replacement; equal texts are drawn together.

    Args:
        values: ``[n, m]``; all columns are of the same texts, and each resample is the same for all. NaN where a
            column says nothing of a text, which then does not count in it.
        seed: of the draws: the same texts are drawn for the same seed and number of groups.
        resamples: how many.
        groups: ``[n]``, the same number for equal texts, which tell no more than one of them does; ``None``: all are
            different.

    Returns:
        ``[resamples, m]``.

    Source: Davison & Hinkley, Bootstrap Methods and Their Application, 1997, section 3.8.
    """
    if groups is None:
        groups = np.arange(len(values))
    known = ~np.isnan(values)
    _, group = np.unique(groups, return_inverse=True)
    sums, sizes = np.zeros((2, group.max() + 1, values.shape[1]))
    np.add.at(sums, group, np.where(known, values, 0))  # [g, m]
    np.add.at(sizes, group, known)
    n = len(sums)
    draw, out = np.random.default_rng(seed), []
    for start in range(0, resamples, _BLOCK):
        counts = draw.multinomial(n, np.full(n, 1 / n), size=min(_BLOCK, resamples - start))  # [r, n]
        with np.errstate(invalid="ignore"):  # 0 / 0 where none of the drawn texts counts
            out.append(counts @ sums / (counts @ sizes))
    return np.concatenate(out)


def estimate(values: NDArray[np.float64], means: NDArray[np.float64]) -> Estimate:
    """The mean of ``values`` ``[n]``, NaN left out, and its percentile interval from its ``means`` ``[resamples]``.

    Source: Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
    """
    if np.isnan(values).all():
        return Estimate(math.nan, math.nan, math.nan)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.nanquantile(means, [tail, 1 - tail])
    return Estimate(float(np.nanmean(values)), float(low), float(high))
