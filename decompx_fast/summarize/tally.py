"""The scores of words added up over many explanations, in memory that does not grow with their number."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np

from ..errors import InputError
from ..result.account import are_norms, left_out_of
from ..result.display import source_labels
from ..result.explanation import Explanation
from ..result.failure import Failure
from .summary import Example, Summary

By: TypeAlias = Literal["predicted"] | Callable[[Explanation], str | None] | None

#: So many words are kept; beyond, those of the fewest texts are dropped, and counted.
MAX_WORDS = 100_000
#: Of each word and target: scores for a plot of their spread, and the texts with the largest.
SAMPLES, EXAMPLES = 64, 3
#: Targets and groups together: a name for each text would be no summary.
MAX_COLUMNS = 512


def summarize(
    explanations: Iterable[Explanation | Failure],
    *,
    by: By = None,
    targets: Sequence[str] | None = None,
    lower: bool = True,
    special: bool = False,
    max_words: int = MAX_WORDS,
) -> Summary:
    """What each word adds to each target, over many texts.

    Tokens are put together to words. A word's score in a text is the sum of its places there; ``count`` is the number
    of places, ``documents`` that of texts. One pass is made, and nothing of an explanation is kept but numbers and, for
    each word, the texts where it matters most.

    Args:
        explanations: as ``explain_iter`` or ``decompx_fast.bulk.load_results`` give them; failures are counted.
        by: groups that are told apart: ``"predicted"``, by the predicted class; or a function that names the group of
            an explanation, and leaves out those for which it gives None.
        targets: only these; None: all. What a column says of its place, as in ``"B-PER @ John"``, is left out.
        lower: whether words are compared without regard to case.
        special: whether special tokens are words.
        max_words: so many words are kept; beyond, those of the fewest texts are dropped, and counted in ``left_out``.

    Returns:
        The summary of all.

    Raises:
        InputError: for another ``by``, for norms, which belong to no target, where no explanation has a target that
            was named, or where targets are so many that each is of a text.
    """
    if by is not None and by not in get_args(get_args(By)[0]) and not callable(by):
        raise InputError(f"by must be 'predicted', a function of an explanation, or None, got {by!r}.")
    if max_words < 1:
        raise InputError(f"max_words must be 1 or more, got {max_words}.")
    if isinstance(targets, str):
        targets = [targets]
    tally = Tally(lower=lower, special=special, max_words=max_words, targets=targets)
    for one in explanations:
        if isinstance(one, Failure):
            tally.failures += 1
            continue
        if not isinstance(one, Explanation):
            raise InputError(f"explanations must be Explanations of texts, got {type(one).__name__}.")
        group = _group(one, by)
        if group is None:
            tally.ungrouped += 1
        else:
            tally.add(one, group)
    return tally.summary()


def _group(one: Explanation, by: By) -> str | None:
    if by is None:
        return ""
    if callable(by):
        found = by(one)
        return found if found is None else str(found)
    label = one.predicted_label
    return ", ".join(label) or "none" if isinstance(label, tuple) else label


class Tally:
    """Sums by word and column, where a column is a target in a group."""

    def __init__(self, *, lower: bool, special: bool, max_words: int, targets: Sequence[str] | None) -> None:
        self.lower, self.special, self.max_words = lower, special, max_words
        self.targets = None if targets is None else frozenset(targets)
        self.row: dict[str, int] = {}
        self.columns: dict[tuple[str, str], int] = {}
        self.group_texts: dict[str, int] = {}
        self.texts = self.failures = self.ungrouped = self.dropped_words = self.dropped_places = 0
        self.largest_error = 0.0
        self.by_design: set[str] = set()
        self.sums = np.zeros((0, 0, 5))  # [word, column, (places, texts, score, |score|, score^2)]
        self.samples = np.zeros((0, 0, SAMPLES), np.float32)
        self.shown: dict[tuple[int, int], list[Example]] = {}  # the texts of a word and column, the largest last
        self.random = np.random.default_rng(0)
        self.seen_targets: set[str] = set()

    def add(self, one: Explanation, group: str) -> None:
        """One explanation.

        Raises:
            InputError: for norms, or for more columns than a summary has.
        """
        if are_norms(one):
            raise InputError("explanations that hold norms (head=False) belong to no target: explain with the head.")
        if one.source_unit == "token" and (one.texts or one.word_ids is not None):
            one = one.words()
        self.texts += 1
        self.group_texts[group] = self.group_texts.get(group, 0) + 1
        self.largest_error = max(self.largest_error, one.completeness_error)
        self.by_design.update(left_out_of(one.options))
        columns = self._columns(one, group)
        if not columns:
            return
        kept = [k for k in range(len(one)) if self.special or not one.special[k]]
        labels = source_labels(one)
        words = [labels[k].lower() if self.lower else labels[k] for k in kept]
        if not kept:
            return
        if len(self.row) + len(set(words)) > self.max_words:
            self._drop()
        rows = np.array([self.row.setdefault(word, len(self.row)) for word in words])
        self._grow()
        scores = one.scores.double().numpy()[kept]  # [k, c]
        own, places = np.unique(rows, return_inverse=True)  # [w], [k]
        for index in sorted(set(columns.values())):
            wanted = [c for c, column in columns.items() if column == index]
            of_words = np.zeros((len(own), 1))
            np.add.at(of_words, places, scores[:, wanted].sum(1, keepdims=True))
            self._add(own, np.bincount(places, minlength=len(own)), of_words[:, 0], index)
            self._show(one, own, of_words[:, 0], index, {row: kept[k] for k, row in reversed([*enumerate(rows)])})

    def _columns(self, one: Explanation, group: str) -> dict[int, int]:
        """For each column of an explanation that is wanted, its number here."""
        found = {}
        for c, name in enumerate(one.targets):
            name = name.partition(" @ ")[0]
            if len(self.seen_targets) < MAX_COLUMNS:
                self.seen_targets.add(name)
            if self.targets is None or name in self.targets:
                found[c] = self.columns.setdefault((name, group), len(self.columns))
        if len(self.columns) > MAX_COLUMNS:
            raise InputError(
                f"there are more than {MAX_COLUMNS} targets and groups: name those that count by targets=, or use a "
                "by= of fewer groups. Tokens of generated texts are a target each, of which there is no summary."
            )
        return found

    def _add(self, own: np.ndarray, places: np.ndarray, scores: np.ndarray, column: int) -> None:
        before = self.sums[own, column, 1].astype(int)
        added = np.stack([places, np.ones_like(scores), scores, np.abs(scores), scores**2], 1)
        self.sums[own, column] += added
        slot = np.where(before < SAMPLES, before, self.random.integers(0, before + 1))
        chosen = slot < SAMPLES
        self.samples[own[chosen], column, slot[chosen]] = scores[chosen]

    def _show(self, one: Explanation, own: np.ndarray, scores: np.ndarray, column: int, at: dict[int, int]) -> None:
        """Keep the text for the words that matter in it more than in those before."""
        for row, score in zip(own.tolist(), scores.tolist(), strict=True):
            shown = self.shown.setdefault((row, column), [])
            if len(shown) == EXAMPLES and abs(score) <= abs(shown[0].score):
                continue
            bisect.insort(shown, Example.of(one, at[row], score), key=lambda example: abs(example.score))
            del shown[:-EXAMPLES]

    def _grow(self) -> None:
        """Room for all words and columns."""
        words, columns = self.sums.shape[:2]
        if len(self.row) <= words and len(self.columns) <= columns:
            return
        shape = (max(words, 1024, 2 * len(self.row) if len(self.row) > words else 0), max(columns, len(self.columns)))
        for name in ("sums", "samples"):
            old = getattr(self, name)
            new = np.zeros((*shape, old.shape[2]), old.dtype)
            new[:words, :columns] = old
            setattr(self, name, new)

    def _drop(self) -> None:
        """Drop the half of the words that fewest texts have."""
        count = len(self.row)
        texts = self.sums[:count, :, 1].max(1)
        order = np.argsort(-texts, kind="stable")
        kept = np.sort(order[: self.max_words // 2])
        gone = np.sort(order[self.max_words // 2 :])
        self.dropped_words += len(gone)
        self.dropped_places += int(self.sums[gone, :, 0].max(1).sum())
        names = [*self.row]
        new = {int(row): number for number, row in enumerate(kept)}
        self.row = {names[row]: number for row, number in new.items()}
        self.sums, self.samples = self.sums[kept].copy(), self.samples[kept].copy()
        self.shown = {(new[row], column): shown for (row, column), shown in self.shown.items() if row in new}

    def summary(self) -> Summary:
        """What was added up.

        Raises:
            InputError: if targets were named and none of them was met.
        """
        if self.targets is not None and self.texts and not self.columns:
            met = ", ".join(map(repr, sorted(self.seen_targets)[:20]))
            raise InputError(f"targets={sorted(self.targets)}: no explanation has one of them; there are {met}.")
        count, columns = len(self.row), len(self.columns)
        return Summary(
            words=tuple(self.row),
            columns=tuple(self.columns),
            sums=self.sums[:count, :columns].copy(),
            samples=self.samples[:count, :columns].copy(),
            examples={key: tuple(reversed(shown)) for key, shown in self.shown.items()},
            texts=self.texts,
            group_texts=dict(self.group_texts),
            failures=self.failures,
            ungrouped=self.ungrouped,
            left_out=(self.dropped_words, self.dropped_places),
            largest_completeness_error=self.largest_error,
            left_out_by_design=tuple(sorted(self.by_design)),
        )
