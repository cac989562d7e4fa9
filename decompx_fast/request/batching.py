"""Putting inputs together: windows of a stream, batches of equally long inputs, results in the order of the inputs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from ..result.failure import Failure
from .encoded import Encoded
from .sources import Sources

Pair = tuple[Encoded, Sources | None]

#: What is found of an input: its explanation, or what it is explained with.
_Found = TypeVar("_Found")

#: Tensors of one batch may take so many bytes where no batch size is given.
BATCH_BYTES = 1 << 29

#: Where no batch size is given, so many inputs are read ahead at most, so that equally long ones can be put together;
#: where one is given, as many such batches.
READ_AHEAD = 256
BATCHES_AHEAD = 16


def inputs_at_once(bytes_of_one: int) -> int:
    """How many inputs are computed together where no batch size is given."""
    return max(1, BATCH_BYTES // max(bytes_of_one, 1))


def look_ahead(batch_size: int | None) -> int:
    """How many inputs are read before the first of them is explained: one with ``batch_size=1``."""
    if batch_size == 1:
        return 1
    return READ_AHEAD if batch_size is None else BATCHES_AHEAD * batch_size


def stream(
    run: Callable[[list[list[Pair]]], Sequence[Sequence[_Found | Failure]]],
    pairs: Iterator[Pair | Failure],
    *,
    batch_size: int | None,
    total: int | None,
    progress: bool | None,
    bytes_of: Callable[[Pair], int],
    read_ahead: int | None = None,
    at_once: int = 1,
) -> Iterator[_Found | Failure]:
    """Explain inputs as they come, in batches of equally long ones, and yield in their order.

    An error of the inputs, whether of one of them or of what iterates over them, is raised when all before it has been
    explained and yielded.

    Args:
        run: explains batches, each of inputs of the same length and the same number of sources.
        pairs: inputs with their sources, or why one has none; :func:`look_ahead` of them are read before their results
            are computed.
        batch_size: how many at most are computed together; ``None``: as many as :data:`BATCH_BYTES` allows.
        total: how many inputs there are, if that is known.
        progress: show a bar; ``None``: where standard error is a terminal and there are several batches.
        bytes_of: what one input takes while it is computed.
        read_ahead: so many instead of :func:`look_ahead`.
        at_once: so many batches are handed over together.
    """
    error: BaseException | None = None
    with _progress(total, progress, batch_size) as advance:
        while error is None:
            window, error = _read_window(pairs, read_ahead or look_ahead(batch_size))
            if not window:
                break
            inputs = {n: one for n, one in enumerate(window) if not isinstance(one, Failure)}
            done: dict[int, _Found | Failure] = {n: one for n, one in enumerate(window) if isinstance(one, Failure)}
            advance(len(done))
            ready = 0
            batches = _batches(inputs, batch_size, bytes_of)
            for some in itertools.chain([[]], _chunks(batches, at_once)):  # failures alone need no batch
                results = run([[inputs[n] for n in batch] for batch in some]) if some else []
                for batch, found in zip(some, results, strict=True):
                    done |= dict(zip(batch, found, strict=True))
                    advance(len(batch))
                while ready in done:
                    yield done.pop(ready)
                    ready += 1
    if error is not None:
        raise error


def _read_window(pairs: Iterator[Pair | Failure], size: int) -> tuple[list[Pair | Failure], BaseException | None]:
    """The next inputs, and what is wrong with the one after them, so that what precedes it is still explained."""
    window: list[Pair | Failure] = []
    try:
        for pair in itertools.islice(pairs, size):
            window.append(pair)
    except Exception as error:  # the user's own, too: its traceback is kept, and it is raised later
        return window, error
    return window, None


def _batches(pairs: Mapping[int, Pair], batch_size: int | None, bytes_of: Callable[[Pair], int]) -> Iterator[list[int]]:
    """Positions of inputs that can be computed together: as long, with as many sources, and the same parts."""
    alike: dict[tuple, list[int]] = {}
    for n, (encoded, sources) in pairs.items():
        count = len(encoded) if sources is None else len(sources)
        parts = tuple((name, tuple(value.shape)) for name, value in encoded.inputs.items())
        alike.setdefault((len(encoded), count, parts), []).append(n)
    for members in alike.values():
        size = batch_size or inputs_at_once(bytes_of(pairs[members[0]]))
        for start in range(0, len(members), size):
            yield members[start : start + size]


def _chunks(batches: Iterator[list[int]], size: int) -> Iterator[list[list[int]]]:
    while some := list(itertools.islice(batches, size)):
        yield some


def _progress(
    total: int | None, progress: bool | None, batch_size: int | None
) -> AbstractContextManager[Callable[[int], object]]:
    """A context that yields a function to report finished inputs."""
    several = total is None or total > (batch_size or BATCHES_AHEAD)
    if not (sys.stderr.isatty() and several if progress is None else progress):
        return nullcontext(lambda count: None)
    from ..result.render import progress_bar

    return progress_bar(total)
