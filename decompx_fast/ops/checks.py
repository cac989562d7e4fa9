"""Checks of an op's arguments, each raising ``InputError`` that names the argument, what it got and what is
allowed.

They read shapes, dtypes and devices only, so they also run while ``torch.compile`` traces. :func:`no_overlap`
reads addresses and belongs in the body of a custom op.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..errors import InputError

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def tensor(op: str, name: str, t: Tensor, axes: str) -> None:
    """``t`` is a floating tensor with these axes (such as ``"b i k d"``)."""
    named = axes.split()
    if not isinstance(t, Tensor):
        raise InputError(f"{op}: `{name}` is {type(t).__name__}; it must be a tensor [{', '.join(named)}]")
    if t.ndim != len(named):
        raise InputError(f"{op}: `{name}` has shape {list(t.shape)}; it must be [{', '.join(named)}]")
    if t.dtype not in FLOATS:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS)
        raise InputError(f"{op}: `{name}` has dtype {t.dtype}; allowed are {allowed}")


def contiguous_last(op: str, name: str, t: Tensor) -> None:
    """Neighbours along the last axis of ``t`` are neighbours in memory."""
    if t.shape[-1] > 1 and t.stride(-1) != 1:
        raise InputError(
            f"{op}: `{name}` has strides {list(t.stride())}; its last axis must have stride 1: "
            "pass a view that keeps it, or a .contiguous() copy"
        )


def writable(op: str, name: str, t: Tensor) -> None:
    """``t`` is written to, so no two of its elements may share memory (as in an expanded view)."""
    if any(size > 1 and stride == 0 for size, stride in zip(t.shape, t.stride(), strict=True)):
        raise InputError(
            f"{op}: `{name}` is written to, but is an expanded view (strides {list(t.stride())}): pass a copy"
        )


def shape(op: str, name: str, t: object, allowed: Sequence[Sequence[int]], meaning: str) -> None:
    """``t`` is a tensor of one of the ``allowed`` shapes; ``meaning`` says where the sizes come from."""
    if not isinstance(t, Tensor):
        listed = " or ".join(str(list(sizes)) for sizes in allowed)
        raise InputError(f"{op}: `{name}` is {type(t).__name__}; it must be a tensor {listed} ({meaning})")
    if not any(list(t.shape) == list(sizes) for sizes in allowed):
        listed = " or ".join(str(list(sizes)) for sizes in allowed)
        raise InputError(f"{op}: `{name}` has shape {list(t.shape)}; allowed: {listed} ({meaning})")


def dtype(op: str, name: str, t: Tensor, allowed: Iterable[torch.dtype], meaning: str) -> None:
    """``t`` has one of the ``allowed`` dtypes."""
    allowed = tuple(dict.fromkeys(allowed))
    if t.dtype not in allowed:
        listed = " or ".join(str(d) for d in allowed)
        raise InputError(f"{op}: `{name}` is {t.dtype}; allowed: {listed} ({meaning}): cast it with .to(...)")


def devices(op: str, **tensors: Tensor | None) -> None:
    """All tensors are on one device."""
    given = {name: t.device for name, t in tensors.items() if t is not None}
    if len(set(given.values())) > 1:
        listed = ", ".join(f"`{name}` on {device}" for name, device in given.items())
        raise InputError(f"{op}: all tensors must be on one device, but {listed}: move them with .to(...)")


def choice(op: str, name: str, value: object, allowed: Sequence[object]) -> None:
    """``value`` is one of the ``allowed``."""
    if value not in allowed:
        raise InputError(f"{op}: `{name}` is {value!r}; allowed: {', '.join(repr(a) for a in allowed)}")


def state(op: str, name: str, x: Tensor, *, axes: str = "b i k d") -> None:
    """``x`` is a decomposed state that may be written to."""
    tensor(op, name, x, axes)
    contiguous_last(op, name, x)
    writable(op, name, x)


def like_state(op: str, name: str, t: Tensor, x: Tensor, *, state: str = "x") -> None:
    """``t`` has the shape and dtype of the state ``x``."""
    tensor(op, name, t, "b i k d")
    shape(op, name, t, [x.shape], f"that of `{state}`")
    dtype(op, name, t, (x.dtype,), f"that of `{state}`")
    contiguous_last(op, name, t)


def per_position(op: str, name: str, t: Tensor | None, x: Tensor, *, state: str = "x") -> None:
    """``t`` is a vector for the last axis of the state ``x``: ``[d]``, or ``[b, i, d]``, one per position."""
    if t is None:
        return
    b, i, _, d = x.shape
    shape(op, name, t, [[d], [b, i, d]], f"the last axis of `{state}`, or its b, i and last axis")
    dtype(op, name, t, (x.dtype, torch.float32), f"that of `{state}`, or float32")
    contiguous_last(op, name, t)


def no_overlap(op: str, name: str, written: Tensor, other_name: str, other: Tensor) -> None:
    """``written`` shares no memory with ``other``; views that interleave without touching are recognised.

    Raises:
        InputError: if they overlap, or cannot be told apart.
    """
    if overlaps(written, other):
        raise InputError(f"{op}: `{name}` overlaps `{other_name}` in memory: it must be a buffer of its own")


def overlaps(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors may share memory: False only if it is certain that they do not."""
    if left.numel() == 0 or right.numel() == 0:
        return False
    if left.untyped_storage().data_ptr() != right.untyped_storage().data_ptr():
        return False
    spans = [_byte_axes(t) for t in (left, right)]
    starts = [int(t.storage_offset()) * t.element_size() for t in (left, right)]
    ends = [start + _extent(axes) for start, axes in zip(starts, spans, strict=True)]
    if ends[0] <= starts[1] or ends[1] <= starts[0]:
        return False
    # Interleaved views: where all outer strides are multiples of a period, and what is inside one period of
    # the left tensor never meets what is inside one of the right, they do not overlap.
    periods = {stride for axes in spans for _, stride in axes}
    return not any(_apart(starts, spans, period) for period in periods)


def _byte_axes(t: Tensor) -> list[tuple[int, int]]:
    """(size, stride in bytes) of the axes that matter; the last entry is the element itself."""
    item = t.element_size()
    axes = [(n, abs(s) * item) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1 and s != 0]
    return [*axes, (item, 1)]


def _extent(axes: list[tuple[int, int]]) -> int:
    return 1 + sum((size - 1) * stride for size, stride in axes)


def _apart(starts: list[int], spans: list[list[tuple[int, int]]], period: int) -> bool:
    extents = [_extent([axis for axis in axes if axis[1] % period]) if period > 1 else 1 for axes in spans]
    if max(extents) > period:
        return False
    gap = (starts[1] - starts[0]) % period
    return extents[0] <= gap and gap + extents[1] <= period
