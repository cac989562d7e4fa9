"""Question answering: the span of the context that answers the question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError, shown
from ...result.readings import Answer
from ..encoded import Encoded
from ..sources import word_groups
from .columns import (
    Asked,
    Column,
    Direction,
    Outputs,
    Question,
    Term,
    check_count,
    directions,
    index_of,
    with_own_names,
)
from .places import name_of_token, resolve_places, text_of_tokens

#: What the head gives at each token.
START, END = 0, 1
OUTPUTS = ("start", "end")

#: Tokens of an answer where nothing else is asked for: what transformers' pipeline had.
MAX_ANSWER_TOKENS = 15


class QuestionAnswering:
    """The answer is the likeliest span of the context.

    Args:
        cls_id: the id of the token that says that there is no answer; ``None`` for none.
    """

    takes: tuple[str, ...] = ("targets", "at", "max_answer_tokens", "max_seq_len", "doc_stride")

    def __init__(self, cls_id: int | None = None) -> None:
        self.cls_id = cls_id

    def check(self, question: Question, count: int) -> None:
        """Refuse outputs that do not exist, and a length that is no number.

        Raises:
            InputError: names the argument.
        """
        answer_limit(question)
        if question.targets is not None:
            directions(question.targets, _output, OUTPUTS.__getitem__)

    def notice(self, question: Question) -> str | None:
        """An overlap of windows that an answer may be longer than."""
        limit, overlap = answer_limit(question), index_of(question.doc_stride)
        if overlap is None or not 0 <= overlap < limit - 1:
            return None
        return (
            f"doc_stride={overlap}, and an answer may have {limit} tokens (max_answer_tokens): one that lies across "
            f"two windows may be whole in neither; use doc_stride={limit - 1} or more"
        )

    def reads(self, encoded: Encoded, question: Question) -> Sequence[int]:
        """All: the context is searched."""
        context_of(encoded)
        return range(len(encoded))

    def keeps(self, question: Question) -> int | None:
        """The start and the end."""
        return None

    def gives(self, encoded: Encoded, question: Question) -> Sequence[int] | None:
        """None."""
        return None

    def ask(self, encoded: Encoded, outputs: Outputs, question: Question) -> Asked:
        """The start, the end and their sum; of the best span, or of the one that ``at`` names.

        Raises:
            InputError: if there is no context, or for a place that is none.
        """
        limit = answer_limit(question)
        values = outputs.rows(range(len(encoded)))
        if values.shape[1] != len(OUTPUTS):
            raise InputError(
                f"the model gives {values.shape[1]} numbers for each token, where an answer has a start and an end: it "
                "cannot be asked for answers"
            )
        context = context_of(encoded)
        best = self._best(encoded, values, context, limit)
        if question.at is None and question.targets is None:
            return Asked(_columns(_PlaceNames(encoded), *best.tokens), answer=best)
        if question.at is None:
            places: list[tuple[int, ...]] = [(token,) for token in dict.fromkeys(best.tokens)]
        elif encoded.window is not None and encoded.window.places is not None:
            places = list(encoded.window.places)
        else:
            places = [place.tokens for place in resolve_places(question.at, encoded)]
        columns: list[Column] = []
        named = _PlaceNames(encoded)
        for tokens in places:
            columns += _asked(named, tokens, question.targets, limit)
        return Asked(with_own_names(columns), answer=best)

    def _best(self, encoded: Encoded, values: Tensor, context: Sequence[int], limit: int) -> Answer:
        """The likeliest of all spans of the context, none longer than ``limit``."""
        cls, limit = self._no_answer(encoded), min(limit, len(context))
        kept = [*([] if cls is None else [cls]), *context]
        probabilities = values[kept].double().softmax(0)  # [t, 2], among what can be answered
        own = probabilities[len(kept) - len(context) :]
        ends = torch.nn.functional.pad(own[:, END], (0, limit - 1)).unfold(0, limit, 1)  # [start, tokens after it]
        pairs = own[:, START, None] * ends
        start, length = divmod(int(pairs.argmax()), limit)
        best = float(pairs[start, length])
        nothing = None if cls is None else float(probabilities[0].prod())
        if encoded.window is not None and encoded.window.no_answer_score is not None:
            nothing = encoded.window.no_answer_score
        return _answer(encoded, context[start], context[start + length], best, nothing)

    def _no_answer(self, encoded: Encoded) -> int | None:
        """The token that says that there is no answer."""
        ids = encoded.inputs["input_ids"].tolist()
        if self.cls_id is None or self.cls_id not in ids:
            return None
        return ids.index(self.cls_id)


def answer_limit(question: Question) -> int:
    """Of an answer, in tokens."""
    limit = MAX_ANSWER_TOKENS if question.max_answer_tokens is None else question.max_answer_tokens
    check_count("max_answer_tokens", limit)
    return limit


def context_of(encoded: Encoded) -> list[int]:
    """The tokens that an answer may be of: those of the second text.

    Raises:
        InputError: if there is no second text, or nothing of it.
    """
    if len(encoded.texts) == 2 and any(encoded.spans):
        known = [n for n, span in enumerate(encoded.spans) if span and span[0] == 1 and not encoded.special[n]]
    elif len(encoded.texts) == 1:
        raise InputError(
            "a question and its context are a pair of texts: give (question, context) as a tuple; on a command line "
            "the context by --pair, or its column by --pair-column"
        )
    else:
        known = _second_run(encoded.special)
    if not known and len(encoded.texts) == 2 and any(encoded.spans):
        raise InputError("the tokenizer keeps nothing of the context, so there is no answer in it: give another one")
    if not known:
        raise InputError(
            "no token of the context is known: give (question, context) as a tuple of texts, or an encoding of such a "
            "pair with its special tokens"
        )
    return known


def _second_run(special: Sequence[bool]) -> list[int]:
    """Of ids, those between the special tokens after the question."""
    runs: list[list[int]] = [[]]
    for position, flag in enumerate(special):
        if flag:
            runs.append([])
        else:
            runs[-1].append(position)
    found = [run for run in runs if run]
    return found[1] if len(found) == 2 else []


def _answer(encoded: Encoded, first: int, last: int, score: float, nothing: float | None) -> Answer:
    begin, stop = encoded.spans[first], encoded.spans[last]
    if begin is None or stop is None:
        return Answer(text_of_tokens(encoded, range(first, last + 1)), None, None, score, nothing, (first, last))
    text = encoded.texts[begin[0]]
    start, end = begin[1], stop[2]
    start += len(text[start:end]) - len(text[start:end].lstrip())  # byte-level spans may begin with the space
    return Answer(text[start:end], start, end, score, nothing, (first, last))


def _columns(named: _PlaceNames, first: int, last: int) -> tuple[Column, ...]:
    """The start and the end of a span, and their sum: the logarithm of the answer's score, but for a constant."""
    start, end = Term(first, START), Term(last, END)
    names = named(first), named(last)
    span = names[0] if names[0] == names[1] else f"{names[0]} ... {names[1]}"
    return (
        Column(f"start @ {names[0]}", {start: 1.0}),
        Column(f"end @ {names[1]}", {end: 1.0}),
        Column(f"start + end @ {span}", {start: 1.0, end: 1.0}),
    )


