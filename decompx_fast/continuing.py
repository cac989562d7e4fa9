"""What follows a prompt: given by the user, or written by the model; joined to it token by token, never as text."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .errors import InputError, OptionError, shown
from .linearize.linearization import unwrap
from .linearize.model_run import plain_mode, undisturbed
from .request.encoding import Encoded
from .request.forms import is_ids, whole_numbers
from .request.output import ids_of_text, with_output
from .request.tasks.columns import Question, check_count
from .result.failure import OF_AN_INPUT, Failure

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from .explainer import DecompX


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

    explainer: DecompX
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
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise OptionError(f"seed={seed!r}: use a whole number")
        if generate is not None:
            self._configuration()
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
            one = None
            if given is not None:
                one = next(given, None)
                if one is None:
                    raise InputError("continuation holds fewer outputs than there are prompts: give one for each")
            found: Encoded | Failure = prompt
            if not isinstance(prompt, Failure):
                try:
                    found = self._followed(prompt, one)
                except OF_AN_INPUT as error:
                    if not skip:
                        raise
                    found = Failure.of(prompt.number, error)
            yield found
        if given is not None and next(given, None) is not None:
            raise InputError("continuation holds more outputs than there are prompts: give one for each")

    def _followed(self, prompt: Encoded, given: Any) -> Encoded:
        where = f"input {prompt.number}"
        if len(prompt.texts) > 1:
            raise InputError(f"{where} is a pair of texts: a language model goes on from one, so join them first")
        self._check_length(len(prompt), where)
        if given is not None:
            return self._joined(prompt, self._ids(given, where), where)
        if self.question.generate is not None:
            ids, about = self._write(prompt)
            return self._joined(replace(prompt, about={**prompt.about, **about}), ids, where)
        return prompt

    def _ids(self, given: Any, where: str) -> list[int]:
        """The tokens of an output that was given."""
        if isinstance(given, str):
            found = ids_of_text(self.explainer.tokenizer, given)
        elif is_ids(given):
            found = [int(number) for number in whole_numbers(given, f"the continuation of {where}").tolist()]
        else:
            raise InputError(f"the continuation of {where} is {shown(given)}: give a text, or token ids")
        if not found:
            raise InputError(f"the continuation of {where} has no tokens: give a text, or leave it out for the next one")
        wrong = [one for one in found if not 0 <= one < self.outputs]
        if wrong:
            raise InputError(
                f"the continuation of {where} holds the token {wrong[0]}, and the model has 0 to {self.outputs - 1}"
            )
        return found

    def _joined(self, prompt: Encoded, ids: Sequence[int], where: str) -> Encoded:
        self._check_length(len(prompt) + len(ids) - 1, where)
        return with_output(prompt, ids, self.explainer.tokenizer)

    def _check_length(self, length: int, where: str) -> None:
        if self.positions is not None and length > self.positions:
            raise InputError(
                f"{where} has {length} tokens with its output, and the model has positions for {self.positions}: "
                "shorten the prompt at its beginning, or the output"
            )

    def _configuration(self) -> GenerationConfig:
        """How the model writes: greedily unless a configuration says otherwise."""
        from transformers import GenerationConfig

        asked, own = self.question.generate, getattr(unwrap(self.explainer.model), "generation_config", None)
        if own is None or not hasattr(unwrap(self.explainer.model), "generate"):
            kind = type(unwrap(self.explainer.model)).__name__
            raise OptionError(f"generate={shown(asked)}, and a {kind} has no generate(): give continuation= instead")
        if isinstance(asked, GenerationConfig):
            config = GenerationConfig.from_dict(asked.to_dict())
        else:
            check_count("generate", asked)
            config = GenerationConfig(max_new_tokens=asked, do_sample=False, num_beams=1)
        several = config.num_return_sequences or 1
        if several != 1:
            raise OptionError(f"generate returns {several} outputs (num_return_sequences), and one can be explained")
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if getattr(config, name, None) is None:
                setattr(config, name, getattr(own, name, None))
        end = config.eos_token_id
        if config.pad_token_id is None:
            config.pad_token_id = end[0] if isinstance(end, (list, tuple)) else end
        config.return_dict_in_generate = False
        return config

    def _write(self, prompt: Encoded) -> tuple[list[int], Mapping[str, Any]]:
        """What the model writes, and what is said of it; a model that only says its end is explained saying that."""
        config, device = self._configuration(), self.explainer.device
        ids = prompt.inputs["input_ids"][None].to(device)
        about: dict[str, Any] = {"generate": _plain(self.question.generate, config)}
        with plain_mode(device), torch.random.fork_rng([device] if device.type == "cuda" else []):
            if config.do_sample:
                about["seed"] = secrets.randbits(31) if self.question.seed is None else self.question.seed
                torch.manual_seed(about["seed"])
            with undisturbed(unwrap(self.explainer.model), self.explainer.copies) as model:
                found: Tensor = model.generate(  # type: ignore[operator]
                    ids, attention_mask=torch.ones_like(ids), generation_config=config
                )
        written = found[0, len(prompt) :].tolist()
        if not written:
            raise InputError(f"the model wrote nothing after input {prompt.number}: let it write at least one token")
        return written, about


def _plain(asked: Any, config: GenerationConfig) -> Any:
    """How the model wrote, as plain JSON: a number of tokens, or what differs from transformers' defaults."""
    return asked if isinstance(asked, int) else {k: v for k, v in config.to_diff_dict().items() if _is_plain(v)}


def _is_plain(value: Any) -> bool:
    kinds = (str, int, float, bool, type(None))
    return isinstance(value, kinds) or (isinstance(value, list) and all(isinstance(one, kinds) for one in value))
