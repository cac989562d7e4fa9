"""Scores of sources from versions of a text of which some sources are gone: along a path, and of random sets.

A path begins at the whole text. In each step some sources leave, those with the largest scores in what is left, and
what the model's value drops by is theirs. The drops of a path sum to the value of the text less that of the baseline,
where all sources are gone, whatever the scores are: integrated gradients have the same sum along a straight path.
Within a step its drop is shared by the scores,

    phi[k] = s[k] + (drop - sum s) / count,      s the scores of those that leave, before they do

and then neighbouring steps are pooled as long as one in which less was lost for each source comes before one with more
(isotonic regression). Sources that say the same, of which the first to leave costs little and the next much, thus have
equal parts, and the sum stays.

Of random sets, a source has the mean of its scores in the versions that have it, and what the means lack of the
difference between text and baseline is shared equally.

A search takes single sources, each out of the text and into the baseline at once. In each step a few of the sources
with the largest scores are tried, and the one is taken without which the value of the rest falls and with which that of
the gathered ones rises the most, in the mean of both. This mean, pooled as above, is its score; all sum to the
difference. So what was taken first is what the text can spare least, and what says the most by itself.

Source: after Kapishnikov et al., CVPR 2021 (guided integrated gradients: a path that the scores themselves choose);
Samek et al., 2017 (the most relevant first); Ayer et al., 1955 (pooling neighbours); Covert and Lee, AISTATS 2021
(random sets in pairs); Hase et al., NeurIPS 2021 (search).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

#: Sources that a search tries in each step.
TRIED = 3


@dataclass(frozen=True)
class Step:
    """One step of a path.

    Attributes:
        gone: ``[q]`` int64, the sources that left.
        scores: ``[q]`` float64, theirs before they did.
        drop: of the model's value.
    """

    gone: Tensor
    scores: Tensor
    drop: float


@dataclass
class Path:
    """A path that is being walked, of one text and one column.

    Attributes:
        scores: ``[p]`` float64, of the sources in what is left; those of sources that are gone are not read.
        value: of the model for what is left.
        present: ``[p]`` bool, what is left.
        steps: those that were walked.
    """

    scores: Tensor
    value: float
    present: Tensor = field(init=False)
    steps: list[Step] = field(init=False, default_factory=list)
    _leaving: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.present = torch.ones(len(self.scores), dtype=torch.bool, device="cpu")

    def leave(self, count: int) -> None:
        """Take out the next sources, of equal scores the first; :meth:`arrive` says what the model makes of it."""
        there = self.present.nonzero().flatten()
        self._leaving = there[self.scores[there].argsort(descending=True, stable=True)[:count]]
        self.present[self._leaving] = False

    def arrive(self, value: float, scores: Tensor) -> None:
        """The model's value for what is left now, and the scores ``[p]`` in it."""
        self.steps.append(Step(self._leaving, self.scores[self._leaving], self.value - value))
        self.value, self.scores = value, scores

    def shared(self) -> Tensor:
        """The scores ``[p]`` of all sources, when all have left; they sum to all drops."""
        counts = [len(step.gone) for step in self.steps]
        levels = pooled([step.drop / count for step, count in zip(self.steps, counts, strict=True)], counts)
        found = torch.zeros(len(self.present), dtype=torch.float64, device="cpu")
        for step, level in zip(self.steps, levels, strict=True):
            found[step.gone] = level + step.scores - step.scores.mean()
        return found


