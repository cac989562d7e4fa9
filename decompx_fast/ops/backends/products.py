"""Products of matrices on the CPU, by the library, or our own kernels, that :mod:`.product_choices` names for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..shares import full_precision
from . import native, product_choices

Product = Callable[[Tensor, Tensor, Tensor], None]

#: Rows times columns that are widened to float32 at once.
WIDENED_NUMBERS = 1 << 18

#: Numbers of a result that is made apart and copied.
COPIED_NUMBERS = 1 << 20

#: Rows of a product by oneDNN are whole multiples of so many. The library keeps half a megabyte for each of the last
#: 1,024 shapes that it met, and texts of many lengths would meet it with as many: a stream of them grew by 0.6 GB.
ROW_STEP = 64

#: A side up to this makes a product short.
SHORT = 48


#: Columns that are multiplied at once where all sizes of a product follow the length of a text: then the library meets
#: these three widths, and rows and inner sizes in steps of :data:`ROW_STEP`.
WIDTHS = (4096, 512, 64)


def multiply(a: Tensor, b: Tensor, *, out: Tensor, varied: bool = False) -> None:
    """``out = a b`` for ``[m, k]`` and ``[k, n]`` of one dtype, with ``out`` contiguous along its last axis.

    Args:
        a, b, out: the product.
        varied: whether ``k`` and ``n`` follow the length of a text too, and not only ``m``.
    """
    if a.device.type != "cpu" or a.dtype is torch.float64 or not out.numel():
        torch.mm(a, b, out=out)
        return
    with full_precision(a.device):
        taken = way(a.dtype, kind_of(*a.shape, b.shape[1]))
        (_onednn_varied if varied and taken == "onednn" else WAYS[taken])(a, b, out)


def multiply_each(a: Tensor, b: Tensor, *, out: Tensor) -> None:
    """``out[p] = a[p] b[p]`` for ``[p, m, k]`` and ``[p, k, n]`` of one dtype, with ``out`` as for :func:`multiply`."""
    if a.device.type != "cpu" or a.dtype is torch.float64:
        torch.bmm(a, b, out=out)
        return
    for left, right, product in zip(a, b, out, strict=True):
        multiply(left, right, out=product)


def kind_of(*sizes: int) -> str:
    """Which of :data:`.product_choices.KINDS` a product of these sizes ``m, k, n`` is."""
    return "short" if min(sizes) <= SHORT else "large"


def way(dtype: torch.dtype, kind: str) -> str:
    """Which of :data:`WAYS` a dtype and kind of products takes."""
    if _forced and dtype in product_choices.WAYS[_forced[-1]]:
        return _forced[-1]
    return product_choices.choose(dtype, kind).way


@contextmanager
def forced_way(name: str) -> Iterator[None]:
    """Take one of :data:`WAYS` for every product of a dtype that has it until the end of the block."""
    _forced.append(name)
    try:
        yield
    finally:
        _forced.pop()


def _torch(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.mm(a, b, out=out)


def _onednn(a: Tensor, b: Tensor, out: Tensor) -> None:
    # The only way to oneDNN for ordinary tensors that copies neither of them. Its results are tensors of their own.
    most, whole = rows_at_once(b.shape[1]), a.shape[0] // ROW_STEP * ROW_STEP
    for start in range(0, whole, most):
        stop = min(start + most, whole)
        out[start:stop] = torch.ops.mkldnn._linear_pointwise(a[start:stop], b.T, None, "none", [], "")
    rest = a.shape[0] - whole
    if rest:
        filled = a.new_zeros(ROW_STEP, a.shape[1])
        filled[:rest] = a[whole:]
        out[whole:] = torch.ops.mkldnn._linear_pointwise(filled, b.T, None, "none", [], "")[:rest]


def _onednn_varied(a: Tensor, b: Tensor, out: Tensor) -> None:
    """In pieces of few sizes, padded with zeros and laid out anew: strides count among what makes a shape."""
    inner = _steps(a.shape[1])
    left = a.new_zeros(a.shape[0], inner)
    left[:, : a.shape[1]] = a
    start, n = 0, b.shape[1]
    while start < n:
        width = next((width for width in WIDTHS if width <= n - start), WIDTHS[-1])
        stop = min(start + width, n)
        right = b.new_zeros(inner, width)
        right[: b.shape[0], : stop - start] = b[:, start:stop]
        if stop - start == width:
            _onednn(left, right, out[:, start:stop])
        else:
            filled = out.new_empty(out.shape[0], width)
            _onednn(left, right, filled)
            out[:, start:stop] = filled[:, : stop - start]
        start = stop


def _steps(size: int) -> int:
    """The next whole multiple of :data:`ROW_STEP`."""
    return -(-size // ROW_STEP) * ROW_STEP


def varied_numbers(m: int, k: int, n: int) -> int:
    """What oneDNN's way holds at once beside the arguments of a product of varied sizes."""
    inner, width = _steps(k), next((width for width in WIDTHS if width <= n), WIDTHS[-1])
    return m * inner + inner * width + copied_numbers(m, inner, width) + (m * width if n < width else 0)


def rows_at_once(n: int) -> int:
    """Rows of ``n`` numbers that oneDNN makes at once."""
    return max(COPIED_NUMBERS // max(n, 1) // ROW_STEP, 1) * ROW_STEP


def copied_numbers(m: int, k: int, n: int) -> int:
    """What oneDNN's way holds at once beside the arguments of a product ``[m, k] [k, n]``."""
    whole = m // ROW_STEP * ROW_STEP
    return max(min(whole, rows_at_once(n)) * n, ROW_STEP * (k + n) if m > whole else 0)


def _widened(a: Tensor, b: Tensor, out: Tensor) -> None:
    """In float32, some rows at a time."""
    wide = b.to(torch.float32)
    rows = max(WIDENED_NUMBERS // max(*b.shape), 1)
    for start in range(0, a.shape[0], rows):
        out[start : start + rows] = a[start : start + rows].to(torch.float32) @ wide


def _native(a: Tensor, b: Tensor, out: Tensor) -> None:
    native.product(a if a.stride(1) == 1 else a.contiguous(), b, out)


WAYS: dict[str, Product] = {"torch": _torch, "onednn": _onednn, "widened": _widened, "native": _native}

_forced: list[str] = []
