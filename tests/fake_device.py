"""A tensor that says it is on a GPU, and holds one on the CPU, which computes.

Operations that meet tensors of both devices raise, as a GPU does (single numbers apart, as there). What is not
simulated: time, memory, streams. :mod:`fake_gpu` makes whole tests run on it, :mod:`counted_device` counts.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch

CUDA = torch.device("cuda", 0)


class Fake(torch.Tensor):
    """A tensor that says it is on the GPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Fake:
        fake = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=CUDA,
            requires_grad=held.requires_grad,
        )
        fake.held = held
        return fake

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"Fake({self.held!r})"

    def tolist(self):
        return self.held.tolist()

    def data_ptr(self):
        return self.held.data_ptr()

    def untyped_storage(self):
        return self.held.untyped_storage()

    def numpy(self, **options):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")


#: What may read a tensor of one device and write one of the other.
COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


def mapped(function, tree):
    """What a function makes of every tensor of nested arguments; ten times as fast as PyTorch's own, which knows
    more."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, (tuple, list)) and not hasattr(tree, "_fields"):
        return type(tree)(mapped(function, part) for part in tree)
    return {key: mapped(function, part) for key, part in tree.items()} if isinstance(tree, dict) else tree


def held(tree):
    """Nested arguments with what the fake tensors hold in their place."""
    return mapped(lambda tensor: tensor.held if isinstance(tensor, Fake) else tensor, tree)


def tensors_of(*trees) -> list[torch.Tensor]:
    """All tensors among nested arguments, in their order."""
    tensors: list[torch.Tensor] = []
    mapped(tensors.append, trees)
    return tensors


def compute(func, args, kwargs):
    """Run an operation on what its tensors hold; the result is on the fake device if they are."""
    tensors = tensors_of(args, kwargs)
    fakes = [tensor for tensor in tensors if isinstance(tensor, Fake)]
    if fakes and func not in COPIES:
        others = [tensor for tensor in tensors if not isinstance(tensor, Fake) and tensor.ndim > 0]
        # An index may be on the CPU.
        if others and "index" not in func.__name__:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, found cuda:0 and cpu")
    on_gpu = bool(fakes)
    if func is torch.ops.aten.copy_.default:
        on_gpu = isinstance(args[0], Fake)
    if kwargs.get("device") is not None:
        on_gpu = torch.device(kwargs["device"]).type == "cuda"
        kwargs = kwargs | {"device": torch.device("cpu")}
    elif not fakes and "device" not in kwargs:
        on_gpu = False
    result = func(*held(args), **held(kwargs))
    if not on_gpu:
        return result
    if func is torch.ops.aten._local_scalar_dense.default:
        return result
    same = {id(fake.held): fake for fake in fakes}

    # In place: the argument itself.
    return mapped(lambda tensor: same[id(tensor)] if id(tensor) in same else Fake(tensor), result)


GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace {
struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::DeviceIndex deviceCount() const noexcept override { return %d; }
};
}
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
"""


def register_guard(*, devices: int) -> None:
    """What makes a device the current one, which does nothing here; a PyTorch without CUDA has none at all.

    Args:
        devices: how many there are for autograd, which starts a thread for each, after which processes cannot fork.
    """
    torch._C._ensureCUDADeviceGuardSet()
    if torch.version.cuda is not None:
        return
    package = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "guard.cpp", Path(folder) / "guard.so"
        source.write_text(GUARD % devices)
        options = ["-std=c++20", "-shared", "-fPIC", f"-I{package / 'include'}", "-o", str(library), str(source)]
        subprocess.run(["g++", *options, f"-L{package / 'lib'}", "-lc10"], check=True)
        ctypes.CDLL(str(library))
