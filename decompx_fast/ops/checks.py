"""Checks of an op's arguments, each raising ``InputError`` that names the argument, what it got and what is
allowed.

They read shapes, dtypes and devices only, so they also run while ``torch.compile`` traces. :func:`separate`
reads addresses and belongs in the body of a custom op.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

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
    """``t`` is written to, so no two of its elements may share memory (as in an expanded view), and what is in memory
    must be its numbers (and not their negatives, as in the imaginary part of a conjugate)."""
    if not torch.compiler.is_compiling() and t.is_neg():
        raise InputError(
            f"{op}: `{name}` is written to, but is a view that negates what is in memory: pass t.resolve_neg(), a copy"
        )
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


def whole(op: str, name: str, value: object, least: int) -> None:
    """``value`` is a whole number from ``least`` on, of 64 bits."""
    most = (1 << 63) - 1
    integer = isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)
    if not integer or not least <= value <= most:  # type: ignore[operator]
        raise InputError(f"{op}: `{name}` is {value!r}; it must be a whole number from {least} to {most}, or None")


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


def together(op: str, **tensors: Tensor | None) -> None:
    """What holds for all tensors of an op: they are on one device, and nothing differentiates or transforms them."""
    devices(op, **tensors)
    undifferentiated(op, **tensors)


def undifferentiated(op: str, **tensors: Tensor | None) -> None:
    """No tensor takes part in differentiation or in a transform of ``torch.func``, which would go wrong in silence:
    the ops write where autograd sees nothing, and their results have no history.
    """
    recorded, compiled = torch.is_grad_enabled(), torch.compiler.is_compiling()
    # What is compiled can't ask; a transform of it ends at the custom op, which has no rule for any.
    transformed = not compiled and torch._C._functorch.peek_interpreter_stack() is not None
    for name, t in tensors.items():
        if t is None:
            continue
        if transformed and torch._C._functorch.is_functorch_wrapped_tensor(t):
            raise InputError(
                f"{op}: `{name}` is transformed by torch.func (vmap, grad, jvp ...), which this op does not support: "
                "call it outside, on a plain tensor; instead of vmap, use its batch axis"
            )
        if recorded and t.requires_grad:
            raise InputError(
                f"{op}: `{name}` requires grad, and this op is not differentiable: call it under torch.no_grad(), "
                "or .detach() the tensor"
            )
        if not compiled and forward_ad.unpack_dual(t).tangent is not None:
            raise InputError(
                f"{op}: `{name}` carries a tangent of forward-mode differentiation, which this op does not support: "
                "call it on what forward_ad.unpack_dual gives"
            )


def separate(op: str, written: Mapping[str, Tensor], **read: Tensor | None) -> None:
    """What is written shares no memory with itself, with what else is written, or with what is read.

    Views that interleave without touching are recognised.

    Raises:
        InputError: if they overlap, or cannot be told apart.
    """
    others: dict[str, Tensor | None] = {**written, **read}
    for name, target in written.items():
        if overlaps_itself(target):
            raise InputError(
                f"{op}: `{name}` is written to, and some of its elements share memory (shape {list(target.shape)}, "
                f"strides {list(target.stride())}): pass a copy"
            )
        del others[name]
        for other_name, other in others.items():
            if other is not None and overlaps(target, other):
                raise InputError(
                    f"{op}: `{name}` overlaps `{other_name}` in memory: it must be a buffer of its own, "
                    f"or `{other_name}` a .clone()"
                )


def overlaps_itself(t: Tensor) -> bool:
    """Whether two elements may share memory: False only if it is certain that they do not."""
    if t.is_contiguous():
        return False
    extent = 1
    for stride, size in sorted((s, n) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1):
        if stride < extent:
            return t.numel() > 0
        extent += (size - 1) * stride
    return False


def overlaps(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors may share memory: False only if it is certain that they do not."""
    if left.numel() == 0 or right.numel() == 0 or left.device != right.device:
        return False
    (start, stop), (other_start, other_stop) = _span(left), _span(right)
    if stop <= other_start or other_stop <= start:
        return False
    # Interleaved views: where all outer strides are multiples of a period, and what is inside one period of
    # the left tensor never meets what is inside one of the right, they do not overlap.
    spans = [_byte_axes(t) for t in (left, right)]
    periods = {stride for axes in spans for _, stride in axes}
    return not any(_apart([start, other_start], spans, period) for period in periods)


def _span(t: Tensor) -> tuple[int, int]:
    """The addresses between which a tensor lies; two storages may be on one memory, such as a NumPy array's."""
    start = t.data_ptr()
    return start, start + (t.nbytes if t.is_contiguous() else _extent(_byte_axes(t)))


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
