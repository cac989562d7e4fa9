"""How far a run is: a line that is renewed on a terminal, and a line each minute elsewhere."""

from __future__ import annotations

import sys
import time

from ..errors import counted

#: Seconds between two lines.
ON_A_TERMINAL = 0.5
IN_A_LOG = 60.0


class Progress:
    """Counts rows, and says it on standard error.

    Args:
        shown: whether to say anything; ``None``: yes.
        total: about how many rows there are, if that is known.
    """

    def __init__(self, shown: bool | None, total: int | None) -> None:
        self._terminal = sys.stderr.isatty()
        self._every = ON_A_TERMINAL if self._terminal else IN_A_LOG
        self._shown = shown is not False
        self._total = total
        self._begun = self._said = time.monotonic()
        self.before = 0  # rows of earlier runs
        self.now = 0
        self.errors = 0

    def add(self, rows: int, *, errors: int, before: bool = False) -> None:
        """Count rows that are done, or were so before."""
        if before:
            self.before += rows
        else:
            self.now += rows
        self.errors += errors
        if self._shown and time.monotonic() - self._said >= self._every:
            self._said = time.monotonic()
            self._say(self.line())

    def line(self) -> str:
        """How far, how fast, and how long still."""
        done = self.before + self.now
        of = "" if self._total is None else f" of about {self._total:,}"
        parts = [f"{done:,}{of} rows"]
        rate = self.now / max(time.monotonic() - self._begun, 1e-9)
        if self.now:
            parts.append(f"{rate:,.1f} a second")
        if self.now and self._total is not None and self._total > done:
            parts.append(f"{_duration((self._total - done) / rate)} left")
        if self.errors:
            parts.append(f"{counted(self.errors, 'row')} with an error")
        return ", ".join(parts)

    def end(self) -> None:
        """Leave the terminal's line."""
        if self._shown and self._terminal:
            sys.stderr.write("\r\x1b[K")

    def say(self, text: str) -> None:
        """A line of its own."""
        if self._shown:
            self.end()
            print(text, file=sys.stderr, flush=True)

    def _say(self, text: str) -> None:
        if self._terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
