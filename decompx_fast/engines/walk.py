"""The way of the reference engine through a model: whose tokens the states are, and how biases reach the sources."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import DecompXConfig
from ..linearize.layer import Attention, Convolution, Head, Linearization, Sublayer
from .bias import Rule
from .reach import Reach, equal_shares, equal_shares_at_head, reach_after, reach_of_convolution


class Walk:
    """Who belongs to whom, and which sources have reached which positions so far.

    Attributes:
        sources: ``[b, j]``, the source of each token whose state is worked on.
        memory: ``[b, j, k, d]``, the decomposed state that cross attentions read.
    """

    def __init__(self, config: DecompXConfig, linearization: Linearization, sources: Tensor, n_sources: int) -> None:
        encoder = linearization.encoder
        self.sources = sources if encoder is None else sources[:, encoder.part(0)]
        self.memory: Tensor | None = None
        self._config, self._linearization, self._of_tokens, self._n_sources = config, linearization, sources, n_sources
        self.start()

    def start(self) -> None:
        """Every position holds its own token alone."""
        self._reach: Reach | None = Reach.at_start(self._linearization)

    def start_decoder(self, memory: Tensor) -> None:
        """The same again, of a decoder's positions, which will attend ``memory``."""
        encoder = self._linearization.encoder
        assert encoder is not None
        self.memory, self.sources = memory, self._of_tokens[:, encoder.part(encoder.layers)]
        self._reach = Reach.at_start(self._linearization, encoder.layers)

    def step(self, sublayer: Sublayer) -> tuple[Rule, Rule]:
        """Go through a sublayer: the rule for the biases before an attention in it, and for those after."""
        before = self.rule()
        self._reach = reach_after(sublayer, self._reach, self._config)
        return before, self.rule()

    def rule(self) -> Rule:
        """The rule here."""
        return self._rule_of(self._reach)

    def rule_within(self, op: Attention | Convolution) -> Rule:
        """The rule for the biases of what does not read the state here alone: an attention, before what it gives is
        added, or a convolution, which reads the embedding."""
        if isinstance(op, Convolution):
            return self._rule_of(reach_of_convolution(op))
        return self._rule_of(None if self._reach is None else self._reach.within(op))

    def _rule_of(self, reach: Reach | None) -> Rule:
        name = self._config.bias
        if name != "equal":
            return Rule(name)
        return Rule(name, equal_shares(reach, self._of_tokens, self._n_sources, torch.float64))

    def rule_at_head(self, head: Head, name: str) -> Rule:
        """The same for what the head reads."""
        if name != "equal":
            return Rule(name)
        shares = equal_shares_at_head(self._reach, head.reading.rows, self._of_tokens, self._n_sources, torch.float64)
        return Rule(name, shares)
