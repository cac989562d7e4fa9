"""A plugin of pytest, ``-p fake_gpu``: a CUDA device that is not there, so that what would mix devices fails here.

    TRITON_INTERPRET=1 PYTHONPATH=$PWD:tests python -m pytest -p fake_gpu tests/test_kernels_rows.py

A tensor on the fake device holds one on the CPU, which computes; operations that meet tensors of both devices raise, as
a GPU does (single numbers apart, as there). Kernels are interpreted. What is not simulated: time, memory, streams.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import torch
from fake_device import CUDA, Fake, compute, register_guard
from torch.utils._python_dispatch import TorchDispatchMode


class FakeMode(TorchDispatchMode):
    """Catches what makes tensors on the fake device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def with_index(device):
    """``cuda`` as ``cuda:0``: to find the current device, PyTorch would ask for a real one."""
    named = isinstance(device, (str, torch.device)) and str(device) == "cuda"
    return CUDA if named else device


def install() -> None:
    register_guard(devices=1)
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
