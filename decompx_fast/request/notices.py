"""Warnings of a call: said once, with how many inputs and which, at the line of the user that called."""

from __future__ import annotations

from ..errors import warn_user

#: So many inputs are named; of the others only the number is said.
NAMED = 3

#: Share of unknown tokens from which a text was probably read by another model's tokenizer.
MANY_UNKNOWN = 1 / 3


class Notices:
    """What is worth a warning in the inputs of one call; keeps a few names and counts.

    Args:
        limit: how many tokens inputs were cut to.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.cut = _Found()
        self.unknown = _Found()

    def say(self) -> None:
        """Warn of all that was found since, once for each kind."""
        cut, unknown = self.cut, self.unknown
        self.cut, self.unknown = _Found(), _Found()
        if cut.count == 1:
            where, size = cut.first[0]
            warn_user(f"{where} has {size} and was cut to the model's {self.limit} positions")
        elif cut.count:
            warn_user(f"{cut.count} inputs were cut to the model's {self.limit} positions: {cut.listed()}")
        hint = "unknown to the tokenizer: is it the model's own?"
        if unknown.count == 1:
            where, share = unknown.first[0]
            warn_user(f"{where}: {share} are {hint}")
        elif unknown.count:
            warn_user(f"many tokens of {unknown.count} inputs are {hint} ({unknown.listed()})")


class _Found:
    """Inputs that share a trait: how many, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[tuple[str, str]] = []

    def add(self, where: str, detail: str) -> None:
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append((where, detail))

    def listed(self) -> str:
        more = f" and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return ", ".join(f"{where} ({detail})" for where, detail in self.first) + more
