"""A GPU that is not there, which counts what an explanation starts on it, and how often the host waits for it.

Every operation of PyTorch on the device that is no view and no allocation is one launch, and so is each kernel of the
library, whose numbers the twin computes. The host waits where a number of the device comes to it (``item``,
``tolist``, ``bool``, ``cpu``), where a shape depends on numbers (``nonzero``, boolean indices, ``unique``), and where
pageable memory is copied to the device. Not simulated: that some of PyTorch's operations are several kernels.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from fake_device import Fake, compute, held, register_guard, tensors_of
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

ROOT = str(Path(__file__).resolve().parent.parent / "decompx_fast")

aten = torch.ops.aten

#: Operations that start nothing: they allocate, or look at a tensor in another way.
NO_LAUNCH = {
    *(aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.resize_),
    *(aten._local_scalar_dense, aten.lift_fresh, aten.detach, aten._unsafe_view, aten._reshape_alias, aten.set_),
    aten.is_nonzero,
}

#: Operations whose result's shape depends on numbers, or is a number.
WAITS = {
    *(aten._local_scalar_dense, aten.nonzero, aten.nonzero_static, aten.masked_select, aten._unique2, aten._unique),
    *(
        aten.unique_dim,
        aten.unique_consecutive,
        aten.unique_dim_consecutive,
        aten.bincount,
        aten.equal,
        aten.is_nonzero,
    ),
    *(aten.repeat_interleave, aten.histc),
}


@dataclass
class Counts:
    """What was started and waited for, by the line of the library that did it.

    Attributes:
        launches, waits: ``"folder/file.py:line operation"`` to how often.
        moved: the same to the bytes that launches of PyTorch's operations read and write at the least.
        allocated: the same to how often memory of :attr:`large` bytes at the least was allocated.
    """

    launches: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    allocated: Counter[str] = field(default_factory=Counter)
    large: int = 1 << 62

    def launched(self, *folders: str) -> int:
        """How many launches, of some folders of the library alone if any are named."""
        return _total(self.launches, folders)

    def waited(self, *folders: str) -> int:
        """How often the host waited."""
        return _total(self.waits, folders)


def _total(counter: Counter[str], folders: tuple[str, ...]) -> int:
    return sum(n for site, n in counter.items() if not folders or site.startswith(folders))


class CountingMode(TorchDispatchMode):
    """Computes on the fake device, and counts."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = compute(func, args, kwargs)
        given, made = tensors_of(args, kwargs), tensors_of(result)
        if not any(isinstance(t, Fake) for t in (*given, *made)):
            return result
        packet = func.overloadpacket
        known = {t.held.untyped_storage().data_ptr() for t in given if isinstance(t, Fake)}
        for nbytes in (t.held.untyped_storage().nbytes() for t in made if isinstance(t, Fake) and is_new(t, known)):
            if nbytes >= self.counts.large:
                self.counts.allocated[f"{site()} {func}"] += 1
        if waits(func, args, kwargs, given, made):
            self.counts.waits[f"{site()} {func}"] += 1
        if not func.is_view and packet not in NO_LAUNCH:
            self.counts.launches[f"{site()} {func}"] += 1
            self.counts.moved[f"{site()} {func}"] += sum(t.nbytes for t in (*given, *made))
        return result


def is_new(made: Fake, known: set[int]) -> bool:
    """Whether memory is none of the arguments' own, by their addresses."""
    return made.held.untyped_storage().data_ptr() not in known


def waits(func, args, kwargs, given, made) -> bool:
    packet = func.overloadpacket
    if packet in WAITS and not (packet is aten.repeat_interleave and func._overloadname != "Tensor"):
        return True
    if packet in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_):
        indices = [index for index in args[1] if index is not None]
        return any(index.dtype in (torch.bool, torch.uint8) or not isinstance(index, Fake) for index in indices)
    if packet is aten._to_copy:
        return isinstance(args[0], Fake) != isinstance(made[0], Fake)
    if packet is aten.copy_:
        return isinstance(args[0], Fake) != isinstance(args[1], Fake) and args[1].ndim > 0
    return False


def site() -> str:
    """The innermost line of the library that is being run, under its folder."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(ROOT):
            return f"{name[len(ROOT) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


@contextlib.contextmanager
def counting(large: int = 1 << 62) -> Iterator[Counts]:
    """The fake device, with the library's kernels for a GPU, of which only the launches are simulated.

    Args:
        large: allocations of so many bytes are counted.
    """
    from decompx_fast.kernels import launch
    from decompx_fast.linearize import readers, record
    from decompx_fast.ops import registry

    register()
    counts = Counts(large=large)

    def start(kernel: Any, *_: Any, **__: Any) -> None:
        counts.launches[f"{site()} {kernel.fn.__name__}"] += 1

    def both(op: str) -> Callable[..., None]:
        by_triton, twin = (registry._implementations[op, backend] for backend in ("triton", "torch"))

        def compute_both(*tensors: Any, **options: Any) -> None:
            by_triton(*tensors, **options)
            with _disable_current_modes():
                twin(*held(tensors), **held(options))

        return compute_both

    ops = [op for op, backend in registry._implementations if backend == "triton" and op != "add_norm_"]
    backends = {
        "torch": registry._backends["torch"],
        "triton": replace(registry._backends["triton"], probe=lambda device: (True, "as if there were a GPU")),
    }

    def tolist(fake: Fake) -> Any:
        counts.waits[f"{site()} tolist"] += 1
        return fake.held.tolist()

    tensor = torch.tensor
    record._directions.cache_clear()  # so that every run begins alike, and leaves nothing that is not there
    with (
        mock.patch.dict(registry._backends, backends, clear=True),
        mock.patch.dict(registry._implementations, {(op, "triton"): both(op) for op in ops}),
        mock.patch.multiple(registry, _heard=lambda: False, _is_plain=lambda argument: True),
        mock.patch.multiple(launch, start=start, arch_of=lambda device: "sm_90", multiprocessors=lambda device: 132),
        mock.patch.multiple(torch.cuda, _lazy_init=lambda: None, mem_get_info=lambda device=None: (64 << 30, 80 << 30)),
        mock.patch.object(Fake, "tolist", tolist),
        mock.patch.object(readers, "Tensor", Fake),
        mock.patch.object(record, "Tensor", Fake),
        # PyTorch would look for a driver.
        mock.patch.object(
            torch,
            "tensor",
            lambda data, *, device=None, **options: (
                tensor(data, **options) if device is None else tensor(data, **options).to(device)
            ),
        ),
        CountingMode(counts),
    ):
        try:
            yield counts
        finally:
            record._directions.cache_clear()


@functools.cache
def register() -> None:
    register_guard(devices=0)


def on_device(model: torch.nn.Module) -> torch.nn.Module:
    """A model whose parameters and buffers are on the fake device."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = torch.nn.Parameter(Fake(parameter.detach()), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Fake(buffer)
    return model
