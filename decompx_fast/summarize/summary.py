"""A summary of many explanations: statistics of words, their order, and contrasts between groups or models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import InputError
from ..result.explanation import Explanation

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from matplotlib.axes import Axes
    from rich.console import Console

Order = Literal["sum", "mean", "magnitude", "count"]
ORDERS: tuple[Order, ...] = ("sum", "mean", "magnitude", "count")

#: Characters before and behind a word in its example.
_AROUND = 60


@dataclass(frozen=True)
class Example:
    """A text in which a word matters.

    Attributes:
        score: of the word in it.
        before, word, after: the text around one of its places; cut where it is long.
        place: the name of the input, where it has one.
    """

    score: float
    before: str
    word: str
    after: str
    place: str

    @classmethod
    def of(cls, one: Explanation, position: int, score: float) -> Example:
        """The place of a source in its text."""
        span, place = one.spans[position], one.metadata.get("id", one.metadata.get("input", ""))
        if span is None:
            return cls(score, "", one.tokens[position], "", str(place))
        text = one.texts[span[0]]
        start, end = max(0, span[1] - _AROUND), min(len(text), span[2] + _AROUND)
        before = ("\u2026" if start else "") + text[start : span[1]]
        after = text[span[2] : end] + ("\u2026" if end < len(text) else "")
        return cls(score, before, text[span[1] : span[2]], after, str(place))


@dataclass(frozen=True)
class Word:
    """What one word adds to a target.

    Attributes:
        mean: of its score, over the texts that have it, in logit units.
        magnitude: the mean ``|score|``.
        deviation: the standard deviation of its score between texts; 0 for a word of one text.
        sum: of its scores, over all texts.
        count: its places.
        documents: the texts that have it.
    """

    word: str
    target: str
    group: str
    mean: float
    magnitude: float
    deviation: float
    sum: float
    count: int
    documents: int

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite for a word of one text."""
        return self.deviation / math.sqrt(self.documents) if self.documents > 1 else math.inf


@dataclass(frozen=True)
class Contrast:
    """How much more a word adds in one group, or by one model, than in another: ``first.mean - second.mean``.

    Attributes:
        z: the difference over its standard error, which says how likely it is chance.
    """

    word: str
    target: str
    difference: float
    z: float
    first: Word
    second: Word


