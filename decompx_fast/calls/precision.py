"""The warning that scores are probably wrong by much."""

from __future__ import annotations

from collections.abc import Sequence

from ..engines.accuracy import largest_share
from ..engines.attribution import Attribution
from ..errors import PrecisionWarning, warn_user

#: A measured error of this share of the largest score is worth a warning: the measure is closer than an estimate.
MEASURED_NOTEWORTHY = 0.01


def warn_of_errors(attribution: Attribution, errors: Sequence[float] | None, least: float) -> None:
    """Say where scores are probably wrong by much, from an estimate of ``least`` on, though they may add up to the
    logit exactly."""
    ways = "use dtype='float64', and a model in float64 where it is the model's own rounding that is magnified"
    if errors is not None:
        largest = largest_share(attribution).tolist()
        share, error = max((error / size if size else 0.0, error) for error, size in zip(errors, largest, strict=True))
        if share > MEASURED_NOTEWORTHY:
            warn_user(
                f"scores are wrong by up to {error:.2g} ({share:.0%} of the largest), as measured in float64, whatever "
                f"completeness_error says: {ways}",
                PrecisionWarning,
            )
        return
    expected = 0.0 if attribution.expected_error is None else attribution.expected_error.max().item()
    if expected > least:
        warn_user(
            f"scores may be wrong by {min(expected, 1.0):.1%} of the largest or more, whatever completeness_error "
            "says: saturated attention or norms of tiny variance magnify rounding in this model, or its vectors are "
            f"too small for the dtype. check='thorough' measures it; {ways}",
            PrecisionWarning,
        )
