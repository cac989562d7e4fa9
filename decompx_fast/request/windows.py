"""Overlapping windows of an input whose context is longer than the model: where they are, and one of them as an input.

Source: the windows of transformers' question-answering pipeline (``doc_stride``), that is of its tokenizers'
``stride`` with ``truncation="only_second"``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .cutting import taken

if TYPE_CHECKING:
    from .encoded import Encoded


@dataclass(frozen=True)
class Window:
    """Which part of a longer input an input is.

    Attributes:
        number: from 0.
        count: how many windows there are.
        tokens: which tokens of the whole input it has.
        length: how many tokens that has.
        no_answer_score: the least of all windows, as any of them may hold the answer; ``None``: not looked at.
        places: the tokens of this window that ``at=`` names; ``None``: it names none.
    """

    number: int
    count: int
    tokens: tuple[int, ...]
    length: int
    no_answer_score: float | None = None
    places: tuple[tuple[int, ...], ...] | None = None


def windows(context: range, length: int, size: int, overlap: int) -> list[list[int]]:
    """The tokens of each window, in their order: all that is no context, and a part of the context.

    Args:
        context: the tokens of the context.
        length: how many tokens there are in all.
        size: how many of them a window has at most.
        overlap: how many tokens of the context two neighbours share.
    """
    room = size - (length - len(context))
    if not 0 <= overlap < room:
        raise ValueError(f"windows with room for {room} tokens of a context cannot share {overlap}")
    starts = range(0, max(len(context) - overlap, 1), room - overlap)
    before, after = [*range(context.start)], [*range(context.stop, length)]
    return [[*before, *context[start : start + room], *after] for start in starts]


def in_window(encoded: Encoded, window: Window) -> Encoded:
    """The tokens of a window, as an input."""
    keep = window.tokens
    return replace(
        encoded,
        inputs=taken(encoded.inputs, keep),
        tokens=tuple(encoded.tokens[n] for n in keep),
        spans=tuple(encoded.spans[n] for n in keep),
        special=tuple(encoded.special[n] for n in keep),
        words=encoded.words and tuple(encoded.words[n] for n in keep),
        about={**encoded.about, "window": window.number, "windows": window.count},
        window=window,
    )
