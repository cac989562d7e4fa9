"""How things are timed: synchronised, warmed up, by medians, on inputs that no cache holds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch

#: Inputs of a kernel are rotated over so many bytes, more than any cache holds.
ROTATION_BYTES = {"cpu": 2**28, "cuda": 2**30}


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def median_seconds(run: Callable[[], object], device: str, rounds: int = 5) -> float:
    run()
    times = []
    for _ in range(rounds):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def rotating(make: Callable[[], tuple[torch.Tensor, ...]], device: str) -> Iterator[tuple[torch.Tensor, ...]]:
    """Endless inputs, so many different ones that none is in a cache when its turn comes again."""
    first = make()
    size = sum(tensor.nbytes for tensor in first)
    inputs = [first] + [make() for _ in range(min(7, max(1, ROTATION_BYTES[device] // size)))]
    n = 0
    while True:
        yield inputs[n % len(inputs)]
        n += 1
