"""Agreement with human rationales, as ERASER measures it, on the model's tokens. NaN for a text without a rationale.

A hard prediction is the ``k`` most important tokens, ``k`` the part of a text that people mark on average in these
data. Source: ERASER (DeYoung et al., ACL 2020, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .outcomes import Array, Outcomes

#: A predicted span is right if its intersection with a marked one is such a part of their union.
OVERLAP = 0.5

Mark = tuple[int, int, int]  # a marked part of a text: segment, first character, one past the last


def marked_tokens(spans: Sequence[Mark | None], marks: Sequence[Mark]) -> list[bool]:
    """Whether each token has a character in one of the marks of its segment."""
    return [
        span is not None and any(span[0] == s and span[1] < end and start < span[2] for s, start, end in marks)
        for span in spans
    ]


def token_f1(outcomes: Outcomes, name: str = "") -> Array:
    """``[n, 1]``: the F1 of the predicted tokens."""
    return _each(outcomes, lambda chosen, order, marked: _f1(int(marked[chosen].sum()), len(chosen), marked.sum()))


def iou_f1(outcomes: Outcomes, name: str = "") -> Array:
    """``[n, 1]``: the F1 of the predicted spans, neighbouring tokens together; see :data:`OVERLAP`."""

    def score(chosen: list[int], order: Sequence[int], marked: NDArray[np.bool_]) -> float:
        predicted, true = spans_of(chosen), spans_of(np.flatnonzero(marked))
        hits = sum(max(_iou(span, other) for other in true) >= OVERLAP for span in predicted)
        return _f1(hits, len(predicted), len(true))

    return _each(outcomes, score)


def auprc(outcomes: Outcomes, name: str = "") -> Array:
    """``[n, 1]``: the area under the curve of precision over recall, by the trapezoidal rule, from ``(0, 1)`` on."""

    def score(chosen: list[int], order: Sequence[int], marked: NDArray[np.bool_]) -> float:
        hits = np.cumsum(marked[list(order)])
        points = [(0.0, 1.0), *zip(hits / hits[-1], hits / np.arange(1, len(hits) + 1), strict=True)]
        return float(sum((r1 - r0) * (p0 + p1) / 2 for (r0, p0), (r1, p1) in pairwise(points)))

    return _each(outcomes, score)


def spans_of(places: Sequence[int] | NDArray[np.int64]) -> list[tuple[int, int]]:
    """Neighbouring places as spans: the first place, and one past the last."""
    found: list[tuple[int, int]] = []
    for place in sorted(map(int, places)):
        if found and found[-1][1] == place:
            found[-1] = found[-1][0], place + 1
        else:
            found.append((place, place + 1))
    return found


def _each(outcomes: Outcomes, score: Callable[[list[int], Sequence[int], NDArray[np.bool_]], float]) -> Array:
    """``score(chosen places, order, marked)`` of every text that has a marked token."""
    rationales = outcomes.rationales
    if rationales is None:
        raise ValueError("this metric needs rationales")
    marked = [None if one is None or not one.any() else one for one in rationales]
    rows = list(zip(outcomes.orders, marked, strict=True))
    part = np.mean([one.sum() / len(order) for order, one in rows if one is not None])
    found = np.full((len(rows), 1), np.nan)
    for row, (order, one) in enumerate(rows):
        if one is not None:
            chosen = list(order[: max(1, int(part * len(order) + 0.5))])
            found[row] = score(chosen, order, one)
    return found


def _f1(right: int, predicted: int, true: int) -> float:
    """The harmonic mean of ``right / predicted`` and ``right / true``."""
    return 2 * right / (predicted + true)


def _iou(one: tuple[int, int], other: tuple[int, int]) -> float:
    common = max(0, min(one[1], other[1]) - max(one[0], other[0]))
    return common / (one[1] - one[0] + other[1] - other[0] - common)
