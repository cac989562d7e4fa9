"""What every plan says, and how: in a terminal, in a notebook, and as the error where it does not fit."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from ..errors import PlanError


def gib(n_bytes: int) -> str:
    """A number of bytes for people."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{math.ceil(n_bytes / 2**20)} MiB"


def name_of(dtype: torch.dtype) -> str:
    """A dtype as users name it."""
    return str(dtype).removeprefix("torch.")


class PlanText:
    """A plan, in words. Bytes are those of tensors that are alive; a process may hold on to more of what was freed."""

    if TYPE_CHECKING:  # fields or properties of each plan; as properties here they would be defaults of its fields

        @property
        def n(self) -> int: ...
        @property
        def limit(self) -> int | None: ...
        @property
        def device(self) -> torch.device: ...
        @property
        def available_bytes(self) -> int | None: ...
        @property
        def peak_bytes(self) -> int: ...
        @property
        def rows(self) -> tuple[tuple[str, str], ...]: ...

    def needs(self) -> str:
        """What needs how much, as the beginning of a sentence."""
        raise NotImplementedError

    def find_ways_out(self) -> Iterator[str]:
        """What would fit, or need less where this fits."""
        raise NotImplementedError

    @property
    def fits(self) -> bool:
        """Whether the model has the positions, and the free memory suffices as far as it is known."""
        return self._has_positions and (self.available_bytes is None or self.peak_bytes <= self.available_bytes)

    @property
    def ways_out(self) -> tuple[str, ...]:
        """What would fit, or need less where this fits already."""
        if not self._has_positions:
            return (f"inputs of at most {self.limit} tokens: truncate=True (--truncate) cuts them, or split the text",)
        return tuple(self.find_ways_out())

    def check(self) -> None:
        """Refuse what cannot be done.

        Raises:
            PlanError: with the numbers and the ways out.
        """
        if self.fits:
            return
        ways = "; ".join(self.ways_out)
        if not self._has_positions:
            raise PlanError(f"the model has positions for {self.limit} tokens, and {self.n} were asked for: use {ways}")
        ways = f"Ways out: {ways}" if ways else "Nothing that could be changed makes it fit: split the text"
        raise PlanError(f"{self.needs()}, and {gib(self.available_bytes or 0)} are free on {self.device}. {ways}")

    def rows_of_memory(self) -> Iterator[tuple[str, str]]:
        if self.available_bytes is not None:
            yield "free", f"{gib(self.available_bytes)} on {self.device}"

    def rows_of_fit(self) -> Iterator[tuple[str, str]]:
        yield "fits", "yes" if self.fits else "no" if self._has_positions else f"no: {self.limit} positions"
        for way in self.ways_out:
            yield "needs less" if self.fits else "way out", way

    def __str__(self) -> str:
        return "\n".join(f"{name:<19} {value}" for name, value in self.rows)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        cells = (
            f"<tr><td style='text-align:left;white-space:pre'>{html.escape(name)}</td>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in self.rows
        )
        return f"<table>{''.join(cells)}</table>"

    @property
    def _has_positions(self) -> bool:
        return self.limit is None or self.n <= self.limit


class PlanOfParts(PlanText):
    """The plan of several passes, one after the other."""

    @property
    def parts(self) -> tuple[PlanText, ...]:
        """The plan of each pass."""
        raise NotImplementedError

    @property
    def main(self) -> PlanText:
        """The pass whose input is what was asked about."""
        raise NotImplementedError

    @property
    def flops(self) -> Mapping[str, int]:
        """Floating-point operations of each part; a multiplication and an addition are two."""
        raise NotImplementedError

    @property
    def n(self) -> int:
        """Positions of an input."""
        return self.main.n

    @property
    def limit(self) -> int | None:
        """How many positions the model has; ``None`` for any number."""
        return self.main.limit

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.main.device

    @property
    def available_bytes(self) -> int | None:
        """What is free there, ``None`` if that is unknown."""
        return self.main.available_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that is allocated at one time."""
        return max(part.peak_bytes for part in self.parts)

    @property
    def total_flops(self) -> int:
        return sum(self.flops.values())

    @property
    def fits(self) -> bool:
        """Whether each pass fits, as far as that is known."""
        return all(part.fits for part in self.parts)
