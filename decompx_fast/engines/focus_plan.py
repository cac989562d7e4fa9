"""What an explanation costs of which cheap scores name the sources: the pass that names them, and what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .adjoint.plan import AdjointPlan
from .forward.plan import Plan
from .plan_text import PlanText, gib


@dataclass(frozen=True, repr=False)
class FocusPlan(PlanText):
    """What an explanation with ``sources="focus"`` will cost.

    Attributes:
        tokens: how many stay sources of their own, and in how many groups at most all others are; special tokens, which
            stay alone too, come on top of both.
        naming: of the pass that names them.
        explaining: of the explanation with so many sources.
    """

    tokens: int
    naming: AdjointPlan
    explaining: Plan | AdjointPlan

    @property
    def n(self) -> int:
        """Positions of an input."""
        return self.explaining.n

    @property
    def limit(self) -> int | None:
        """How many positions the model has; ``None`` for any number."""
        return self.explaining.limit

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.explaining.device

    @property
    def available_bytes(self) -> int | None:
        """What is free there, ``None`` if that is unknown."""
        return self.explaining.available_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that is allocated at one time: one pass comes after the other."""
        return max(self.naming.peak_bytes, self.explaining.peak_bytes)

    @property
    def flops(self) -> Mapping[str, int]:
        """Floating-point operations of each part; a multiplication and an addition are two."""
        return {"naming": self.naming.total_flops, **self.explaining.flops}

    @property
    def total_flops(self) -> int:
        return sum(self.flops.values())

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """What it says, line by line."""
        cost = f"{gib(self.naming.peak_bytes)}, {self.naming.total_flops / 1e9:,.1f} GFLOP"
        return (
            ("focus", f"{self.tokens} tokens by themselves, all others in at most as many groups"),
            ("  named by", f"scores without biases, before: {cost}"),
            *self.explaining.rows,
        )

    @property
    def fits(self) -> bool:
        """Whether both passes fit."""
        return self.naming.fits and self.explaining.fits

    @property
    def ways_out(self) -> tuple[str, ...]:
        """Of the pass that needs more."""
        return max(self.naming, self.explaining, key=lambda one: one.peak_bytes).ways_out

    def check(self) -> None:
        self.naming.check()
        self.explaining.check()
