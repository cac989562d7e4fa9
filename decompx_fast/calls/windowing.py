"""Questions about contexts that are longer than the model: read in windows, of which one is explained.

As transformers' pipeline did: neighbouring windows overlap, each has the whole question, and the answer is the span
with the largest score of all windows. An answer is explained where it was found: the sources are its window's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from ..errors import InputError, OptionError
from ..linearize.linearization import linearize
from ..linearize.model_run import plain_mode
from ..request.encoded import Encoded
from ..request.tasks.columns import Question, check_count, index_of
from ..request.tasks.places import resolve_places
from ..request.tasks.question_answering import answer_limit, context_of
from ..request.windows import Window, in_window, windows
from ..result.failure import Failure, attempt
from ..result.readings import Answer
from .asking import AskedOf, Asker

if TYPE_CHECKING:
    from .explained_model import ExplainedModel

#: Tokens that neighbouring windows share: what transformers' pipeline had.
DOC_STRIDE = 128

#: Windows of so many tokens in all are run together, whose states are held meanwhile.
TOGETHER = 4096


@dataclass(frozen=True)
class LongContexts:
    """Puts one of its windows in the place of each input that is longer than the model.

    Attributes:
        explainer: of the model that answers.
        asker: asks it, with the user's question. ``max_seq_len``: tokens of a window at most; ``None``: as many as the
            model has positions. ``doc_stride``: tokens of the context that neighbours share; ``None``:
            :data:`DOC_STRIDE`, or half of what a window has of the context, but never so few that an answer could be
            whole in none.
        positions: how many tokens the model has positions for; ``None`` for any number.
        cut: whether the user wants longer inputs cut instead.
    """

    explainer: ExplainedModel
    asker: Asker
    positions: int | None
    cut: bool = False

    def __post_init__(self) -> None:
        size, overlap = self.question.max_seq_len, self.question.doc_stride
        for name, value in (("max_seq_len", size), ("doc_stride", overlap)):
            if self.cut and value is not None:
                raise OptionError(
                    f"truncate=True cuts what is too long, and {name}={value!r} is of the windows in which all of it "
                    "is read: give one of them"
                )
        if size is not None:
            check_count("max_seq_len", size)
            if self.positions is not None and size > self.positions:
                raise OptionError(
                    f"max_seq_len={size}, and the model has positions for {self.positions}: use at most as many, or "
                    "leave it out"
                )
        if overlap is not None and (index_of(overlap) is None or overlap < 0):
            raise OptionError(f"doc_stride={overlap!r}: use a whole number from 0, the tokens that two windows share")

    @property
    def question(self) -> Question:
        """What the user asks."""
        return self.asker.question

    @property
    def size(self) -> int | None:
        """Tokens of a window at most; ``None``: inputs are read whole, however long they are."""
        return self.positions if self.question.max_seq_len is None else self.question.max_seq_len

    def follow(self, inputs: Iterator[Encoded | Failure], *, skip: bool) -> Iterator[Encoded | Failure]:
        """Each input, or the window of it that is explained; with ``skip``, a failure where there is none.

        Raises:
            InputError: for a question that leaves no room for a context, or for places that lie in no window together.
        """
        for one in inputs:
            found = one
            if not isinstance(one, Failure) and self.size is not None and len(one) > self.size:
                found = attempt(partial(self._window, one, self.size), one.number, skip=skip)
            yield found

    def _window(self, encoded: Encoded, size: int) -> Encoded:
        try:
            known = context_of(encoded)
            context = range(known[0], known[-1] + 1)
            overlap = self._overlap(len(encoded) - len(context), size)
            kept = windows(context, len(encoded), size, overlap)
            if self.question.at is not None:
                return self._named(encoded, context, kept)
        except InputError as error:
            raise type(error)(f"input {encoded.number}: {error}") from error
        return self._best(encoded, kept)

    def _overlap(self, fixed: int, size: int) -> int:
        """Tokens that windows share, of which ``fixed`` are the question's and special ones.

        Raises:
            InputError: if a window has no room for a step, or for an answer that may be so long.
        """
        room, limit = size - fixed, answer_limit(self.question)
        shorter = "shorten the question" + (", or raise max_seq_len" if size != self.positions else "")
        if room < 1:
            raise InputError(
                f"the question and special tokens take {fixed} of the {size} tokens of a window, and leave none for "
                f"the context: {shorter}"
            )
        if self.question.max_answer_tokens is not None and limit > room:
            raise InputError(
                f"max_answer_tokens={limit}, and a window has room for {room} tokens of the context beside the "
                f"question: use at most {room}, or {shorter}"
            )
        overlap = self.question.doc_stride
        if overlap is None:
            return max(min(DOC_STRIDE, room // 2), min(limit, room) - 1)
        if overlap >= room:
            raise InputError(
                f"doc_stride={overlap}, and a window has room for {room} tokens of the context beside the question, so "
                f"that it would not get on: use less than {room}, or {shorter}"
            )
        return overlap

    def _named(self, encoded: Encoded, context: range, kept: Sequence[Sequence[int]]) -> Encoded:
        """The window that holds what ``at=`` names, of several the one with most of the context on both sides."""
        at = self.question.at
        for item in at if isinstance(at, list) else [at]:
            if index_of(item) is not None:
                raise InputError(
                    f"at={item!r} counts tokens, and the input is read in {len(kept)} windows, each of which has its "
                    "own: name (text, start, end) in characters, a Word, or a string that occurs once"
                )
        places = [place.tokens for place in resolve_places(at, encoded)]
        named = [token for tokens in places for token in tokens]
        room = {number: _room(keep, context, named) for number, keep in enumerate(kept)}
        number = max(room, key=room.__getitem__)
        if room[number] < 0:
            longest = max(map(len, places))
            size = max(len(keep) for keep in kept) - len(encoded) + len(context)
            if longest > size:
                raise InputError(
                    f"at names an answer of {longest} tokens, and a window has room for {size} of the context: name a "
                    "shorter one"
                )
            raise InputError(
                f"no window holds all of what at names ({len(kept)} windows of {size} tokens of the context): name "
                "places that are nearer to each other, or ask for each in a call of its own"
            )
        place = {token: n for n, token in enumerate(kept[number])}
        own = tuple(tuple(place[token] for token in tokens) for tokens in places)
        return in_window(encoded, Window(number, len(kept), tuple(kept[number]), len(encoded), places=own))

    def _best(self, encoded: Encoded, kept: Sequence[Sequence[int]]) -> Encoded:
        """The window with the best answer of all."""
        every = [Window(number, len(kept), tuple(keep), len(encoded)) for number, keep in enumerate(kept)]
        parts = [in_window(encoded, window) for window in every]
        answers: list[Answer] = []
        for length, alike in groupby(parts, key=len):
            several, size = list(alike), max(TOGETHER // length, 1)
            for start in range(0, len(several), size):
                answers += self._answers(several[start : start + size])
        best = max(range(len(parts)), key=lambda number: answers[number].score)
        least = min((one.no_answer_score for one in answers if one.no_answer_score is not None), default=None)
        return in_window(encoded, replace(every[best], no_answer_score=least))

    def _answers(self, batch: Sequence[Encoded]) -> list[Answer]:
        """The best answer of each of several equally long windows."""
        e, asker = self.explainer, replace(self.asker, question=replace(self.question, at=None, targets=None))
        inputs = {name: torch.stack([one.inputs[name] for one in batch]).to(e.device) for name in batch[0].inputs}
        with plain_mode(e.device):
            model = linearize(e.model, inputs, copies=e.copies)
            # A decoder that reads the text again has the outputs after the encoder's tokens.
            asked_of = AskedOf(batch, 0 if model.encoder is None else model.encoder.tokens)
            asked = asker.ask(batch, asker.reads(batch), asked_of.outputs_of(model))
        return [one.answer for one in asked if one.answer is not None]


def _room(keep: Sequence[int], context: range, named: Sequence[int]) -> int:
    """How many tokens of the context a window has on the smaller side of what is named; -1 if it has not all of it."""
    inside = set(keep)
    if not inside.issuperset(named):
        return -1
    own = [token for token in keep if token in context]
    there = [token for token in named if token in context]
    return min(min(there) - own[0], own[-1] - max(there)) if there else 0
