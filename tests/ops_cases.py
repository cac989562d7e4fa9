"""Inputs for the tests of ops and kernels: awkward memory layouts, awkward values, and the rule for tolerances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from ops_formulas import error, rounding
from torch import Tensor

NAN = float("nan")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # on the CPU kernels run in the interpreter


def random_state(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """``[b, i, k, d]`` where one source is all zero and, from three positions on, all sources of the last are."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if shape[2] > 1:
        x[0, 0, 1] = 0
    if shape[0] * shape[1] > 2:
        x[-1, -1] = 0
    return x.to(DEVICE)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1, low: float | None = None) -> Tensor:
    """Normal numbers; uniform ones from ``low`` to ``low + 1`` if it is given."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator) if low is None else low + torch.rand(*shape, generator=generator)
    return values.to(dtype).to(DEVICE)


def aligned_with(x: Tensor, bias: Tensor) -> Tensor:
    """``x`` with a positive dot with ``bias`` in every source that is not zero.

    Signed shares divide by a sum that may almost cancel, and then magnify every rounding; with dots of one sign they
    do not, and errors can be compared.
    """
    bias = bias.expand(x.shape[0], x.shape[1], x.shape[3])[:, :, None].float()
    along = (x.float() * bias).sum(-1, keepdim=True) / (bias * bias).sum(-1, keepdim=True)
    return (x + (along.abs() - along) * bias).to(x.dtype)


def embedded(t: Tensor) -> tuple[Tensor, Tensor]:
    """A view with the values of ``t`` inside a larger buffer of NaN, and the buffer.

    The view is offset on every axis, its axes before the last are stored in another order, and its last axis is
    contiguous but not aligned.
    """
    order = [*range(t.ndim - 2, -1, -1), t.ndim - 1]
    buffer = torch.full([n + 3 for n in t.permute(order).shape], NAN, dtype=t.dtype, device=t.device)
    view = buffer[tuple(slice(1, n + 1) for n in t.permute(order).shape)].permute(order)
    view.copy_(t)
    return view, buffer


def surroundings(buffer: Tensor, view: Tensor) -> Tensor:
    """A copy of the buffer with NaN in place of the view, to see that nothing else was written."""
    rest = buffer.clone()
    rest.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(NAN)
    return rest


def in_place(op: Callable[..., Tensor], backend: str, x: Tensor, *args: Any, **options: Any) -> list[Tensor]:
    """The op's result by a backend and by its twin, both in a view inside a buffer of NaN that must stay NaN."""
    results = []
    for each in (backend, "torch"):
        view, buffer = embedded(x)
        assert op(view, *args, backend=each, **options) is view
        assert surroundings(buffer, view).isnan().all()
        results.append(view.clone())
    return results


def into_views(
    op: Callable[..., Tensor], backend: str, shape: Sequence[int], dtype: torch.dtype, *args: Any, **options: Any
) -> list[Tensor]:
    """The op's result by a backend and by its twin, written into a view inside a buffer of NaN that must stay NaN."""
    results = []
    for each in (backend, "torch"):
        view, buffer = embedded(torch.full(shape, NAN, dtype=dtype, device=args[0].device))
        assert op(*args, out=view, backend=each, **options) is view
        assert surroundings(buffer, view).isnan().all()
        results.append(view.clone())
    return results


def assert_accurate(got: Tensor, twin: Tensor, exact: Tensor, times: float = 2) -> None:
    """A kernel's error is at most twice that of PyTorch in the same precision, both against float64.

    PyTorch can be exact by luck where numbers are few, so its error counts as at least half a unit in the last place
    of the largest result, which storing any result may cost. (Triton's interpreter rounds to bfloat16 towards zero,
    at twice that cost; GPUs round to nearest.)
    """
    allowed = times * max(error(twin, exact), rounding(exact, twin.dtype))
    assert error(got, exact) <= allowed, f"error {error(got, exact):.3g}, allowed {allowed:.3g}"
