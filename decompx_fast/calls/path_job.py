"""Explanations along paths: the same question of many versions of each text, of which some sources are gone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

import torch
from torch import Tensor

from ..engines.path import TRIED, Path, mean_scores, random_sets, step_sizes, trials_of
from ..errors import InputError, OptionError, warn_user
from ..linearize.spec import ModelSpec
from ..request.batching import Pair, inputs_at_once
from ..request.encoded import Encoded
from ..request.sources import Sources
from ..request.versions import Baseline, Players, fill_of, generator_of, version
from ..result.explanation import Explanation
from ..result.failure import Failure
from .compiling import outside_compiler
from .composing import source_fields
from .job import Job, run_or_fail
from .path_search import search

#: Steps that grow with the measured change of the scores: the first number, twice as many each time up to the last,
#: until the scores change by no more than this part of their norm.
AUTO: Literal["auto"] = "auto"
FIRST_STEPS, MOST_STEPS, TOLERANCE = 3, 48, 0.1

#: A search for the order in which single sources leave and enter.
SEARCH: Literal["search"] = "search"

Steps = int | Literal["auto", "search"]

#: What draws the random sets, beside the text and the seed.
PURPOSE = "paths"


@dataclass(frozen=True)
class Walk:
    """The versions of one text, along the path of one column.

    Attributes:
        encoded: the text.
        players: what leaves.
        path: what has left.
        sizes: how many sources leave in each step.
    """

    encoded: Encoded
    players: Players
    path: Path
    sizes: list[int]

    def next(self, count: int, fill: int | None) -> Encoded:
        """The text after one more step."""
        self.path.leave(count)
        return version(self.encoded, self.players.absent(self.path.present), fill)

    def arrive(self, found: Explanation) -> None:
        """What the model and the scores of a single column say of it."""
        scores = self.players.scores(found.scores.double(), self.path.present)
        self.path.arrive(found.target_logits[0].item(), scores[:, 0])


@dataclass(frozen=True)
class Sets:
    """The versions of one text with random sets of its sources.

    Attributes:
        encoded: the text.
        players: what may be gone.
        present: ``[s, p]`` bool.
    """

    encoded: Encoded
    players: Players
    present: Tensor

    def versions(self, fill: int | None) -> list[Encoded]:
        return [version(self.encoded, self.players.absent(row), fill) for row in self.present]

    def scores(self, found: Sequence[Explanation]) -> Tensor:
        """``[s, p, c]``, of what was found of each version."""
        rows = zip(found, self.present, strict=True)
        return torch.stack([self.players.scores(one.scores.double(), row) for one, row in rows])


@dataclass(frozen=True)
class Along:
    """What was found along the paths of one text.

    Attributes:
        scores: ``[p, c]`` float64, of what may be gone.
        baseline: ``[c]`` float64, the model's value where nothing is left.
        error: the largest standard error of a score; ``None`` of a single version.
        steps: how many.
        versions: of the text that were explained, for fewer steps before, too.
        change: of the scores by the last doubling of the steps, relative to their norm; ``None`` for a fixed number.
    """

    scores: Tensor
    baseline: Tensor
    error: float | None
    steps: int
    versions: int
    change: float | None = None

    def after(self, before: Along | None) -> Along:
        """This, with how it differs from what fewer steps gave."""
        if before is None:
            return replace(self, change=math.inf)
        change = (self.scores - before.scores).norm() / self.scores.norm().clamp_min(torch.finfo(torch.float64).tiny)
        return replace(self, change=change.item(), versions=self.versions + before.versions)


class PathJob:
    """A job whose scores are the mean of those along a path to a baseline and those of random sets of sources.

    Args:
        whole: explains each text, token by token.
        versions: explains each version of it: the same, by a rule of biases that takes two passes of the model.
        steps: of each path, at most, and how many random sets there are besides; ``"auto"``: as many as it takes;
            ``"search"``: one for each source, whose order is searched for by the model's values.
        baseline: what becomes of sources that are gone; ``None``: masked, in a search masked and removed.
        seed: of the random sets.
        spec: of the model.

    Raises:
        OptionError: for what cannot be asked along a path.
        InputError: for a baseline that the tokenizer does not have.
    """

    def __init__(
        self, whole: Job, versions: Job, *, steps: Steps, baseline: Baseline | None, seed: int, spec: ModelSpec
    ) -> None:
        for name, value, least, others in (("steps", steps, 1, (AUTO, SEARCH)), ("seed", seed, 0, ())):
            known = isinstance(value, str) and value in others  # an array can't be asked whether it is among strings
            if not known and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                more = "".join(f", {other!r}" for other in others)
                raise OptionError(f"{name}={value!r}: use a whole number from {least}{more}, or leave it out")
        self.steps, self.seed = steps, seed
        usual: tuple[Baseline, ...] = ("mask", "remove") if steps == SEARCH else ("mask",)
        self.baselines = usual if baseline is None else (baseline,)
        self.fills = [fill_of(one, whole.explainer.tokenizer) for one in self.baselines]
        self.fill = self.fills[0]  # of all but the search, which has several
        _check_asked(whole, steps)
        _check_model(whole, spec, steps, self.baselines)
        self.whole, self.versions = whole, versions

    def bytes_of(self, pair: Pair) -> int:
        """What one input takes while it is computed, roughly: versions are computed by batches of their own."""
        return self.whole.bytes_of((pair[0], None))

    @property
    def rounds(self) -> list[int]:
        """The numbers of steps that are tried one after the other, until one is enough: all, at the most."""
        if isinstance(self.steps, int):
            return [self.steps]
        if self.steps == SEARCH:
            return []
        return [FIRST_STEPS * 2**n for n in range(MOST_STEPS.bit_length()) if FIRST_STEPS * 2**n <= MOST_STEPS]

    def versions_along(self, sources: int, columns: int) -> int:
        """How many versions of a text with so many sources are on the paths of all columns, at the most."""
        if self.steps == SEARCH:
            return len(self.fills) * (1 + 2 * columns * trials_of(sources, TRIED))
        return columns * sum(min(steps, sources) for steps in self.rounds)

    @property
    def versions_of_sets(self) -> int:
        """How many versions of a text have random sets of its sources, at the most."""
        return sum(self.rounds)

    @outside_compiler
    def run(self, batch: Sequence[Pair]) -> list[Explanation]:
        """Explain inputs of the same length and the same number of sources."""
        start = time.perf_counter()
        found = self.whole.run([(encoded, None) for encoded, _ in batch])
        players = [self._players(encoded, sources) for encoded, sources in batch]
        if self.steps == AUTO:
            along = self._refined(batch, found, players)
        elif self.steps == SEARCH:
            along = self._searched(batch, found, players)
        else:
            along = self._along(self.steps, batch, found, players)
        seconds = (time.perf_counter() - start) / len(batch)
        rows = zip(found, batch, players, along, strict=True)
        return [self._explanation(whole, pair, own, one, seconds) for whole, pair, own, one in rows]

    def run_all(self, batches: Sequence[Sequence[Pair]], *, skip: bool) -> list[Sequence[Explanation | Failure]]:
        """As :meth:`Job.run_all`, in one process."""
        return [run_or_fail(self.run, batch) if skip else self.run(batch) for batch in batches]

    def _players(self, encoded: Encoded, sources: Sources | None) -> Players:
        if "remove" in self.baselines and not any(encoded.special):
            raise InputError(
                f"input {encoded.number}: baseline='remove' takes out all tokens at last, and this text has no special "
                "tokens that would stay: use baseline='mask' or 'pad'"
            )
        return Players.of(encoded, sources)

    def _refined(self, batch: Sequence[Pair], found: Sequence[Explanation], players: Sequence[Players]) -> list[Along]:
        """Twice as many steps until the scores of a text stay, see :data:`TOLERANCE`; the others go on alone.

        A longer path is another one, whose first steps take fewer sources, so that nothing but the text is shared.
        """
        latest: dict[int, Along] = {}
        going = list(range(len(batch)))
        for steps in self.rounds:
            now = self._along(steps, [batch[n] for n in going], [found[n] for n in going], [players[n] for n in going])
            latest |= {n: one.after(latest.get(n)) for n, one in zip(going, now, strict=True)}
            going = [n for n in going if (latest[n].change or 0.0) > TOLERANCE]
            if not going:
                break
        for n in going:
            warn_user(
                f"input {batch[n][0].number}: with {latest[n].steps} steps its scores still change by "
                f"{latest[n].change or 0.0:.0%} (steps='auto' ends at {TOLERANCE:.0%}): give steps= a larger number"
            )
        return [latest[n] for n in range(len(batch))]

    def _along(
        self, steps: int, batch: Sequence[Pair], found: Sequence[Explanation], players: Sequence[Players]
    ) -> list[Along]:
        """The paths of every column and the random sets of each input."""
        columns = range(len(found[0].targets))
        walks = [self._walked(column, steps, batch, found, players) for column in columns]  # [c][n]
        sets = [self._drawn(steps, encoded, own) for (encoded, _), own in zip(batch, players, strict=True)]
        answers = iter(_in_batches(self.versions, [one for drawn in sets for one in drawn.versions(self.fill)]))
        scores = [drawn.scores([next(answers) for _ in drawn.present]) for drawn in sets]
        rows = zip(found, sets, scores, zip(*walks, strict=True), strict=True)
        return [_averaged(steps, whole, drawn, of_sets, own) for whole, drawn, of_sets, own in rows]

    def _walked(
        self, column: int, steps: int, batch: Sequence[Pair], found: Sequence[Explanation], players: Sequence[Players]
    ) -> list[Walk]:
        """The path of one column of each input, to its end."""
        job, walks = self.versions.of_column(column), []
        for (encoded, _), whole, own in zip(batch, found, players, strict=True):
            path = Path(own.scores(whole.scores.double())[:, column], whole.target_logits[column].item())
            walks.append(Walk(encoded, own, path, step_sizes(len(own), steps)))
        for counts in zip_longest(*(walk.sizes for walk in walks)):
            going = [(walk, count) for walk, count in zip(walks, counts, strict=True) if count]
            versions = [walk.next(count, self.fill) for walk, count in going]
            for (walk, _), one in zip(going, _in_batches(job, versions), strict=True):
                walk.arrive(one)
        return walks

    def _searched(self, batch: Sequence[Pair], found: Sequence[Explanation], players: Sequence[Players]) -> list[Along]:
        """The order in which the sources of each input are taken, for every column."""
        searched = search([encoded for encoded, _ in batch], found, players, self._values, self.fills)
        rows = zip(searched, players, strict=True)
        return [Along(one.scores, one.baseline, None, len(own), one.versions) for one, own in rows]

    def _values(self, versions: Sequence[Encoded]) -> Tensor:
        """``[n, c]`` float64, what the model says of inputs of any lengths, in one pass and without scores."""
        rows: dict[int, Tensor] = {}
        for places in _at_once(self.versions, versions):
            logits = self.versions.run_model([versions[place] for place in places]).double().cpu()
            rows |= dict(zip(places, self.whole.targets.select(logits), strict=True))
        return torch.stack([rows[place] for place in range(len(versions))])

    def _drawn(self, steps: int, encoded: Encoded, players: Players) -> Sets:
        generator = generator_of(encoded.ids, self.seed, PURPOSE)
        return Sets(encoded, players, random_sets(len(players), steps, generator))

    def _explanation(
        self, whole: Explanation, pair: Pair, players: Players, along: Along, seconds: float
    ) -> Explanation:
        (encoded, sources), baseline = pair, along.baseline
        value = whole.target_logits.double()
        count = len(encoded) if sources is None else len(sources)
        scores = torch.zeros(count, len(value), dtype=torch.float64, device="cpu")
        scores[players.sources] = along.scores
        about = {
            "steps": along.steps,
            "baseline": " and ".join(self.baselines),
            "seed": self.seed,
            "versions": along.versions,
            "versions_bias": self.versions.config.bias,
            "standard_error": along.error and float(f"{along.error:.2g}"),
        }
        if along.change is not None:
            about["steps_change"] = float(f"{along.change:.2g}")
        return replace(
            whole,
            **source_fields(encoded, sources),
            scores=scores,
            completeness_error=(scores.sum(0) + baseline - value).abs().max().item(),
            bias_token=None,
            bias_sites=None,
            component_shares={},
            baseline_logits=baseline,
            time_s=seconds,
            metadata={**whole.metadata, **about},
        )


def _averaged(steps: int, whole: Explanation, sets: Sets, of_sets: Tensor, walks: Sequence[Walk]) -> Along:
    """The mean of the scores along the paths of one text and those ``[s, p, c]`` of its random sets."""
    baseline = torch.tensor([walk.path.value for walk in walks], dtype=torch.float64, device="cpu")
    along = torch.stack([walk.path.shared() for walk in walks], dim=1)  # [p, c]
    own = sets.players.scores(whole.scores.double())
    mean, error = mean_scores(sets.present, of_sets, own, whole.target_logits.double() - baseline)
    known = error[~error.isnan()]
    largest = known.amax().item() / 2 if len(known) else None
    versions = len(sets.present) + sum(len(walk.sizes) for walk in walks)
    return Along((along + mean) / 2, baseline, largest, steps, versions)


def _in_batches(job: Job, versions: Sequence[Encoded]) -> list[Explanation]:
    """Explain inputs of any lengths; what each component carries of a version, which takes the most memory, is left
    out."""
    found: dict[int, Explanation] = {}
    for places in _at_once(job, versions):
        ran = job.run([(versions[place], None) for place in places])
        found |= {place: replace(one, component_shares={}) for place, one in zip(places, ran, strict=True)}
    return [found[place] for place in range(len(versions))]


def _at_once(job: Job, versions: Sequence[Encoded]) -> Iterator[list[int]]:
    """The places of equally long inputs, as many together as fit."""
    alike: dict[int, list[int]] = {}
    for place, one in enumerate(versions):
        alike.setdefault(len(one), []).append(place)
    for places in alike.values():
        size = inputs_at_once(job.bytes_of((versions[places[0]], None)))
        for first in range(0, len(places), size):
            yield places[first : first + size]


def _check_asked(job: Job, steps: Steps) -> None:
    """Refuse what is told of one version of a text and has no meaning for many."""
    config = job.config
    refused: tuple[tuple[bool, str, Callable[[], str]], ...] = (
        (not config.head, "head=False", lambda: "norms add up to no value that a path could share"),
        (bool(config.stages), f"stages={list(config.stages)!r}", lambda: "stages are of one version of a text"),
        (bool(job.positions), f"positions={list(job.positions)!r}", lambda: "stages are of one version of a text"),
        (job.check != "standard", f"check={job.check!r}", lambda: "errors are measured of one version of a text"),
        (job.execution.exchange is not None, "group", lambda: "versions of a text are explained in one process"),
    )
    for is_asked, what, why in refused:
        if is_asked:
            raise OptionError(f"{what} cannot be had along a path (steps={steps}): {why()}; leave one of them out")


def _check_model(job: Job, spec: ModelSpec, steps: Steps, baselines: Sequence[Baseline]) -> None:
    """Refuse models whose inputs have no versions, or whose columns depend on the version."""
    task = job.explainer.task
    if spec.limits.picture is not None or spec.limits.sound is not None:
        raise OptionError(f"steps={steps} is for texts, of which tokens can be absent, and this model reads none")
    if job.asker is not None:
        raise OptionError(
            f"steps={steps} needs a head that answers once, and the task of this model is {task}, which answers at "
            "positions that would go with their tokens: leave it out"
        )
    if spec.encoder_layers:
        raise OptionError(f"steps={steps} cannot be had of a model whose decoder reads the text again: leave it out")
    if "pad" in baselines and callable(spec.read):
        raise OptionError(
            "baseline='pad' moves the position that this model reads, the last that is no padding: use "
            "baseline='remove' or 'mask'"
        )