def _asked(named: _PlaceNames, tokens: Sequence[int], targets: Any, limit: int) -> Sequence[Column]:
    """What is asked at one place: an answer's columns, or a direction at each of its tokens."""
    if targets is None:
        if len(tokens) > limit:
            raise InputError(
                f"at names an answer of {len(tokens)} tokens, and max_answer_tokens={limit}: raise it, or name a "
                "shorter one"
            )
        return _columns(named, tokens[0], tokens[-1])
    asked: list[Direction] = directions(targets, _output, OUTPUTS.__getitem__)
    return [one.at(token, named(token)) for token in tokens for one in asked]


class _PlaceNames:
    """The word that a token is in, or the token itself where words are not known; words are found once."""

    def __init__(self, encoded: Encoded) -> None:
        self.encoded = encoded
        known = encoded.texts and any(encoded.spans)
        groups = [group for group in word_groups(encoded) if group.span is not None] if known else []
        self.spans = {position: group.span for group in groups for position in group.positions}

    def __call__(self, position: int) -> str:
        span = None if self.encoded.special[position] else self.spans.get(position)
        word = "" if span is None else " ".join(self.encoded.texts[span[0]][span[1] : span[2]].split())
        return word or name_of_token(self.encoded, position)


def _output(key: Any) -> int:
    if isinstance(key, str) and key in OUTPUTS:
        return OUTPUTS.index(key)
    index = index_of(key)
    if index in (START, END):
        return index
    raise InputError(f"targets holds {shown(key)}: at a token of a context there are 'start' (0) and 'end' (1)")
