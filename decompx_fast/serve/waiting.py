"""Texts that wait to be explained: so many at most, given out in batches of one call and of like length."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from .messages import Outcome, Wanted

#: Texts whose numbers of characters differ by no more than this part, or by so many, may have equally many tokens.
_NEAR, _NEAR_CHARACTERS = 0.2, 8

#: Of the time that a text takes, each new one counts so much.
_NEWEST = 0.1


class QueueFull(Exception):
    """No more texts can wait.

    Args:
        retry_s: in how many seconds there is probably room.
    """

    def __init__(self, retry_s: float) -> None:
        super().__init__()
        self.retry_s = retry_s


@dataclass(eq=False)
class Waiter:
    """A text that waits, and what its answer goes to.

    Attributes:
        wanted: the text.
        key: of the call: texts of the same one can be computed together.
        arguments: the call.
        deadline: by ``time.monotonic()``; nobody waits for it after that.
        digest: what :mod:`.suspects` knows it by.
        is_suspect: whether it is to be computed alone.
        future: of the outcome; cancelled where nobody waits any more.
    """

    wanted: Wanted
    key: str
    arguments: Mapping[str, Any]
    deadline: float
    digest: bytes = b""
    is_suspect: bool = False
    future: Future[Outcome] = field(default_factory=Future)

    @property
    def is_dropped(self) -> bool:
        """Whether nobody waits for it."""
        return self.future.cancelled() or time.monotonic() > self.deadline

    def answer(self, outcome: Outcome) -> None:
        """Give the outcome to who waits, if somebody does."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(outcome)

    def fail(self, error: Exception) -> None:
        """Tell who waits that there will be no outcome."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class WaitingTexts:
    """A bounded queue, which threads may use at once.

    Args:
        size: how many may wait.
        batch: how many are given out at once.
        batch_characters: of all of these together, unless it is one.
        dropped: is told how many were dropped, since nobody waits for them.
    """

    def __init__(
        self, size: int, batch: int, batch_characters: int, dropped: Callable[[int], object] = lambda count: None
    ) -> None:
        self._size, self._batch, self._batch_characters = size, batch, batch_characters
        self._dropped = dropped
        self._waiters: list[Waiter] = []
        self._changed = threading.Condition()
        self._takers = 0  # threads that want a batch
        self._text_s = 0.05  # that one text took of late, of all processes together

    def __len__(self) -> int:
        return len(self._waiters)

    def put(self, waiters: Sequence[Waiter]) -> None:
        """Let all of these wait.

        Raises:
            QueueFull: if there is not room for all.
        """
        with self._changed:
            self._forget()
            if len(self._waiters) + len(waiters) > self._size:
                raise QueueFull(max(1.0, self._text_s * len(self._waiters)))
            self._waiters += waiters
            self._changed.notify()

    def put_back(self, waiters: Sequence[Waiter]) -> None:
        """Let those wait again, before all others, that were given out and not begun."""
        with self._changed:
            self._waiters[:0] = waiters
            self._changed.notify()

    def take(self, timeout_s: float) -> list[Waiter]:
        """The one that has waited longest, and those of the same call that are about as long, in the order of lengths;
        none if none comes in time. What waits is shared with other threads that want a batch now."""
        with self._changed:
            self._takers += 1
            try:
                self._forget()
                if not self._waiters:
                    self._changed.wait(timeout_s)
                    self._forget()
                return self._next_batch() if self._waiters else []
            finally:
                self._takers -= 1

    def _next_batch(self) -> list[Waiter]:
        first = self._waiters[0]
        size = first.wanted.size
        near = max(_NEAR * size, _NEAR_CHARACTERS)
        others = [] if first.is_suspect else [one for one in self._waiters[1:] if not one.is_suspect]
        alike = [one for one in others if one.key == first.key and abs(one.wanted.size - size) <= near]
        alike.sort(key=lambda one: abs(one.wanted.size - first.wanted.size))
        batch = [first]
        for one in alike[: min(self._batch, -(-len(self._waiters) // self._takers)) - 1]:
            size += one.wanted.size
            if size > self._batch_characters:
                break
            batch.append(one)
        taken = set(map(id, batch))
        self._waiters = [one for one in self._waiters if id(one) not in taken]
        if self._waiters:
            self._changed.notify()  # others may take what is left
        return sorted(batch, key=lambda one: one.wanted.size)

    def take_all(self) -> list[Waiter]:
        """All that wait."""
        with self._changed:
            taken, self._waiters = self._waiters, []
            return taken

    def took(self, texts: int, seconds: float, workers: int) -> None:
        """Be told how long a batch took, for when there is room again."""
        with self._changed:
            self._text_s += _NEWEST * (seconds / texts / workers - self._text_s)

    def _forget(self) -> None:
        """Drop those for which nobody waits."""
        kept = [one for one in self._waiters if not one.is_dropped]
        if len(kept) < len(self._waiters):
            self._dropped(len(self._waiters) - len(kept))
            self._waiters = kept
