"""Products of matrices on the CPU, by whichever library makes them fastest here.

PyTorch hands them to one library by dtype alone, and that choice can cost half the speed of a processor or far more
(bfloat16 without bfloat16 units). So the ways there are race once in a process, for each dtype and class of shapes, for
a few milliseconds; PyTorch's own way is kept unless another is clearly faster.
"""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Product = Callable[[Tensor, Tensor, Tensor], None]

#: How much faster another way than PyTorch's own must be: measurements spread by a tenth.
CLEARLY = 1.2

#: Rows times columns that are widened to float32 at once.
WIDENED_NUMBERS = 1 << 18

#: Numbers of a result that is made apart and copied.
COPIED_NUMBERS = 1 << 20

#: Sizes `(m, k, n)` that stand for a class: products with a short side, such as one head's mixing, and large ones.
#: In half precision, which some processors only emulate, they are smaller.
SIZES = {"short": (32, 32, 2048), "large": (512, 512, 512)}
SIZES_HALF = {"short": (32, 32, 512), "large": (128, 128, 128)}

#: A side up to this makes a product short.
SHORT = 48


def multiply(a: Tensor, b: Tensor, *, out: Tensor) -> None:
    """``out = a b`` for ``[m, k]`` and ``[k, n]`` of one dtype, with ``out`` contiguous along its last axis."""
    if a.device.type != "cpu" or a.dtype is torch.float64 or not out.numel():
        torch.mm(a, b, out=out)
    else:
        kind = "short" if min(*a.shape, b.shape[1]) <= SHORT else "large"
        WAYS[way(a.dtype, kind)](a, b, out)


def way(dtype: torch.dtype, kind: str) -> str:
    """Which of :data:`WAYS` a dtype and class of shapes takes in this process."""
    return _forced[-1] if _forced else _fastest(dtype, kind)


@contextmanager
def forced_way(name: str) -> Iterator[None]:
    """Take one of :data:`WAYS` for every product until the end of the block."""
    _forced.append(name)
    try:
        yield
    finally:
        _forced.pop()


def _torch(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.mm(a, b, out=out)


def _onednn(a: Tensor, b: Tensor, out: Tensor) -> None:
    # The only way to oneDNN for ordinary tensors that copies neither of them. Its results are tensors of their own.
    rows = max(COPIED_NUMBERS // b.shape[1], 1)
    for start in range(0, a.shape[0], rows):
        part = a[start : start + rows]
        out[start : start + rows] = torch.ops.mkldnn._linear_pointwise(part, b.T, None, "none", [], "")


def _widened(a: Tensor, b: Tensor, out: Tensor) -> None:
    """In float32, some rows at a time."""
    wide = b.to(torch.float32)
    rows = max(WIDENED_NUMBERS // max(*b.shape), 1)
    for start in range(0, a.shape[0], rows):
        out[start : start + rows] = a[start : start + rows].to(torch.float32) @ wide


WAYS: dict[str, Product] = {"torch": _torch, "onednn": _onednn, "widened": _widened}

_forced: list[str] = []


@functools.cache
def _fastest(dtype: torch.dtype, kind: str) -> str:
    if dtype is torch.float32:
        names, (m, k, n) = ["torch", "onednn"], SIZES[kind]
    else:
        names, (m, k, n) = ["torch", "widened"], SIZES_HALF[kind]
    if not has_onednn() and "onednn" in names:
        names.remove("onednn")
    if len(names) == 1:
        return names[0]
    a, b, out = torch.ones(m, k, dtype=dtype), torch.ones(k, n, dtype=dtype), torch.empty(m, n, dtype=dtype)
    with torch.no_grad():
        seconds = {name: _best_seconds(WAYS[name], a, b, out) for name in names}
    best = min(seconds, key=lambda name: seconds[name])
    return best if seconds["torch"] > CLEARLY * seconds[best] else "torch"


def has_onednn() -> bool:
    """Whether this build of PyTorch can be asked for oneDNN's products."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _best_seconds(product: Product, a: Tensor, b: Tensor, out: Tensor) -> float:
    """The shortest of five runs, or of as many as fit in 50 ms."""
    product(a, b, out)
    best, end = float("inf"), time.perf_counter() + 0.05
    for _ in range(5):
        start = time.perf_counter()
        product(a, b, out)
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            break
    return best
