"""The kernels of ``csrc/cuda`` compiled for the CPU with an emulated device, and tensors whose end is guarded."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from decompx_fast.ops.backends import cuda

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "cuda_emulation"
SOURCE = cuda.SOURCES / "emulation" / "emulation.cpp"
OPTIONS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-fPIC", "-shared")

PROT_NONE = 0  # of mprotect(2): the page may not be touched

# Multiprocessors, shared memory, clusters: so small that small rows are divided in every way there is.
DEVICES = {
    "fused": cuda.Device(1, 99 << 10, False),  # one block goes over a row, and all of it stays in shared memory
    "refetched": cuda.Device(1, 6 << 10, False),  # there is room for few of its vectors
    "clustered": cuda.Device(1, 6 << 10, True),  # blocks that wait for one another
    "split": cuda.Device(64, 99 << 10, False),  # a launch for every pass
}


@functools.cache
def library() -> ctypes.CDLL:
    """The emulated kernels, compiled once for every state of the sources."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler (CXX, c++ or g++) to run the CUDA kernels on the CPU, and there is none")
    key = hashlib.sha256(f"{compiler} {OPTIONS} {cuda.sources_hash()}".encode()).hexdigest()[:16]
    path = CACHE / f"{key}.so"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        run = subprocess.run([compiler, *OPTIONS, SOURCE, "-o", unfinished], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        unfinished.replace(path)
    return cuda.load(path)


def kernels(way: str = "fused", *, backwards: bool = False) -> cuda.Kernels:
    """The kernels on an emulated device whose threads run in this order."""
    library().decompx_emulation_order(int(backwards))
    return cuda.Kernels(library(), DEVICES[way])


def bytes_moved() -> tuple[int, int]:
    """Bytes of states read and written in accesses of 16 bytes, since this was asked last."""
    moved = (2 * ctypes.c_int64)()
    library().decompx_emulation_bytes(moved)
    return moved[0], moved[1]


def guarded(t: Tensor) -> Tensor:
    """A copy of ``t``, strides and all, whose memory ends at a page that may not be touched."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    n_bytes = -(-span * t.element_size() // 16) * 16  # kernels may rely on 16 bytes where sizes are multiples of it
    pages = -(-n_bytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    numbers = torch.frombuffer(memory, dtype=t.dtype)
    end = numbers.data_ptr() + pages * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(end), ctypes.c_size_t(mmap.PAGESIZE), PROT_NONE) == 0
    first = (pages * mmap.PAGESIZE - n_bytes) // t.element_size()
    view = numbers.as_strided(t.shape, t.stride(), first)
    return view.copy_(t)
