"""Causal language models: what made each token of an output likely, from the prompt and the output before it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...errors import InputError, OptionError, shown
from ...result.readings import Prediction
from ..encoded import Encoded
from .columns import Asked, Column, Direction, Outputs, Question, Term, check_count, directions, with_own_names
from .vocabulary import Vocabulary

#: What ``answer=`` may be.
ANSWERS = ("tokens", "sum", "both")

#: The index of the mean of all outputs, as engines have it.
MEAN = -1


@dataclass(frozen=True)
class _Output:
    """A token of the output: its place in it, from 0, the position whose state says it, its id and how it is read."""

    place: int
    position: int
    token: int
    name: str


class TextGeneration:
    """A token is read at the position before it.

    Args:
        tokenizer: finds the ids of tokens; without one, targets are ids.
    """

    takes: tuple[str, ...] = ("targets", "at", "top_k", "continuation", "generate", "seed", "contrast", "answer")

    def __init__(self, tokenizer: Any) -> None:
        self.vocabulary = Vocabulary(tokenizer)

    def check(self, question: Question, count: int) -> None:
        """Refuse another ``contrast`` or ``answer``, ones that do not fit together, targets that are no single token,
        and a ``top_k`` that is no number.

        Raises:
            InputError: names the argument.
        """
        if question.contrast not in (None, "mean"):
            raise OptionError(
                f"contrast={question.contrast!r}: use 'mean', against the mean of all tokens; against one of them, "
                'give a difference as targets={" Paris": 1, " London": -1}'
            )
        if question.answer not in (None, *ANSWERS):
            raise OptionError(f"answer={question.answer!r}: use one of {', '.join(map(repr, ANSWERS))}")
        whole = question.answer in ("sum", "both")
        if whole and (question.targets is not None or question.top_k is not None):
            raise OptionError(
                f"answer={question.answer!r} adds up the tokens of the output, and targets= and top_k= name others: "
                "leave one of them out"
            )
        self.keeps(question)
        if question.targets is not None:
            directions(question.targets, partial(self._token, count=count), self.vocabulary.name)

    def notice(self, question: Question) -> str | None:
        """Nothing."""
        return None

    def reads(self, encoded: Encoded, question: Question) -> Sequence[int]:
        """The position before each token of the output that is asked for."""
        count = max(1, len(encoded.continues))
        return [len(encoded) - count + place for place in _places(question.at, count)]

    def keeps(self, question: Question) -> int | None:
        """The likeliest."""
        count = 1 if question.top_k is None else question.top_k
        check_count("top_k", count)
        return count

    def gives(self, encoded: Encoded, question: Question) -> Sequence[int] | None:
        """The tokens of the output, whose probabilities are looked at; ``None``: the likeliest."""
        places = _places(question.at, max(1, len(encoded.continues)))
        return [encoded.continues[place] for place in places] if encoded.continues else None

    def ask(self, encoded: Encoded, outputs: Outputs, question: Question) -> Asked:
        """A column of each token of the output, or of ``targets`` at its place.

        Raises:
            InputError: for a target that is no single token.
        """
        said = self._said(encoded, outputs, question)
        predictions = []
        for one in said:
            score = outputs.probability(one.position, one.token)
            predictions.append(Prediction(one.name, score, one.position, one.token, f"output {one.place + 1}"))
        columns: list[Column] = []
        if question.answer != "sum":
            for one in said:
                place = f" @ output {one.place + 1}" if len(said) > 1 and _names_others(question) else ""
                asked = [_against(each, question.contrast) for each in self._directions(one, outputs, question)]
                columns += [Column(f"{each.name}{place}", _terms(each.weights, one.position)) for each in asked]
        if question.answer in ("sum", "both"):
            whole: dict[Term, float] = {}
            for one in said:
                each = _against(Direction("answer", {one.token: 1.0}), question.contrast)
                whole |= _terms(each.weights, one.position)
            columns.append(Column("answer" if question.contrast is None else "answer - mean", whole))
        return Asked(with_own_names(columns), predictions=tuple(predictions))

    def _said(self, encoded: Encoded, outputs: Outputs, question: Question) -> list[_Output]:
        positions = self.reads(encoded, question)
        given = self.gives(encoded, question)
        tokens = outputs.best(positions, 1).outputs[:, 0].tolist() if given is None else given
        places = _places(question.at, max(1, len(encoded.continues)))
        return [_Output(*one) for one in zip(places, positions, tokens, self.vocabulary.names(tokens), strict=True)]

    def _directions(self, one: _Output, outputs: Outputs, question: Question) -> list[Direction]:
        if question.targets is not None:
            return directions(question.targets, partial(self._token, count=outputs.count), self.vocabulary.name)
        if question.top_k is None:
            return [Direction(one.name, {one.token: 1.0})]
        found = outputs.best([one.position], min(question.top_k, outputs.count)).outputs[0].tolist()
        names = self.vocabulary.own_names(found)
        return [Direction(name, {output: 1.0}) for name, output in zip(names, found, strict=True)]

    def _token(self, key: Any, *, count: int) -> int:
        return self.vocabulary.token(key, count=count, after_space=False, place="an output")


def _names_others(question: Question) -> bool:
    """Whether columns are of other tokens than those of the output."""
    return question.targets is not None or question.top_k is not None


def _terms(weights: Mapping[int, float], position: int) -> dict[Term, float]:
    return {Term(position, output): weight for output, weight in weights.items()}


def _against(direction: Direction, contrast: str | None) -> Direction:
    """Less the mean of all outputs, as many times as the weights add up to; a difference is free of it already."""
    total = sum(direction.weights.values())
    if contrast is None or abs(total) < 1e-12:
        return direction
    size = "" if total in (1, -1) else f"{abs(total):g} "
    name = f"{direction.name} {'-' if total > 0 else '+'} {size}mean"
    return Direction(name, {**direction.weights, MEAN: -total})


def _places(at: Any, count: int) -> list[int]:
    """Which tokens of an output of ``count``, by ``at``: numbers from 0, or from -1 backwards."""
    if at is None:
        return list(range(count))
    items = list(at) if isinstance(at, (list, tuple, range)) else [at]
    found: dict[int, None] = {}
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise InputError(
                f"at={shown(item)}: of a language model, name tokens of the output by number, from 0, or give a list "
                "of such numbers"
            )
        index = operator.index(item)
        if not -count <= index < count:
            raise InputError(f"at={index} is beyond the output, which has {count} tokens: use 0 to {count - 1}")
        found[index % count] = None
    if not found:
        raise InputError("at is an empty list: name a token of the output by number, from 0, or leave it out")
    return list(found)