@dataclass(frozen=True, eq=False)
class Summary:
    """The words of many explanations; made by :func:`decompx_fast.summarize.summarize`.

    Attributes:
        words: all of them, as rows.
        columns: ``(target, group)`` of each column; the group is empty where none are told apart.
        sums: ``[word, column, 5]``: places, texts, and the sums of score, ``|score|`` and ``score ** 2`` over texts.
        samples: ``[word, column, n]``, scores of some texts at random, for a plot of their spread.
        examples: for a word and column the texts where it matters most.
        texts: explanations that are in it.
        group_texts: how many of each group.
        failures: inputs that were not explained.
        ungrouped: explanations that ``by`` gave no group.
        left_out: words that were dropped since there are too many, and their places.
        largest_completeness_error: of all explanations, in logit units.
        left_out_by_design: what options keep out of the scores of some, such as ``the biases`` of ``bias="none"``;
            the largest error is then what that adds to a target.
    """

    words: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    sums: np.ndarray
    samples: np.ndarray
    examples: Mapping[tuple[int, int], tuple[Example, ...]]
    texts: int
    group_texts: Mapping[str, int]
    failures: int
    ungrouped: int
    left_out: tuple[int, int]
    largest_completeness_error: float
    left_out_by_design: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        targets = ", ".join(map(repr, self.targets[:5])) + (", ..." if len(self.targets) > 5 else "")
        return f"Summary({self.texts:,} texts, {len(self):,} words, targets=[{targets}])"

    def _repr_html_(self) -> str:
        return self.to_html()

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets, in the order in which they were met."""
        return tuple(dict.fromkeys(target for target, _ in self.columns))

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups."""
        return tuple(dict.fromkeys(group for _, group in self.columns))

    def top(
        self,
        n: int = 10,
        target: str | None = None,
        *,
        group: str | None = None,
        by: Order = "sum",
        sign: Literal["both", "positive", "negative"] = "both",
        min_documents: int = 1,
    ) -> list[Word]:
        """The words that matter most for a target.

        Args:
            n: at most so many.
            target: its name; None: the last, which of two classes is mostly the positive one.
            group: of that group alone; None: of all texts, where no groups are told apart, or all groups together.
            by: the order: ``sum`` or ``mean`` of scores, by their magnitude; mean ``magnitude``; ``count`` of places.
            sign: only words whose mean speaks ``positive``, or ``negative``, of the target.
            min_documents: only words that so many texts have.

        Raises:
            InputError: for another value of an argument.
        """
        if n < 0:
            raise InputError(f"n must be 0 or more, got {n}.")
        if by not in ORDERS:
            raise InputError(f"by must be one of {', '.join(map(repr, ORDERS))}, got {by!r}.")
        if sign not in ("both", "positive", "negative"):
            raise InputError(f"sign must be 'both', 'positive' or 'negative', got {sign!r}.")
        places, texts, total, size, _ = np.moveaxis(self._sums(target, group), -1, 0)  # [word] each
        keys = {"sum": np.abs(total), "count": places}
        with np.errstate(invalid="ignore", divide="ignore"):
            keys |= {"mean": np.abs(total / texts), "magnitude": size / texts}
        wanted = texts >= max(1, min_documents)
        wanted &= (total > 0) if sign == "positive" else (total < 0) if sign == "negative" else True
        rows = np.flatnonzero(wanted)
        order = rows[np.argsort(-keys[by][rows], kind="stable")[:n]]
        return [self._word(int(row), target, group) for row in order]

    def word(self, word: str, target: str | None = None, *, group: str | None = None) -> Word:
        """One word.

        Raises:
            InputError: if no text has it, or there is no such target or group.
        """
        found = self._word(self._row(word), target, group)
        if not found.documents:
            raise InputError(f"no text of the group {group!r} has the word {word!r}.")
        return found

    def examples_of(self, word: str, target: str | None = None, *, group: str | None = None) -> list[Example]:
        """The texts in which a word matters most for a target, the largest ``|score|`` first."""
        row, columns = self._row(word), self._columns(target, group)
        found = [example for column in columns for example in self.examples.get((row, column), ())]
        return sorted(found, key=lambda example: -abs(example.score))

    def contrasts(
        self, first: str, second: str, target: str | None = None, *, n: int = 10, min_documents: int = 5
    ) -> list[Contrast]:
        """The words whose scores differ most between two groups, by the difference over its standard error.

        Args:
            first: a group, as ``"right"``.
            second: another, as ``"wrong"``.
            target: as for :meth:`top`.
            n: at most so many.
            min_documents: only words that so many texts of each have.
        """
        return _contrasts(self, first, self, second, target, n, min_documents)

    def to_dataframe(self) -> pd.DataFrame:
        """A pandas table with a row for each word, target and group.

        Raises:
            MissingPackageError: if pandas is not installed.
        """
        from ..optional import import_optional

        pandas = import_optional("pandas", "to_dataframe()")
        rows = [
            vars(self._word(row, target, group))
            for target, group in self.columns
            for row in np.flatnonzero(self._sums(target, group)[:, 1]).tolist()
        ]
        return pandas.DataFrame(rows, columns=list(Word.__dataclass_fields__))

    def to_dict(self, n: int = 100, *, by: Order = "sum", min_documents: int = 1) -> dict[str, Any]:
        """The words that matter most for each target and group, as plain values for JSON.

        Args:
            n: of each at most so many.
            by: as for :meth:`top`.
            min_documents: as for :meth:`top`.
        """
        tops = (self.top(n, target, group=group, by=by, min_documents=min_documents) for target, group in self.columns)
        return {
            "texts": self.texts,
            "groups": dict(self.group_texts),
            "failures": self.failures,
            "ungrouped": self.ungrouped,
            "left_out": {"words": self.left_out[0], "places": self.left_out[1]},
            "largest_completeness_error": self.largest_completeness_error,
            "left_out_by_design": [*self.left_out_by_design],
            "words": [vars(word) for top in tops for word in top],
        }

    def show(self, n: int = 10, *, by: Order = "sum", min_documents: int = 1, console: Console | None = None) -> None:
        """Print the words for and against each target to the terminal."""
        from .view import show

        show(self, n, by=by, min_documents=min_documents, console=console)

    def to_html(self, n: int = 30, *, by: Order = "sum", min_documents: int = 1, full: bool = False) -> str:
        """The words of each target with their spread, and the texts of each word, as HTML without scripts.

        Args:
            n: of each target at most so many for it and so many against it.
            by: as for :meth:`top`.
            min_documents: as for :meth:`top`.
            full: a document by itself.
        """
        from .view import page

        return page(self, n, by=by, min_documents=min_documents, full=full)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        target: str | None = None,
        group: str | None = None,
        n: int = 20,
        by: Order = "sum",
        kind: Literal["bar", "beeswarm"] = "bar",
        min_documents: int = 1,
    ) -> Axes:
        """Draw the words that matter most: bars of the mean score, or a point for each of some texts.

        Args:
            ax: where to draw; a new figure if None.
            target: as for :meth:`top`, as are ``group``, ``n``, ``by`` and ``min_documents``.
            kind: ``"bar"``: the mean, with the standard deviation between texts; ``"beeswarm"``: scores of some texts.

        Raises:
            MissingPackageError: if matplotlib is not installed.
            InputError: for another ``kind``.
        """
        from .view import plot

        return plot(self, ax, kind=kind, words=self.top(n, target, group=group, by=by, min_documents=min_documents))

    def _columns(self, target: str | None, group: str | None) -> list[int]:
        if not self.columns:
            raise InputError("this summary is empty: no text was explained.")
        target = self.targets[-1] if target is None else target
        if target not in self.targets:
            raise InputError(
                f"target {target!r} is not in the summary: there are {', '.join(map(repr, self.targets))}."
            )
        if group is not None and group not in self.groups:
            raise InputError(f"group {group!r} is not in the summary: there are {', '.join(map(repr, self.groups))}.")
        return [
            index for index, (name, of) in enumerate(self.columns) if name == target and (group is None or of == group)
        ]

    def _sums(self, target: str | None, group: str | None) -> np.ndarray:
        """``[word, 5]``, of all columns together that are asked for."""
        return self.sums[:, self._columns(target, group)].sum(1)

    def _row(self, word: str) -> int:
        for name in (word, word.lower()):
            if name in self.words:
                return self.words.index(name)
        raise InputError(f"no text has the word {word!r}.")

    def _word(self, row: int, target: str | None, group: str | None) -> Word:
        columns = self._columns(target, group)
        places, texts, total, size, square = self.sums[row, columns].sum(0).tolist()
        mean = total / texts if texts else math.nan
        variance = max(0.0, square - total * mean) / (texts - 1) if texts > 1 else 0.0
        return Word(
            word=self.words[row],
            target=self.columns[columns[0]][0] if columns else str(target),
            group="" if group is None else group,
            mean=mean,
            magnitude=size / texts if texts else math.nan,
            deviation=math.sqrt(variance),
            sum=total,
            count=int(places),
            documents=int(texts),
        )

    def _scores(self, word: Word) -> np.ndarray:
        """Scores of some texts, ``[n]``."""
        row = self._row(word.word)
        found = []
        for column in self._columns(word.target, word.group or None):
            count = min(int(self.sums[row, column, 1]), self.samples.shape[2])
            found.append(self.samples[row, column, :count])
        return np.concatenate(found)


