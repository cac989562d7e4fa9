"""Putting inputs together: windows of a stream, batches of equally long inputs, results in the order of the inputs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from .encoding import Encoded
from .errors import InputError
from .explanation import Explanation
from .failure import Failure
from .sources import Sources

Pair = tuple[Encoded, Sources | None]

#: Decomposed states of one batch may hold this many numbers where no batch size is given: 0.5 GiB in float32.
BATCH_NUMBERS = 2**27

#: As many batches of texts are read ahead, so that equally long ones can be put together.
READ_AHEAD = 16


def stream(
    run: Callable[[list[Pair]], list[Explanation]],
    pairs: Iterator[Pair],
    *,
    batch_size: int | None,
    total: int | None,
    progress: bool | None,
) -> Iterator[Any]:
    """Explain inputs as they come, in batches of equally long ones, and yield in their order.

    Args:
        run: explains inputs of the same length and the same number of sources.
        pairs: inputs with their sources; read a window at a time.
        batch_size: how many at most are computed together; ``None``: as many as :data:`BATCH_NUMBERS` allows.
        total: how many inputs there are, if that is known.
        progress: show a bar; ``None``: where standard error is a terminal and there are several batches.
    """
    window_size = READ_AHEAD * (batch_size or READ_AHEAD)
    error: InputError | None = None
    with _progress(total, progress, batch_size) as advance:
        while error is None:
            window, error = _read_window(pairs, window_size)
            if not window:
                break
            done: dict[int, Any] = {n: one for n, (one, _) in enumerate(window) if isinstance(one, Failure)}
            ready = 0
            while ready in done:
                yield done.pop(ready)
                ready += 1
            for batch in _batches(window, batch_size):
                done |= dict(zip(batch, run([window[n] for n in batch]), strict=True))
                advance(len(batch))
                while ready in done:
                    yield done.pop(ready)
                    ready += 1
    if error is not None:
        raise error


def _read_window(pairs: Iterator[Pair], size: int) -> tuple[list[Pair], InputError | None]:
    """The next inputs, and what is wrong with the one after them, so that what precedes it is still explained."""
    window: list[Pair] = []
    try:
        for pair in itertools.islice(pairs, size):
            window.append(pair)
    except InputError as error:
        return window, error
    return window, None


def _batches(pairs: Sequence[Pair], batch_size: int | None) -> Iterator[list[int]]:
    """Positions of inputs that can be computed together: as long, with as many sources, and the same parts."""
    alike: dict[tuple, list[int]] = {}
    for n, (encoded, sources) in enumerate(pairs):
        if isinstance(encoded, Failure):
            continue
        count = len(encoded) if sources is None else len(sources)
        alike.setdefault((len(encoded), count, tuple(encoded.inputs)), []).append(n)
    for (length, count, _), members in alike.items():
        # The hidden size is not known here; 768 is that of the common base models.
        size = batch_size or max(1, BATCH_NUMBERS // (length * count * 768))
        for start in range(0, len(members), size):
            yield members[start : start + size]


def _progress(
    total: int | None, progress: bool | None, batch_size: int | None
) -> AbstractContextManager[Callable[[int], object]]:
    """A context that yields a function to report finished inputs."""
    several = total is None or total > (batch_size or READ_AHEAD)
    if not (sys.stderr.isatty() and several if progress is None else progress):
        return nullcontext(lambda count: None)
    from .render import progress_bar

    return progress_bar(total)
