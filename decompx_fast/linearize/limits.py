"""What inputs a model takes: how many tokens, which numbers, what pictures and what sounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PictureLimits:
    """How a model cuts pictures into patches.

    Attributes:
        patch: ``(height, width)`` of a patch, in pixels.
        size: ``(height, width)`` of the pictures that it has position embeddings for.
        channels: how many a picture has.
        special: the names of the positions before those of the patches: classes, registers.
        resizable: whether it makes position embeddings for pictures of other sizes, by interpolation.
    """

    patch: tuple[int, int]
    size: tuple[int, int]
    channels: int
    special: tuple[str, ...]
    resizable: bool

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The rows and columns of the patches of a picture: what is left over at its right and its bottom is not
        seen."""
        return height // self.patch[0], width // self.patch[1]


@dataclass(frozen=True)
class SoundLimits:
    """How a model cuts sounds into frames of time, or into patches of time and frequency.

    Attributes:
        name: what it calls its input.
        axes: of one input: ``time`` alone for samples, or ``time`` and ``mel`` of a spectrogram.
        sizes: of these axes; ``None``: any.
        special: the names of the positions before those of the frames.
        step: by how much of frequency and of time one row and one column is away from the next.
        grid: from the size of the axis ``time``, the rows of frequency and the columns of time.
    """

    name: str
    axes: tuple[str, ...]
    sizes: tuple[int | None, ...]
    special: tuple[str, ...]
    step: tuple[int, int]
    grid: Callable[[int], tuple[int, int]]


@dataclass(frozen=True)
class InputLimits:
    """What inputs a model has embeddings for.

    Attributes:
        positions: how many tokens it takes.
        sizes: of each input, the first number that is too large: ``{"input_ids": 30522, "token_type_ids": 2}``.
        picture: what pictures it takes; ``None``: it reads texts.
        sound: what sounds it takes; ``None``: it reads something else.
        padded: whether texts are padded to so many tokens, and the padding is attended as any other token is.
    """

    positions: int | None
    sizes: Mapping[str, int]
    picture: PictureLimits | None = None
    sound: SoundLimits | None = None
    padded: bool = False
