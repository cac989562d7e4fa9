"""Texts that were computed when their process ended: the next time each is alone, and one that ends its process again
is not computed any more."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

from .messages import Text

#: So many processes a text ends that is computed alone, until it is marked: the first may have been ended by something
#: else.
ENDS = 2

#: So long all this is remembered: memory that was short may be there again.
REMEMBERED_S = 3600.0

#: So many texts are remembered, the latest.
MOST = 1024


def digest_of(call: str, text: Text) -> bytes:
    """What a text of a call is known by, without being kept."""
    parts = (call, *text) if isinstance(text, tuple) else (call, text)
    return hashlib.blake2b("".join(f"{len(part)}:{part}" for part in parts).encode(), digest_size=16).digest()


class Suspects:
    """What is known of such texts, by their digests; threads may use it at once."""

    def __init__(self) -> None:
        self._found: OrderedDict[bytes, tuple[float, int]] = OrderedDict()  # when, and how many ends alone
        self._lock = threading.Lock()

    def ended(self, digests: Sequence[bytes]) -> list[bytes]:
        """A process has ended that was computing these; gives those that are marked from now on."""
        marked = []
        with self._lock:
            for digest in digests:
                ends = self._ends(digest) or 0
                self._found[digest] = time.monotonic(), ends + (len(digests) == 1)
                self._found.move_to_end(digest)
                if len(digests) == 1 and ends + 1 == ENDS:
                    marked.append(digest)
            while len(self._found) > MOST:
                self._found.popitem(last=False)
        return marked

    def answered(self, digest: bytes) -> None:
        """A text was computed after all."""
        with self._lock:
            self._found.pop(digest, None)

    def is_suspect(self, digest: bytes) -> bool:
        """Whether a process has ended while it computed this, so that it is to be alone."""
        with self._lock:
            return self._ends(digest) is not None

    def is_marked(self, digest: bytes) -> bool:
        """Whether this is not to be computed."""
        with self._lock:
            return (self._ends(digest) or 0) >= ENDS

    def _ends(self, digest: bytes) -> int | None:
        when, ends = self._found.get(digest, (0.0, 0))
        if digest in self._found and time.monotonic() - when > REMEMBERED_S:
            del self._found[digest]
        return ends if digest in self._found else None