@dataclass
class Search:
    """An order of single sources that is being looked for, of one text and one column.

    Attributes:
        scores: ``[p]`` float64, of the sources in the text itself: those with the largest are tried.
        rest: ``[m]`` float64, the model's value for the text without the sources that were taken, of each way to
            delete tokens.
        gathered: ``[m]`` float64, for these sources alone.
        taken: ``[p]`` bool.
        order: they, as they were taken.
        changes: of the values, by each.
    """

    scores: Tensor
    rest: Tensor
    gathered: Tensor
    taken: Tensor = field(init=False)
    order: list[int] = field(init=False, default_factory=list)
    changes: list[float] = field(init=False, default_factory=list)
    _tried: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.taken = torch.zeros(len(self.scores), dtype=torch.bool, device="cpu")

    def trials(self, count: int) -> Tensor:
        """The sources that would have been taken, ``[t, p]`` bool, by each of at most ``count`` steps."""
        left = (~self.taken).nonzero().flatten()
        self._tried = left[self.scores[left].argsort(descending=True, stable=True)[:count]]
        rows = self.taken.repeat(len(self._tried), 1)
        rows[torch.arange(len(rows), device="cpu"), self._tried] = True
        return rows

    def choose(self, rest: Tensor, gathered: Tensor) -> None:
        """Take the best of the sources that were tried, of equal ones that of the larger score.

        Args:
            rest, gathered: ``[t, m]`` float64, the values after each of the steps.
        """
        changes = ((self.rest - rest) + (gathered - self.gathered)).mean(1) / 2
        best = int(changes.argmax())
        self.rest, self.gathered = rest[best], gathered[best]
        self.order.append(int(self._tried[best]))
        self.taken[self.order[-1]] = True
        self.changes.append(float(changes[best]))

    def shared(self) -> Tensor:
        """The scores ``[p]`` of all sources, when all have been taken; they sum to all changes."""
        found = torch.zeros(len(self.scores), dtype=torch.float64, device="cpu")
        levels = pooled(self.changes, [1] * len(self.changes))
        found[self.order] = torch.tensor(levels, dtype=torch.float64, device="cpu")
        return found


def trials_of(sources: int, count: int) -> int:
    """How many steps a search of so many sources tries, ``count`` at a time; the last one needs no trial."""
    return sum(min(left, count) for left in range(2, sources + 1))


def step_sizes(sources: int, steps: int) -> list[int]:
    """How many sources leave in each step: alike many, and at least one, so that there may be fewer steps."""
    marks = [round(sources * n / steps) for n in range(steps + 1)]
    return [last - first for first, last in pairwise(marks) if last > first]


def pooled(values: Sequence[float], weights: Sequence[int]) -> list[float]:
    """The nearest values that do not rise, in weighted squares; their weighted sum is that of ``values``."""
    blocks: list[tuple[float, int, int]] = []  # the weighted sum, the weight and the length of each
    for value, weight in zip(values, weights, strict=True):
        total, length = value * weight, 1
        while blocks and blocks[-1][0] / blocks[-1][1] < total / weight:
            more, heavier, longer = blocks.pop()
            total, weight, length = total + more, weight + heavier, length + longer
        blocks.append((total, weight, length))
    return [total / weight for total, weight, length in blocks for _ in range(length)]


def random_sets(sources: int, count: int, generator: torch.Generator) -> Tensor:
    """Which sources are present in each version, ``[s, p]`` bool, of all sizes alike often; the second of each two
    versions has those that the first lacks."""
    rows: list[Tensor] = []
    pairs = (count + 1) // 2
    for pair in range(pairs):
        size = min(max(round((pair + 0.5) / pairs * sources), 1), max(sources - 1, 1))
        present = torch.zeros(sources, dtype=torch.bool, device="cpu")
        present[torch.randperm(sources, generator=generator, device="cpu")[:size]] = True
        rows += [present, ~present]
    return torch.stack(rows[:count])


def mean_scores(present: Tensor, scores: Tensor, whole: Tensor, difference: Tensor) -> tuple[Tensor, Tensor]:
    """Scores from those of versions with random sets of the sources.

    Args:
        present: ``[s, p]`` bool: which sources each version has.
        scores: ``[s, p, c]`` float64, theirs there; what stands at absent ones is not read.
        whole: ``[p, c]``, in the text itself, for sources that no version has.
        difference: ``[c]``, what the scores shall sum to.

    Returns:
        The scores ``[p, c]``, and the standard error ``[p, c]`` of each mean; NaN of fewer than two versions.
    """
    there, count = present[..., None], present.sum(0)[:, None]  # [s, p, 1], [p, 1]
    mean = torch.where(there, scores, 0.0).sum(0) / count.clamp_min(1)
    spread = torch.where(there, (scores - mean).square(), 0.0).sum(0)
    error = torch.where(count > 1, (spread / ((count - 1) * count).clamp_min(1)).sqrt(), torch.nan)
    mean = torch.where(count > 0, mean, whole)
    return mean + (difference - mean.sum(0)) / len(mean), error
