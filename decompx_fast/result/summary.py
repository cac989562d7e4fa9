"""An explanation on one line, as ``repr`` gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .display import plural

if TYPE_CHECKING:
    from .explanation import Explanation

#: Of a long list, in a ``repr``.
_NAMES_SHOWN = 5


def summary(explanation: Explanation) -> str:
    """How many sources, what the model says, what was explained, by which engine, how exactly."""
    label, probabilities = explanation.predicted_label, explanation.probabilities
    if explanation.problem_type == "positions":
        outcome = f"{explanation.task}: {_some(_said(explanation)) or 'nothing'}"
    elif probabilities is None:
        values = zip(explanation.labels, explanation.logits.tolist(), strict=True)
        outcome = _some([f"{name}={value:.4g}" for name, value in values])
    elif isinstance(label, tuple):
        outcome = f"predicted={_some(label) or 'none'}"
    else:
        outcome = f"predicted={label} ({float(probabilities.max()):.1%})"
    return (
        f"Explanation({len(explanation)} {plural(explanation.source_unit)}, {outcome}, "
        f"targets=[{_some([*map(repr, explanation.targets)])}], engine={explanation.engine!r}, "
        f"completeness_error={explanation.completeness_error:.1e}"
        + ("" if explanation.score_error is None else f", score_error={explanation.score_error:.1e}")
        + ")"
    )


def _said(explanation: Explanation) -> list[str]:
    """What the model says by itexplanation, in short."""
    if explanation.answer is not None:
        return [repr(explanation.answer.text) if explanation.answer.is_answered else "no answer"]
    if explanation.entities is not None:
        return [f"{entity.entity_group}={entity.word!r}" for entity in explanation.entities]
    return [f"{one.place}={one.name!r}" for one in explanation.predictions or ()]


def _some(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    more = [f"... {len(names) - _NAMES_SHOWN} more"] if len(names) > _NAMES_SHOWN + 1 else []
    return ", ".join([*(names[:_NAMES_SHOWN] if more else names), *more])
