"""What follows a prompt, or is written from a text: given, or by the model itself; token by token, never as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from .errors import InputError, OptionError, shown
from .explained_model import ExplainedModel
from .linearize.architectures import unwrap
from .models.tasks import WRITES_ANEW
from .models.writing import decoder_start, greedy_or_given, write
from .request.decoding import with_decoder
from .request.encoded import Encoded
from .request.forms import is_ids, whole_numbers
from .request.output import ids_of_text, with_output
from .request.tasks.columns import Question
from .result.failure import Failure, attempt

#: In the place of an output: none was asked for, and there are no more.
_NOTHING, _NO_MORE = object(), object()


@dataclass(frozen=True)
class Continuation:
    """Adds to each prompt of a call what follows it.

    Attributes:
        explainer: of the model that writes.
        question: ``continuation``: texts or token ids, one for each prompt. ``generate``: how many tokens at most the
            model writes, the likeliest each time, or a ``GenerationConfig``. ``seed``: of one that draws.
        positions: how many tokens the model has positions for; ``None`` for any number.
        outputs: how many tokens there are.
        single: whether the call has one prompt, and ``continuation`` is what follows it.
    """

    explainer: ExplainedModel
    question: Question
    positions: int | None
    outputs: int
    single: bool

    def __post_init__(self) -> None:
        given, generate, seed = self.question.continuation, self.question.generate, self.question.seed
        if given is not None and generate is not None:
            raise OptionError("continuation= says what follows and generate= lets the model write it: give one of them")
        if seed is not None and generate is None:
            raise OptionError(f"seed={seed!r} is of what the model draws: give generate= a configuration that samples")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
            raise OptionError(f"seed={seed!r}: use a whole number from 0 to 2**63 - 1")
        if generate is not None:
            greedy_or_given(unwrap(self.explainer.model), generate)
        if given is not None and not self.single and (isinstance(given, str) or not hasattr(given, "__iter__")):
            raise InputError(f"continuation is {shown(given)} for a list of prompts: give a list with one for each")

    def follow(self, prompts: Iterator[Encoded | Failure], *, skip: bool) -> Iterator[Encoded | Failure]:
        """Each prompt with what follows it; with ``skip``, a failure in the place of one that has no such output.

        Raises:
            InputError: for a prompt that is a pair, for too long an output, or if there are not as many as prompts.
        """
        given = None
        if self.question.continuation is not None:
            given = iter([self.question.continuation] if self.single else self.question.continuation)
        for prompt in prompts:
            one = _NOTHING
            if given is not None:
                one = next(given, _NO_MORE)
                if one is _NO_MORE:
                    raise InputError("continuation holds fewer outputs than there are prompts: give one for each")
            if isinstance(prompt, Failure):
                yield prompt
            else:
                yield attempt(partial(self._followed, prompt, one), prompt.number, skip=skip)
        if given is not None and next(given, _NO_MORE) is not _NO_MORE:
            raise InputError("continuation holds more outputs than there are prompts: give one for each")

    def _followed(self, prompt: Encoded, given: Any) -> Encoded:
        where = f"input {prompt.number}"
        if len(prompt.texts) > 1:
            raise InputError(f"{where} is a pair of texts: a language model goes on from one, so join them first")
        self._check_length(len(prompt), where)
        if given is not _NOTHING:
            return self._joined(prompt, self._ids(given, where), where)
        if self.question.generate is not None:
            e = self.explainer
            read, asked = self._read(prompt, where), self.question.generate
            written = write(unwrap(e.model), e.copies, read, asked, self.question.seed, self.positions)
            if not written.ids:
                raise InputError(f"the model wrote nothing after {where}: let it write at least one token")
            if written.is_cut and self.positions is not None:
                self._check_length(self.positions + 1, f"the output of {where}" if self.anew else where)
            return self._joined(replace(prompt, about={**prompt.about, **written.about}), written.ids, where)
        return self._joined(prompt, [], where) if self.anew else prompt

    @property
    def anew(self) -> bool:
        """Whether a decoder writes a text of its own from what an encoder reads."""
        return self.explainer.task == WRITES_ANEW

    def _read(self, prompt: Encoded, where: str) -> dict[str, Tensor]:
        """What the model reads of a prompt while it writes, where it is; its positions are counted anew each time."""
        found = {name: values.to(self.explainer.device) for name, values in prompt.inputs.items()}
        positions = found.pop("position_ids", None)
        if positions is not None and positions.tolist() != list(range(len(prompt))):
            raise InputError(
                f"{where} holds position_ids other than 0, 1, ..., and generate= lets the model write, which counts "
                "them itself: leave them out, or give what follows as continuation="
            )
        return found

    def _ids(self, given: Any, where: str) -> list[int]:
        """The tokens of an output that was given."""
        if isinstance(given, str):
            found = ids_of_text(self.explainer.tokenizer, given, anew=self.anew)
        elif is_ids(given):
            found = [int(number) for number in whole_numbers(given, f"the continuation of {where}").tolist()]
        else:
            raise InputError(f"the continuation of {where} is {shown(given)}: give a text, or token ids")
        if not found:
            raise InputError(f"the continuation of {where} has no tokens: leave it out for the next token")
        wrong = [one for one in found if not 0 <= one < self.outputs]
        if wrong:
            raise InputError(
                f"the continuation of {where} holds the token {wrong[0]}, and the model has 0 to {self.outputs - 1}"
            )
        return found

    def _joined(self, prompt: Encoded, ids: Sequence[int], where: str) -> Encoded:
        if self.anew:
            start = decoder_start(unwrap(self.explainer.model), self.question.generate)
            self._check_length(len(start) + max(len(ids) - 1, 0), f"the output of {where}")
            return with_decoder(prompt, start, ids, self.explainer.tokenizer)
        self._check_length(len(prompt) + len(ids) - 1, where)
        return with_output(prompt, ids, self.explainer.tokenizer)

    def _check_length(self, length: int, where: str) -> None:
        if self.positions is not None and length > self.positions:
            raise InputError(
                f"{where} has {length} tokens with its output, and the model has positions for {self.positions}: "
                "shorten the prompt at its beginning, or the output"
            )
