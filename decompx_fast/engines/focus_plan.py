"""What an explanation costs of which cheap scores name the sources: the pass that names them, and what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .adjoint.plan import AdjointPlan
from .forward.plan import Plan
from .plan_text import PlanOfParts, gib


@dataclass(frozen=True, repr=False)
class FocusPlan(PlanOfParts):
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
    def main(self) -> Plan | AdjointPlan:
        return self.explaining

    @property
    def parts(self) -> tuple[AdjointPlan, Plan | AdjointPlan]:
        return self.naming, self.explaining

    @property
    def flops(self) -> Mapping[str, int]:
        """Floating-point operations of each part; a multiplication and an addition are two."""
        return {"naming": self.naming.total_flops, **self.explaining.flops}

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
    def ways_out(self) -> tuple[str, ...]:
        """Of the pass that needs more."""
        return max(self.parts, key=lambda part: part.peak_bytes).ways_out

    def check(self) -> None:
        for part in self.parts:
            part.check()
