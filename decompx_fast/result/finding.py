"""What is found in an explanation: the column of a target, the sources that matter most."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from ..errors import InputError
from .checks import check_choice
from .kinds import Target, TopToken

if TYPE_CHECKING:
    from .explanation import Explanation


def column_of(explanation: Explanation, target: Target) -> int:
    """As :meth:`Explanation.column` says."""
    if target is None:
        predicted = explanation.predicted
        wanted = (predicted,) if isinstance(predicted, int) else predicted or ()
        explained = [index for index in wanted if index in explanation.target_ids]
        surest = max(explained, key=lambda index: float(explanation.logits[index]), default=None)
        return 0 if surest is None else explanation.target_ids.index(surest)
    if isinstance(target, str):
        if target in explanation.targets:
            return explanation.targets.index(target)
    elif not isinstance(target, bool) and hasattr(target, "__index__"):
        if operator.index(target) in explanation.target_ids:
            return explanation.target_ids.index(operator.index(target))
    exists = ", ".join(
        f"{name!r}" if index is None else f"{name!r} ({index})"
        for name, index in zip(explanation.targets, explanation.target_ids, strict=True)
    )
    raise InputError(
        f"target {target!r} was not explained; explained were: {exists}. Use one of these names or class "
        f"indices, or ask for this target when explaining the text."
    )


def top_sources(explanation: Explanation, n: int, target: Target, by: str) -> list[TopToken]:
    """As :meth:`Explanation.top` says."""
    check_choice("by", by, ("magnitude", "positive", "negative"))
    if n < 0:
        raise InputError(f"n must be 0 or more, got {n}.")
    scores = explanation.scores[:, explanation.column(target)].tolist()
    rows = [TopToken(explanation.tokens[k], score, k) for k, score in enumerate(scores)]
    if by == "magnitude":
        return sorted(rows, key=lambda row: -abs(row.score))[:n]
    sign = 1 if by == "positive" else -1
    return sorted((row for row in rows if sign * row.score > 0), key=lambda row: -sign * row.score)[:n]