def contrast(
    a: Summary, b: Summary, target: str | None = None, *, n: int = 10, min_documents: int = 5
) -> list[Contrast]:
    """The words whose scores differ most between two summaries, such as of two models on the same texts.

    Args:
        a: the first.
        b: the second, whose means are subtracted.
        target: as for :meth:`Summary.top`; both must have it.
        n: at most so many.
        min_documents: only words that so many texts of each have.

    Returns:
        By the difference over its standard error, the largest first.
    """
    return _contrasts(a, None, b, None, target, n, min_documents)


def _contrasts(
    a: Summary, of_a: str | None, b: Summary, of_b: str | None, target: str | None, n: int, min_documents: int
) -> list[Contrast]:
    if n < 0:
        raise InputError(f"n must be 0 or more, got {n}.")
    if min_documents < 2:
        raise InputError(f"min_documents must be 2 or more, as a spread needs, got {min_documents}.")
    names = (a.targets[-1] if a.targets else "") if target is None else target
    texts_a, texts_b = a._sums(names, of_a)[:, 1], b._sums(names, of_b)[:, 1]
    in_b = {word: row for row, word in enumerate(b.words)}
    found = []
    for row in np.flatnonzero(texts_a >= min_documents).tolist():
        other = in_b.get(a.words[row])
        if other is None or texts_b[other] < min_documents:
            continue
        one, two = a._word(row, names, of_a), b._word(other, names, of_b)
        gap, error = one.mean - two.mean, math.hypot(one.error, two.error)
        found.append(Contrast(one.word, names, gap, gap / error if error else math.copysign(math.inf, gap), one, two))
    return sorted(found, key=lambda item: -abs(item.z))[:n]
