"""What is measured of a method: every metric is the mean over texts of one number per text.

So the curves, the table and the intervals come from the same numbers, and two methods can be compared text by text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..errors import OptionError
from ..request.versions import Baseline
from . import measures, plausibility
from .masking import Design, Perturbation
from .outcomes import Array, Outcomes
from .rationales import LEAST_TEXTS

#: K of the curves, in percent.
LEVELS = (10, 20, 30, 40, 50, 60, 70, 80, 90)

#: The bins of ERASER, in percent.
BINS = (1, 5, 10, 20, 50)

#: Percent of the tokens that are a rationale: of one text, and of a pair.
RATIONALE_PERCENT = {False: 20, True: 40}

#: Token by token, for texts of up to a hundred of them.
EACH = tuple(range(1, 101))

#: What changes a text, but for how tokens are deleted.
DESIGNS = {
    "most": Design("delete", "most", LEVELS),
    "least": Design("delete", "least", LEVELS),
    "bins": Design("delete", "most", BINS),
    "keep": Design("keep", "most", BINS),
    "each": Design("delete", "most", EACH),
    "random": Design("delete", "random", LEVELS * 4),
    "rationale": Design("keep", "most", ()),  # the percents differ for texts and pairs
}


@dataclass(frozen=True)
class Metric:
    """A measure of faithfulness, or of agreement with people.

    Attributes:
        name: as users write it.
        label: as tables show it.
        about: its definition and source, in a sentence.
        higher_is_better: which way is good.
        design: the name of what is done to texts, of :data:`DESIGNS`; empty if nothing is.
        deletion: how tokens are deleted there.
        curve: from the outcomes of a method and the name of the perturbation that is read to ``[n, levels]``.
        needs_labels: whether the right classes must be known.
        needs_rationales: whether people must have marked their reasons.
        least_texts: how many different texts it needs.
        passes: of a sanity check, how far a method may go in the wrong direction; ``None``: it is no such check, or
            one that nothing fails.
    """

    name: str
    label: str
    about: str
    higher_is_better: bool
    design: str
    deletion: Baseline
    curve: Callable[[Outcomes, str], Array]
    needs_labels: bool = False
    needs_rationales: bool = False
    least_texts: int = 1
    passes: float | None = None

    @property
    def perturbation(self) -> str:
        """The name of the one that it reads; empty if it reads none."""
        return self.design and f"{self.deletion}-{self.design}"

    def levels(self, outcomes: Outcomes) -> Array:
        """Its curve ``[n, levels]``, whose mean is what a text is given; a single column if it is no curve. NaN for a
        text of which the metric says nothing."""
        return self.curve(outcomes, self.perturbation)


def perturbations(metrics: Sequence[Metric], *, pairs: bool) -> list[Perturbation]:
    """What has to be computed for these metrics, each once."""
    found: dict[str, Perturbation] = {}
    for metric in metrics:
        if metric.design:
            design = DESIGNS[metric.design]
            if metric.design == "rationale":
                design = replace(design, percents=(RATIONALE_PERCENT[pairs],))
            found.setdefault(metric.perturbation, Perturbation(metric.perturbation, metric.deletion, design))
    return list(found.values())


def by_deletion(metrics: Sequence[Metric], deletions: Sequence[Baseline]) -> list[Metric]:
    """Each metric that deletes tokens once for each of these ways, side by side; the others as they are."""
    found = []
    for metric in metrics:
        for way in deletions if metric.design else ():
            label, about = f"{metric.label} ({way})", f"{metric.about} Here tokens are deleted by {way!r}."
            found.append(replace(metric, name=f"{metric.name}-{way}", label=label, about=about, deletion=way))
        found += [] if metric.design else [metric]
    return found


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
            "most",
            "mask",
            measures.probability_drop,
        ),
        Metric(
            "accuracy",
            "Accuracy",
            "Share of texts whose label is predicted after the K % most important tokens are masked, mean over the "
            "same K. Source: DecompX, section 4 (after Atanasova et al. 2020).",
            False,
            "most",
            "mask",
            measures.still_right,
            needs_labels=True,
        ),
        Metric(
            "aopc-least",
            "AOPC, least",
            "As AOPC, with the K % least important tokens masked.",
            False,
            "least",
            "mask",
            measures.probability_drop,
        ),
        Metric(
            "accuracy-least",
            "Accuracy, least",
            "As accuracy, with the K % least important tokens masked.",
            True,
            "least",
            "mask",
            measures.still_right,
            needs_labels=True,
        ),
        Metric(
            "comprehensiveness",
            "Comprehensiveness",
            "Mean over texts and bins of p(c|x) - p(c|x without the rationale): the most important 1, 5, 10, 20 and "
            "50 % of the tokens, taken out of the text. Source: ERASER (DeYoung et al. 2020, section 4). Its sum also "
            "has the empty rationale, which adds 0 to it and is left out of the mean here.",
            True,
            "bins",
            "remove",
            measures.probability_drop,
        ),
        Metric(
            "sufficiency",
            "Sufficiency",
            "Mean over texts and bins of p(c|x) - p(c|the rationale alone), with the bins of comprehensiveness. "
            "Source: ERASER (DeYoung et al. 2020, section 4); the empty rationale, the same for all methods, is left "
            "out of the mean.",
            False,
            "keep",
            "remove",
            measures.probability_drop,
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
            "rationale",
            "remove",
            measures.rationale_right,
            needs_labels=True,
            least_texts=LEAST_TEXTS,
        ),
        Metric(
            "log-odds",
            "Log-odds",
            "Mean over texts and the K of AOPC of log p(c|x without the K % most important tokens) - log p(c|x); the "
            "tokens are replaced by the mask token. Source: Shrikumar et al. 2017, Chen et al. 2019.",
            False,
            "most",
            "mask",
            measures.log_odds,
        ),
        Metric(
            "flip-fraction",
            "Flip, fraction",
            "The least part of the tokens that has to be taken out, the most important first, until another class is "
            "predicted; 1 where none is. Counted in tokens up to 100 of them, in percent beyond. Source: Serrano and "
            "Smith 2019, section 4 (decision flip, fraction of tokens).",
            False,
            "each",
            "remove",
            measures.flip_fraction,
        ),
        Metric(
            "flip-first",
            "Flip, first token",
            "Share of texts of which another class is predicted when the most important token is taken out. Source: "
            "Serrano and Smith 2019; Chrysostomou and Aletras 2021 (decision flip, most informative token).",
            True,
            "each",
            "remove",
            measures.first_flips,
        ),
        Metric(
            "monotonicity",
            "Monotonicity",
            "Part of the steps in which p(c) does not fall, as masked tokens are put back one by one, the least "
            "important first. Source: Luss et al. 2019, as in AIX360 (Arya et al. 2019), which asks whether that is so "
            "in every step: 1 here.",
            True,
            "each",
            "mask",
            measures.monotone_steps,
        ),
        Metric(
            "infidelity",
            "Infidelity",
            "Mean squared difference between the sum of the scores of a random set of tokens and what the logit loses "
            "when they are masked, over four sets of each size of AOPC; the scores of a text are scaled by the factor "
            "that makes it least. Source: Yeh et al. 2019, definition 2.1 and section 4.",
            False,
            "random",
            "mask",
            measures.infidelity_column,
        ),
        Metric(
            "token-f1",
            "Token F1",
            "F1 between the tokens that people marked and as large a part of the most important tokens as they mark on "
            "average, mean over the texts with marks. Source: ERASER (DeYoung et al. 2020, section 4).",
            True,
            "",
            "mask",
            plausibility.token_f1,
            needs_rationales=True,
        ),
        Metric(
            "iou-f1",
            "IoU F1",
            "As token F1, of spans: a predicted one is right if its intersection with a marked one is half of their "
            "union or more. Source: ERASER (DeYoung et al. 2020, section 4), which takes the F1 of mean precision and "
            "mean recall, where here each text has its own.",
            True,
            "",
            "mask",
            plausibility.iou_f1,
            needs_rationales=True,
        ),
        Metric(
            "auprc",
            "AUPRC",
            "Area under the curve of precision over recall of the marked tokens, for the order by importance, mean "
            "over the texts with marks. Source: ERASER (DeYoung et al. 2020, section 4).",
            True,
            "",
            "mask",
            plausibility.auprc,
            needs_rationales=True,
        ),
    )
}


def _check(name: str, label: str, about: str, higher_is_better: bool, passes: float | None = None) -> Metric:
    def curve(outcomes: Outcomes, perturbation: str) -> Array:
        return outcomes.checks[name]

    return Metric(name, label, about, higher_is_better, "", "mask", curve, passes=passes)


#: The sanity checks, which take many times the time of the scores and are made on a few texts.
SANITY = {
    metric.name: metric
    for metric in (
        _check(
            "cascading-randomization",
            "Cascading randomization",
            "Rank correlation with the scores for models whose weights are shuffled from the head down, mean over the "
            "layers. A method fails that stays like itself: above 0.5. Source: Adebayo et al. 2018, section 3.",
            False,
            0.5,
        ),
        _check(
            "independent-randomization",
            "Independent randomization",
            "As before, with the weights of one layer shuffled at a time. Nothing fails by it: most of the model is "
            "left.",
            False,
        ),
        _check(
            "label-randomization",
            "Label randomization",
            "Rank correlation with the scores for a model of the same shape that learnt shuffled labels. A method "
            "fails that stays like itself: above 0.5. Source: Adebayo et al. 2018, section 4.",
            False,
            0.5,
        ),
        _check(
            "input-invariance",
            "Input invariance",
            "Rank correlation with the scores for a model whose word embeddings are all shifted by a vector and whose "
            "position embeddings by its negative, which is the same function of the text. A method fails that ranks "
            "otherwise: below 0.9. Source: Kindermans et al. 2019, section 2.",
            True,
            0.9,
        ),
        _check(
            "typo-stability",
            "Typos",
            "Rank correlation of the scores of words with those in a text in which two inner letters of another word "
            "are swapped, mean over three. The model may change its mind, too: nothing fails by it.",
            True,
        ),
        _check(
            "paraphrase-stability",
            "Paraphrase",
            "As before, with another word replaced by one that means the same (film, movie), mean over three draws, of "
            "texts that have such a word.",
            True,
        ),
        _check(
            "sensitivity",
            "Sensitivity",
            "Greatest change of the scores, relative to their norm, over five draws of uniform noise of 0.02 at most "
            "on the word embeddings. Source: Yeh et al. 2019, definition 3.1.",
            False,
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
