"""What the scores of a target add up to, and what is missing to the model's value: in numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .display import largest_magnitude, score_format

if TYPE_CHECKING:
    from .explanation import Explanation
    from .pair import PairExplanation

#: A gap of this share of the value (of 1, for smaller values) is rounding; a larger one is called incomplete.
TOLERANCE = 1e-2

#: Options that leave something out of the decomposition on purpose, and what.
LEFT_OUT = {
    ("bias", "none"): "the biases",
    ("ln1", False): "the first LayerNorm",
    ("ffn", False): "the feed-forward network",
    ("ln2", False): "the second LayerNorm",
    ("activation", "relu"): "the slopes of the activation",
}

_NORMS_OF = {
    "vector": "the part of each {unit} in the last layer's state",
    "rollout": "the part of each {unit} in each layer's state, multiplied over the layers",
    "none": "the part of each {unit} in the last layer's state, of that layer alone",
}


@dataclass(frozen=True)
class Account:
    """The parts of one target.

    ``sources + (apart or 0) + remainder = value``.

    Attributes:
        value: the model's own; for norms, which have none, their sum.
        sources: what the sources add up to.
        apart: what is no source's: the share of the bias token, or the value of the text without any of its tokens, if
            there is one of them.
        apart_name: ``bias token`` or ``baseline``; empty where there is neither.
        remainder: what is missing to ``value``.
        remainder_name: what that is, for a bar or a row; empty where it is rounding.
        value_name: ``logit``, ``value`` or ``sum of norms``.
        status: a word or two: ``Complete``, ``Incomplete``, ``Left out`` or ``Norms``.
        extent: the sentence that goes with ``status``.
        is_sound: False only for a gap that no option explains.
    """

    value: float
    sources: float
    apart: float | None
    apart_name: str
    remainder: float
    remainder_name: str
    value_name: str
    status: str
    extent: str
    is_sound: bool

    def written(self) -> tuple[str, str, str | None]:
        """``value``, ``sources`` and ``apart`` with its name, written alike."""
        number = score_format([self.value, self.sources, self.apart or 0.0])
        apart = None if self.apart is None else f"{self.apart_name} {number(self.apart)}"
        return number(self.value), number(self.sources), apart


def are_norms(explanation: Explanation) -> bool:
    """Whether the scores are norms, which belong to no class: those of ``head=False``."""
    return explanation.options.get("head") is False


def account(explanation: Explanation, column: int) -> Account:
    """Add up one target.

    Args:
        explanation: of one input.
        column: which target, an index into ``explanation.targets``.
    """
    value = float(explanation.target_logits[column])
    sources = float(explanation.scores[:, column].double().sum())
    averaged = explanation.baseline_logits is not None
    parts = explanation.baseline_logits if averaged else explanation.bias_token
    apart = None if parts is None else float(parts[column])
    apart_name = "" if parts is None else "baseline" if averaged else "bias token"
    remainder = value - sources - (apart or 0.0)
    left_out = left_out_of(explanation.options)
    if averaged:  # whatever was left out of each version, the difference is shared as a whole
        left_out = []
    if are_norms(explanation):
        status, extent, sound, name = *_norms(explanation, left_out), ""
    elif left_out:
        status, extent, sound = _by_design(explanation, column, remainder, left_out)
        name = f"{_listed(left_out)}, left out"
    else:
        status, extent, sound = _measured(explanation)
        name = "" if sound else "not accounted for"
    if explanation.score_error is not None:
        extent = f"{extent}; each score to within {explanation.score_error:.1e}"
    value_name = _value_name(explanation, column)
    return Account(value, sources, apart, apart_name, remainder, name, value_name, status, extent, sound)


def left_out_of(options: Mapping[str, Any]) -> list[str]:
    """What options leave out of the decomposition on purpose."""
    return [what for (name, choice), what in LEFT_OUT.items() if options.get(name) == choice]


def account_of_pair(pair: PairExplanation) -> tuple[str, str, bool]:
    """The status of a pair's scores, a sentence on it, and whether it is sound; as :class:`Account` has them."""
    missing = pair.value - pair.total
    left_out = left_out_of(pair.options)
    if left_out:
        written = score_format([pair.value, missing])(missing)
        return "Left out", f"{_listed(left_out)}, by design: the scores lack {written} of the similarity", True
    if pair.completeness_error <= TOLERANCE * max(1.0, abs(pair.value)):
        return "Complete", f"to within {pair.completeness_error:.1e} of the model's value", True
    return "Incomplete", f"by {pair.completeness_error:.3g}: the sum is not the model's value", False


def _value_name(explanation: Explanation, column: int) -> str:
    if are_norms(explanation):
        return "sum of norms"
    is_logit = explanation.target_ids[column] is not None and explanation.problem_type != "regression"
    return "logit" if is_logit else "value"


def _measured(explanation: Explanation) -> tuple[str, str, bool]:
    """Scores that must add up to the model's value."""
    error, scale = explanation.completeness_error, largest_magnitude(explanation.target_logits.tolist())
    if error <= TOLERANCE * max(1.0, scale):
        less = "" if explanation.baseline_logits is None else " less the baseline's"
        return "Complete", f"to within {error:.1e} of the model's value{less}", True
    return "Incomplete", f"by {error:.3g}: the sum is not the model's value", False


def _by_design(explanation: Explanation, column: int, remainder: float, left_out: list[str]) -> tuple[str, str, bool]:
    """Scores that an option keeps from adding up; of biases alone, their own sum is the test where it is known."""
    value = float(explanation.target_logits[column])
    name, written = _value_name(explanation, column), score_format([value, remainder])(remainder)
    if left_out != ["the biases"]:
        return "Left out", f"{_listed(left_out)}, by design: the scores lack {written} of the {name}", True
    extent = f'the biases, by design (bias="none"): they give {written} of the {name}'
    if explanation.bias_sites is None:
        return "Left out", extent, True
    gap = abs(remainder - sum(float(site.value[column]) for site in explanation.bias_sites))
    if gap <= TOLERANCE * max(1.0, abs(value)):
        return "Left out", f"{extent}; complete with them to within {gap:.1e}", True
    return "Incomplete", f"by {gap:.3g}, even with the biases, which are left out by design", False


def _norms(explanation: Explanation, left_out: list[str]) -> tuple[str, str, bool]:
    """Norms add up to nothing; what they are the norms of does, unless something is left out."""
    options = explanation.options
    of = _NORMS_OF[options.get("aggregation", "vector")].format(unit=explanation.source_unit)
    extent = f"of {of}; they belong to no class"
    if left_out:
        return "Norms", f"{extent}; {_listed(left_out)} left out by design", True
    error, scale = explanation.completeness_error, largest_magnitude(explanation.scores.flatten().tolist())
    if error <= TOLERANCE * max(1.0, scale):
        return "Norms", f"{extent}; the parts add up to the model's states to within {error:.1e}", True
    return "Incomplete", f"by {error:.3g}: the parts whose norms these are do not add up to the model's states", False


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
