"""Which tokens stay of an input that is longer than the model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor


def kept_of_long(special: Sequence[bool], limit: int) -> list[int] | None:
    """Which tokens stay of an input that is cut to ``limit``.

    Special tokens stay; of the texts between them the longest loses its end first, in the way of fast tokenizers: what
    does not divide goes to the longest, the later of equals.

    Returns:
        Positions in their order; ``None`` if special tokens alone are too many.
    """
    runs: list[range] = []
    start = 0
    for stop in (*(n for n, flag in enumerate(special) if flag), len(special)):
        if stop > start:
            runs.append(range(start, stop))
        start = stop + 1
    room = limit - sum(special)
    if room <= 0:
        return None
    length = _water_level([len(run) for run in runs], room)
    left = room - sum(min(len(run), length) for run in runs)
    longer = sorted((n for n, run in enumerate(runs) if len(run) > length), key=lambda n: (len(runs[n]), n))
    with_one_more = set(longer[len(longer) - left :])
    kept = [n for n, flag in enumerate(special) if flag]
    for n, run in enumerate(runs):
        kept += run[: length + (n in with_one_more)]
    return sorted(kept)


def _water_level(lengths: Sequence[int], room: int) -> int:
    """The greatest length to which all can be cut so that they fit in ``room``."""
    low, high = 0, max(lengths, default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(length, middle) for length in lengths) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def taken(inputs: Mapping[str, Tensor], keep: Sequence[int]) -> dict[str, Tensor]:
    """These tokens of what a model is given; their positions are counted from the first on."""
    return {name: x[: len(keep)] if name == "position_ids" else x[list(keep)] for name, x in inputs.items()}
