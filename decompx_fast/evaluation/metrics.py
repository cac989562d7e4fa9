"""What is measured of a method: every metric is the mean over texts of one number per text.

So the curves, the table and the intervals come from the same numbers, and two methods can be compared text by text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from .masking import Perturbation
from .rationales import LEAST_TEXTS, out_of_fold_correct

Array = NDArray[np.float64]

#: K of the curves, in percent.
LEVELS = (10, 20, 30, 40, 50, 60, 70, 80, 90)

#: The bins of ERASER, in percent.
BINS = (1, 5, 10, 20, 50)

#: Percent of the tokens that are a rationale: of one text, and of a pair.
RATIONALE_PERCENT = {False: 20, True: 40}

RATIONALE = "rationale"


@dataclass(frozen=True)
class Outcomes:
    """What the model says about the texts, in full and changed by the order that one method gives to their tokens.

    Attributes:
        labels: ``[n]``, the right class; ``None`` if it is not known.
        probability: ``[n]``, of the predicted class, for the full text.
        perturbed_probability: by the name of a perturbation ``[n, levels]``: the probability of that same class.
        perturbed_predicted: by the name of a perturbation ``[n, levels]``: the class that is predicted now.
        rationale_states: ``[n, d]``, the encoder's pooled state of the rationales; ``None`` if not computed.
        seed: of the split into folds.
        groups: ``[n]``, the same number for equal texts; ``None``: all are different.
    """

    labels: NDArray[np.int64] | None
    probability: Array
    perturbed_probability: Mapping[str, Array]
    perturbed_predicted: Mapping[str, NDArray[np.int64]]
    rationale_states: NDArray[np.float32] | None = None
    seed: int = 0
    groups: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Metric:
    """A measure of faithfulness.

    Attributes:
        name: as users write it.
        label: as tables show it.
        about: its definition and source, in a sentence.
        higher_is_better: which way is good.
        perturbation: the name of the one that it reads.
        needs_labels: whether the right classes must be known.
        levels: its curve ``[n, levels]``, whose mean is what a text is given; a single column if it is no curve.
        least_texts: how many different texts it needs.
    """

    name: str
    label: str
    about: str
    higher_is_better: bool
    perturbation: str
    needs_labels: bool
    levels: Callable[[Outcomes], Array]
    least_texts: int = 1


def perturbations(metrics: Sequence[Metric], *, pairs: bool) -> list[Perturbation]:
    """What has to be computed for these metrics, each once."""
    known = (
        Perturbation("mask-most", "mask", "most", LEVELS),
        Perturbation("mask-least", "mask", "least", LEVELS),
        Perturbation("remove-most", "remove", "most", BINS),
        Perturbation("keep-most", "keep", "most", BINS),
        Perturbation(RATIONALE, "keep", "most", (RATIONALE_PERCENT[pairs],)),
    )
    return [one for one in known if one.name in {metric.perturbation for metric in metrics}]


def probability_drop(name: str) -> Callable[[Outcomes], Array]:
    """``p(c | text) - p(c | changed text)`` ``[n, levels]``, for the class ``c`` predicted for the full text."""
    return lambda outcomes: outcomes.probability[:, None] - outcomes.perturbed_probability[name]


def still_right(name: str) -> Callable[[Outcomes], Array]:
    """``[n, levels]``: 1 where the class predicted for the changed text is the label, else 0."""

    def levels(outcomes: Outcomes) -> Array:
        return (outcomes.perturbed_predicted[name] == _labels(outcomes)[:, None]).astype(np.float64)

    return levels


def rationale_right(outcomes: Outcomes) -> Array:
    """``[n, 1]``: 1 where a classifier trained on the rationales of other texts is right about this text's, else 0."""
    if outcomes.rationale_states is None:
        raise ValueError("the states of the rationales were not computed")
    labels, groups = _labels(outcomes), outcomes.groups
    return out_of_fold_correct(outcomes.rationale_states, labels, seed=outcomes.seed, groups=groups)[:, None]


def _labels(outcomes: Outcomes) -> NDArray[np.int64]:
    if outcomes.labels is None:
        raise ValueError("this metric needs labels")
    return outcomes.labels


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "aopc",
            "AOPC",
            "Mean over texts and K of p(c|x) - p(c|x without the K % most important tokens), c the class predicted for "
            "x; the tokens are replaced by the mask token. K = 10, 20 ... 90. Source: Samek et al. 2017, Nguyen 2018, "
            "as in DecompX (Modarressi et al. 2023, section 4).",
            True,
            "mask-most",
            False,
            probability_drop("mask-most"),
        ),
        Metric(
            "accuracy",
            "Accuracy",
            "Share of texts whose label is predicted after the K % most important tokens are masked, mean over the "
            "same K. Source: DecompX, section 4 (after Atanasova et al. 2020).",
            False,
            "mask-most",
            True,
            still_right("mask-most"),
        ),
        Metric(
            "aopc-least",
            "AOPC, least",
            "As AOPC, with the K % least important tokens masked.",
            False,
            "mask-least",
            False,
            probability_drop("mask-least"),
        ),
        Metric(
            "accuracy-least",
            "Accuracy, least",
            "As accuracy, with the K % least important tokens masked.",
            True,
            "mask-least",
            True,
            still_right("mask-least"),
        ),
        Metric(
            "comprehensiveness",
            "Comprehensiveness",
            "Mean over texts and bins of p(c|x) - p(c|x without the rationale): the most important 1, 5, 10, 20 and "
            "50 % of the tokens, taken out of the text. Source: ERASER (DeYoung et al. 2020, section 4). Its sum also "
            "has the empty rationale, which adds 0 to it and is left out of the mean here.",
            True,
            "remove-most",
            False,
            probability_drop("remove-most"),
        ),
        Metric(
            "sufficiency",
            "Sufficiency",
            "Mean over texts and bins of p(c|x) - p(c|the rationale alone), with the bins of comprehensiveness. "
            "Source: ERASER (DeYoung et al. 2020, section 4); the empty rationale, the same for all methods, is left "
            "out of the mean.",
            False,
            "keep-most",
            False,
            probability_drop("keep-most"),
        ),
        Metric(
            "prediction-performance",
            "Prediction performance",
            "Accuracy of a classifier that was trained on rationales, on the rationales of texts that it has not seen; "
            "a rationale is the most important 20 % of the tokens of a text (40 % of a pair), the others taken out. "
            "Source: DecompX, section 4 (after Jain et al. 2020). The paper fine-tunes a Transformer for each method. "
            "Here a logistic regression is trained on the explained model's own last layer, mean over the positions of "
            "the rationale, whose encoder stays as it is; each of five folds of the texts is predicted by one trained "
            "on the other four. Numbers are comparable between methods, not with the paper's.",
            True,
            RATIONALE,
            True,
            rationale_right,
            LEAST_TEXTS,
        ),
    )
}


def get_metric(name: str) -> Metric:
    """The metric of that name.

    Raises:
        OptionError: if there is none; it lists what there is.
    """
    if name not in METRICS:
        raise OptionError(f"unknown metric {name!r}: use one of {', '.join(METRICS)}")
    return METRICS[name]
