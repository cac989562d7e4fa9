"""What scores along paths cost: of the text itself, of versions along a path of each column, and of random sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from .adjoint.plan import AdjointPlan
from .forward.plan import Plan
from .forward.ways_out import ways_out
from .plan_text import PlanOfParts, gib


@dataclass(frozen=True, repr=False)
class PassPlan(AdjointPlan):
    """What the model's own pass costs, of which nothing is explained."""

    @classmethod
    def of(cls, plan: AdjointPlan) -> PassPlan:
        """The pass that an explanation by the adjoint engine begins with."""
        return cls(*(getattr(plan, one.name) for one in fields(plan)))

    @property
    def peak_bytes(self) -> int:
        """Of a network, what is before and after its activation; or of an attention that forms its weights, these
        before and after the softmax."""
        s, item = self.shape, self.dtype.itemsize
        states = self._positions * s.d * item
        attention = (4 * self._positions * s.heads * s.head_size + 2 * self.batch * s.heads * self.n**2) * item
        return max(2 * self._hidden_bytes + 3 * states, attention + 2 * states)

    @property
    def flops(self) -> Mapping[str, int]:
        return {name: of for name, of in super().flops.items() if name in ("forward pass", "vocabulary")}


@dataclass(frozen=True, repr=False)
class PathPlan(PlanOfParts):
    """What scores along paths will cost.

    In a search the model is run on versions and they are not explained: their plans are :class:`PassPlan` then. A
    version has as many tokens as the text, and fewer with ``baseline="remove"``: then it is the most that is needed.

    Attributes:
        whole: the plan of the texts themselves, token by token.
        along: of the versions on paths that are computed together, each of one column.
        sets: of the versions with random sets of sources that are computed together, of all columns.
        versions_along, versions_of_sets: how many there are of all texts together.
    """

    whole: Plan | AdjointPlan
    along: Plan | AdjointPlan
    sets: Plan | AdjointPlan
    versions_along: int
    versions_of_sets: int

    @property
    def main(self) -> Plan | AdjointPlan:
        return self.whole

    @property
    def parts(self) -> tuple[Plan | AdjointPlan, Plan | AdjointPlan, Plan | AdjointPlan]:
        return self.whole, self.along, self.sets

    @property
    def flops(self) -> Mapping[str, int]:
        """Floating-point operations of each part; a multiplication and an addition are two."""
        return {
            "text": self.whole.total_flops,
            "paths": self.versions_along * _flops_of_one(self.along),
            "random sets": self.versions_of_sets * _flops_of_one(self.sets),
        }

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """What it says, line by line."""
        names = ("text", "paths", "random sets")
        counts = (_batch(self.whole), self.versions_along, self.versions_of_sets)
        parts = zip(names, counts, self.parts, strict=True)
        return (
            ("scores", "along paths"),
            *((name, _part(count, part)) for name, count, part in parts),
            ("input", f"{_batch(self.whole)} x {self.n} tokens"),
            ("peak", f"{gib(self.peak_bytes)} of tensors beside the model"),
            *((f"  {name}", gib(part.peak_bytes)) for name, part in zip(names, self.parts, strict=True)),
            *self.rows_of_memory(),
            ("operations", f"{self.total_flops / 1e9:,.1f} GFLOP"),
            *((f"  {name}", f"{flops / 1e9:,.1f}") for name, flops in self.flops.items()),
            *self.rows_of_fit(),
        )

    def check(self) -> None:
        for part in self.parts:
            if not part.fits:
                super().check()
                part.check()  # of the disk alone

    def needs(self) -> str:
        return max(self.parts, key=lambda part: part.peak_bytes).needs()

    def find_ways_out(self) -> Iterator[str]:
        """Those of the text itself: of versions no more are computed together than fit."""
        return ways_out(self.whole, whole=True) if isinstance(self.whole, Plan) else self.whole.find_ways_out()


def _batch(part: Plan | AdjointPlan) -> int:
    return part.costs.batch if isinstance(part, Plan) else part.batch


def _flops_of_one(part: Plan | AdjointPlan) -> int:
    return part.total_flops // _batch(part)


def _part(count: int, part: Plan | AdjointPlan) -> str:
    engine = "forward engine" if isinstance(part, Plan) else "adjoint engine"
    by = "model alone" if isinstance(part, PassPlan) else engine
    together = "" if _batch(part) >= count else f", {_batch(part)} at once"
    return f"{count:,}{together}, by the {by}"
