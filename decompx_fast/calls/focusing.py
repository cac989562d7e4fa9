"""Long texts by few sources: scores that are cheap name the tokens that stay sources of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import torch

from ..config import DecompXConfig
from ..errors import OptionError
from ..linearize.spec import ModelSpec
from ..request.batching import Pair, stream
from ..request.encoded import Encoded
from ..request.focus import candidates, focused_sources, kept_tokens, magnitude_shares
from ..result.explanation import Explanation
from ..result.failure import Failure
from ..result.kinds import FOCUS
from .job import Job


def check_focusing(spec: ModelSpec, config: DecompXConfig) -> None:
    """Refuse what scores of tokens do not name the sources of.

    Raises:
        OptionError: says why.
    """
    if spec.limits.picture is not None or spec.limits.sound is not None:
        raise OptionError(
            "sources='focus' is for texts: it groups by sentences what is not in focus, and this model reads none"
        )
    if not config.head:
        raise OptionError(
            "sources='focus' keeps the tokens with the largest scores for the targets, and head=False gives norms, "
            "which belong to none: leave one of them out"
        )


def naming_config(config: DecompXConfig) -> DecompXConfig:
    """The options by which tokens are named: the same method without biases, whose scores are linear in the inputs."""
    return config.replace(bias="none", bias_token_split=None, stages=[])


class Focusing:
    """Finds the sources of each input: the tokens that matter each by itself, all others in groups.

    Args:
        naming: tells the scores of single tokens, by the options of :func:`naming_config`.
        tokens: how many stay sources of their own, and in how many groups at most all others are.
    """

    def __init__(self, naming: Job, tokens: int) -> None:
        self._naming, self._tokens = naming, tokens

    def follow(
        self,
        inputs: Iterator[Encoded | Failure],
        *,
        skip: bool,
        batch_size: int | None,
        read_ahead: int | None,
        at_once: int,
    ) -> Iterator[Pair | Failure]:
        """Each input with its sources; with ``skip``, a failure for one whose tokens cannot be told.

        Args:
            inputs: are read ahead as :func:`.stream` does, whose arguments the others are.
        """
        return stream(
            partial(self._run, skip=skip),
            (one if isinstance(one, Failure) else (one, None) for one in inputs),
            batch_size=batch_size,
            total=None,
            progress=False,
            bytes_of=self._naming.bytes_of,
            read_ahead=read_ahead,
            at_once=at_once,
        )

    def _run(self, batches: Sequence[Sequence[Pair]], *, skip: bool) -> list[list[Pair | Failure]]:
        asked = [[pair for pair in batch if len(candidates(pair[0])) > self._tokens] for batch in batches]
        answers = self._naming.run_all([batch for batch in asked if batch], skip=skip)
        named = {id(pair): one for pair, one in zip(chain(*asked), chain(*answers), strict=True)}
        return [[self._pair(pair[0], named.get(id(pair))) for pair in batch] for batch in batches]

    def _pair(self, encoded: Encoded, found: Explanation | Failure | None) -> Pair | Failure:
        """An input with its sources, and with what its explanation says of them.

        Args:
            encoded: the input.
            found: the scores of its tokens; ``None``: it has no more tokens than may stay.
        """
        if isinstance(found, Failure):
            return found
        kept, sources = candidates(encoded), None
        about: dict[str, object] = {"tokens": self._tokens}
        if found is not None:
            shares = magnitude_shares(found.scores, encoded)
            kept = kept_tokens(shares, encoded, self._tokens)
            sources = focused_sources(encoded, kept, self._tokens)
            held = shares[kept].sum(0).tolist()
            about |= {"share": dict(zip(found.targets, held, strict=True)), "time_s": found.time_s}
        ids = torch.arange(len(encoded)) if sources is None else sources.ids
        about |= {"kept": kept, "sources": ids[kept].tolist()}
        return replace(encoded, about={**encoded.about, FOCUS: about}), sources
