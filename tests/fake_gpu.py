"""A plugin of pytest, ``-p fake_gpu``: a CUDA device that is not there, so that what would mix devices fails here.

    TRITON_INTERPRET=1 PYTHONPATH=$PWD:tests python -m pytest -p fake_gpu tests/test_kernels_rows.py

A tensor on the fake device holds one on the CPU, which computes; operations that meet tensors of both devices raise, as
a GPU does (single numbers apart, as there). Kernels are interpreted. What is not simulated: time, memory, streams.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

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

    def untyped_storage(self):
        return self.held.untyped_storage()

    def numpy(self, **options):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")


#: What may read a tensor of one device and write one of the other.
COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


def compute(func, args, kwargs):
    """Run an operation on what its tensors hold; the result is on the fake device if they are."""
    tensors = []
    tree_map(lambda leaf: tensors.append(leaf) if isinstance(leaf, torch.Tensor) else None, (args, kwargs))
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
    unwrapped = tree_map(lambda leaf: leaf.held if isinstance(leaf, Fake) else leaf, (args, kwargs))
    result = func(*unwrapped[0], **unwrapped[1])
    if not on_gpu:
        return result
    if func is torch.ops.aten._local_scalar_dense.default:
        return result
    same = {id(fake.held): fake for fake in fakes}

    def wrapped(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return same[id(leaf)] if id(leaf) in same else Fake(leaf)  # in place: the argument itself

    return tree_map(wrapped, result)


class FakeMode(TorchDispatchMode):
    """Catches what makes tensors on the fake device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>)
"""


def register_guard() -> None:
    """What makes a device the current one, which does nothing here; a PyTorch without CUDA has none at all."""
    torch._C._ensureCUDADeviceGuardSet()
    if torch.version.cuda is not None:
        return
    package = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "guard.cpp", Path(folder) / "guard.so"
        source.write_text(GUARD)
        options = ["-std=c++20", "-shared", "-fPIC", f"-I{package / 'include'}", "-o", str(library), str(source)]
        subprocess.run(["g++", *options, f"-L{package / 'lib'}", "-lc10"], check=True)
        ctypes.CDLL(str(library))


def with_index(device):
    """``cuda`` as ``cuda:0``: to find the current device, PyTorch would ask for a real one."""
    named = isinstance(device, (str, torch.device)) and str(device) == "cuda"
    return CUDA if named else device


def install() -> None:
    register_guard()
    to = torch.Tensor.to
    torch.Tensor.to = lambda self, *args, **kwargs: to(
        self, *map(with_index, args), **{name: with_index(value) for name, value in kwargs.items()}
    )
    tensor = torch.tensor  # which would look for a driver itself, where PyTorch is built for CUDA
    torch.tensor = lambda data, *, device=None, **options: (
        tensor(data, **options) if device is None else tensor(data, device="cpu", **options).to(device)
    )
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # the tensor itself, not its data, is replaced
    torch.cuda._lazy_init = lambda: None
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.get_device_name = lambda device=None: "fake"
    properties = SimpleNamespace(name="fake", total_memory=80 << 30, major=9, minor=0, multi_processor_count=132)
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.mem_get_info = lambda device=None: (64 << 30, 80 << 30)
    torch.Tensor.cuda = lambda self, *_, **__: self.to("cuda")
    FakeMode().__enter__()


def pytest_configure(config) -> None:
    from decompx_fast.linearize import readers

    readers.Tensor = Fake  # the one type of weights, besides a parameter, that is not refused


install()  # as a plugin is imported, before any test module asks what devices there are
