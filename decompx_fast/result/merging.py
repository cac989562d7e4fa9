"""Sources put together: the tokens of each word."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex

import torch

from ..errors import InputError
from .blocks import ENCODER_SOURCES, encoder_sources
from .display import plural
from .explanation import Explanation
from .kinds import FOCUS, Target
from .pair import PairExplanation, PairSide
from .tokens import readable_tokens
from .words import NO_PLACES, Span, TokenGroup, group_by_number, group_by_word


def merge_words(explanation: Explanation) -> Explanation:
    """Merge the tokens of each word; see :meth:`Explanation.words`.

    Raises:
        InputError: if the sources are no tokens, or the text is not known.
    """
    unit = explanation.source_unit
    if unit == "word":
        return explanation
    if unit != "token":
        raise InputError(f"words() merges tokens, but the sources here are {plural(unit)}: explain with tokens.")
    if not explanation.texts and explanation.word_ids is None:
        raise InputError("words() needs the text, but only token ids were given: explain the text itself.")
    if explanation.word_ids is None and not any(explanation.spans) and not all(explanation.special):
        raise InputError(f"words() cannot merge these tokens: {NO_PLACES}.")
    if explanation.word_ids is not None:
        groups = group_by_number(explanation.word_ids, explanation.spans)
    else:
        groups = group_by_word(explanation.spans, explanation.special, explanation.texts)
    word_of_token = _word_of_token(groups, len(explanation))

    def merge(values: torch.Tensor) -> torch.Tensor:
        merged = torch.zeros(len(groups), len(explanation.targets), dtype=torch.float64)
        return merged.index_add_(0, word_of_token, values.double())  # [word, c]

    return replace(
        explanation,
        tokens=tuple(_group_name(explanation, group.positions, group.span) for group in groups),
        token_ids=None,
        spans=tuple(group.span for group in groups),
        special=tuple(explanation.special[group.positions[0]] for group in groups),
        scores=merge(explanation.scores),
        component_shares={name: merge(value) for name, value in explanation.component_shares.items()},
        source_unit="word",
        stages={},
        word_ids=None,
        metadata=_with_places(explanation, groups, word_of_token.tolist()),
    )


def _word_of_token(groups: Sequence[TokenGroup], count: int) -> torch.Tensor:
    """The number of each token's group, ``[k]``."""
    found = [0] * count
    for index, group in enumerate(groups):
        for position in group.positions:
            found[position] = index
    return torch.tensor(found)


def _with_places(
    explanation: Explanation, groups: Sequence[TokenGroup], word_of_token: Sequence[int]
) -> Mapping[str, Any]:
    """The metadata, with words in place of tokens: how many are an encoder's, and in which the tokens in focus are."""
    found, count, focus = dict(explanation.metadata), encoder_sources(explanation), explanation.metadata.get(FOCUS)
    if count is not None:
        found[ENCODER_SOURCES] = sum(group.positions[0] < count for group in groups)
    if focus is not None:
        found[FOCUS] = {**focus, "sources": [word_of_token[k] for k in focus["sources"]]}
    return found


def single_column(explanation: Explanation, output: Target) -> Explanation:
    """One column by itself; see :meth:`Explanation.at`.

    Raises:
        InputError: if there is no such column.
    """
    count, at_positions = len(explanation.targets), explanation.problem_type == "positions"
    if at_positions and isinstance(output, SupportsIndex) and not isinstance(output, (bool, str)):
        index = operator.index(output)
        if not -count <= index < count:
            raise InputError(f"at({index}) is beyond the columns, of which there are {count}: use 0 to {count - 1}.")
        column = index % count
    else:
        column = explanation.column(output)
    own = slice(column, column + 1)
    values = explanation.target_logits[own]
    bias = None if explanation.bias_token is None else explanation.bias_token[own]
    baseline = None if explanation.baseline_logits is None else explanation.baseline_logits[own]
    sites = explanation.bias_sites
    found = replace(
        explanation,
        scores=explanation.scores[:, own],
        targets=explanation.targets[own],
        target_ids=explanation.target_ids[own],
        target_logits=values,
        bias_token=bias,
        baseline_logits=baseline,
        bias_sites=None if sites is None else tuple(replace(site, value=site.value[own]) for site in sites),
        component_shares={name: value[:, own] for name, value in explanation.component_shares.items()},
        logits=values if at_positions else explanation.logits,
        labels=explanation.targets[own] if at_positions else explanation.labels,
    )
    gap = (found.totals - values.double()).abs().max().item()
    return found if explanation.options.get("head") is False else replace(found, completeness_error=gap)


def merge_words_of_pair(pair: PairExplanation) -> PairExplanation:
    """Merge the tokens of each word of both texts; see :meth:`PairExplanation.words`.

    Raises:
        InputError: if sources are no tokens, or a text is not known.
    """
    a, to_a = _merged_side(pair.a, "a")
    b, to_b = _merged_side(pair.b, "b")
    rows = torch.zeros(len(a), len(pair.b), dtype=torch.float64).index_add_(0, to_a, pair.scores.double())
    scores = torch.zeros(len(a), len(b), dtype=torch.float64).index_add_(1, to_b, rows)
    return replace(pair, a=a, b=b, scores=scores)


def _merged_side(side: PairSide, name: str) -> tuple[PairSide, torch.Tensor]:
    """A side with words as sources, and the word of each of its sources, ``[k]``."""
    if side.source_unit in ("word", "text") or side.picture is not None:
        return side, torch.arange(len(side))
    if side.source_unit != "token":
        raise InputError(
            f"words() merges tokens, but the sources of {name} are {plural(side.source_unit)}: explain tokens."
        )
    if not side.texts:
        raise InputError(f"words() needs the text of {name}, but only token ids were given: give the text itself.")
    if not any(side.spans) and not all(side.special):
        raise InputError(f"words() cannot merge the tokens of {name}: {NO_PLACES}.")
    groups = group_by_word(side.spans, side.special, side.texts)
    word_of_token = _word_of_token(groups, len(side))
    merged = replace(
        side,
        tokens=tuple(_group_name(side, group.positions, group.span) for group in groups),
        token_ids=None,
        spans=tuple(group.span for group in groups),
        special=tuple(side.special[group.positions[0]] for group in groups),
        source_unit="word",
    )
    return merged, word_of_token


def _group_name(explanation: Explanation | PairSide, positions: Sequence[int], span: Span | None) -> str:
    """A word is named by its characters; what has none, or is special, by its token."""
    if span is None or span[1] == span[2] or explanation.special[positions[0]]:
        if len(positions) > 1:  # words of token ids
            return "".join(
                readable_tokens([explanation.tokens[p] for p in positions], [False] * len(positions))
            ).strip()
        return explanation.tokens[positions[0]]
    return explanation.texts[span[0]][span[1] : span[2]]
