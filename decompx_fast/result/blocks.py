"""Which of the sources an encoder read, and which a decoder: two blocks, the encoder's first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

Block = Literal["encoder", "decoder"]

#: Under this name the metadata of an explanation say how many of its sources are the encoder's.
ENCODER_SOURCES = "encoder_sources"


def encoder_sources(explanation: Any) -> int | None:
    """How many sources are the encoder's, the first of them; ``None`` where there is one block."""
    found = getattr(explanation, "metadata", {}).get(ENCODER_SOURCES)
    return found if isinstance(found, int) else None


def block_of(explanation: Any, sources: Sequence[int]) -> Block | None:
    """Which block some sources of one block are in; ``None`` where there is one, or there are no sources."""
    count = encoder_sources(explanation)
    if count is None or not sources:
        return None
    return "encoder" if sources[0] < count else "decoder"
