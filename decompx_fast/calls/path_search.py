"""The search for an order of sources, each of which leaves a text and enters the empty one, of many texts at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..engines.path import TRIED, Search, trials_of
from ..request.encoded import Encoded
from ..request.versions import Players, version
from ..result.explanation import Explanation

#: From versions of texts, of any lengths, to what the model says of each, ``[n, c]`` float64.
Values = Callable[[Sequence[Encoded]], Tensor]


class Searched(NamedTuple):
    """What was found of one text.

    Attributes:
        scores: ``[p, c]`` float64, of what may be gone.
        baseline: ``[c]`` float64, the model's value where nothing is left, the mean over the ways to delete.
        versions: of the text, of which the model was asked.
    """

    scores: Tensor
    baseline: Tensor
    versions: int


@dataclass(frozen=True)
class TextSearch:
    """The searches of one text, one for each column.

    Attributes:
        encoded: the text.
        players: what may be gone.
        whole: ``[c]`` float64, the values of the text.
        empty: ``[m, c]`` float64, of nothing, for each way to delete tokens.
        columns: the searches.
    """

    encoded: Encoded
    players: Players
    whole: Tensor
    empty: Tensor
    columns: list[Search]

    @classmethod
    def of(cls, encoded: Encoded, players: Players, found: Explanation, empty: Tensor) -> TextSearch:
        """At its beginning: nothing has been taken out of the text."""
        scores, whole = players.scores(found.scores.double()), found.target_logits.double()
        starts = zip(scores.T, whole, empty.T, strict=True)
        return cls(encoded, players, whole, empty, [Search(s, v.expand(len(empty)), e) for s, v, e in starts])

    def versions(self, taken: Tensor, fills: Sequence[int | None]) -> list[Encoded]:
        """The text without the sources that were taken, and these alone, for each way to delete tokens."""
        absent = self.players.absent(~taken), self.players.absent(taken)
        return [version(self.encoded, one, fill) for one in absent for fill in fills]

    def searched(self) -> Searched:
        """What was found, after the last source, for which there is no choice."""
        for column, one in enumerate(self.columns):
            one.trials(1)
            one.choose(self.empty[:, column][None], self.whole[column].expand(1, len(self.empty)))
        scores = torch.stack([one.shared() for one in self.columns], dim=1)
        count = len(self.empty) * (1 + 2 * len(self.columns) * trials_of(len(self.players), TRIED))
        return Searched(scores, self.empty.mean(0), count)


def search(
    texts: Sequence[Encoded],
    found: Sequence[Explanation],
    players: Sequence[Players],
    values: Values,
    fills: Sequence[int | None],
) -> list[Searched]:
    """Search every column of each text; all go on together.

    Args:
        texts: them.
        found: what each is explained by: its scores say which sources are tried.
        players: what may be gone of each.
        values: asks the model.
        fills: the ways to delete tokens: what takes the place of each; ``None``: they are removed.
    """
    nothing = [version(one, own.of_token >= 0, fill) for one, own in zip(texts, players, strict=True) for fill in fills]
    empty = values(nothing).unflatten(0, (len(texts), len(fills)))  # [n, m, c]
    searches = [TextSearch.of(*one) for one in zip(texts, players, found, empty, strict=True)]
    for left in range(max(map(len, players)), 1, -1):
        going = [
            (one, column, own.trials(TRIED))
            for one in searches
            if len(one.players) >= left
            for column, own in enumerate(one.columns)
        ]
        rows = [changed for one, _, trials in going for taken in trials for changed in one.versions(taken, fills)]
        said = values(rows).unflatten(0, (-1, 2, len(fills))).split([len(trials) for _, _, trials in going])
        for (one, column, _), of_trials in zip(going, said, strict=True):
            one.columns[column].choose(*of_trials[..., column].unbind(1))
    return [one.searched() for one in searches]
