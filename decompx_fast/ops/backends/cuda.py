"""The backend ``cuda``: the kernels of ``csrc/cuda``, compiled by nvcc at first use, for those without Triton.

The launchers take plain data and no header of PyTorch, so they are called through ctypes: one library per compute
capability serves every version of PyTorch, and the tests call the same functions on a CPU, where ``csrc/cuda`` is
compiled with an emulation of the device.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...bias_rules import BIAS_RULES, KERNEL_RULES
from ...errors import BackendError
from .. import registry

#: Device types on which ``backend="auto"`` prefers these kernels to Triton's. None, until they have been measured
#: side by side on a GPU (``make device-check`` does) and found faster.
AUTO_ON: tuple[str, ...] = ()

#: The sources, in a source tree or an editable install. A wheel does not hold them.
SOURCES = Path(__file__).resolve().parents[3] / "csrc" / "cuda"
UNITS = ("activation.cu", "bias_split.cu", "layernorm.cu", "mixing.cu", "status.cu")
NVCC_OPTIONS = ("-std=c++17", "-O3")

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
PRECISIONS = {"ieee": 0, "tf32": 1, "tf32x3": 2}


class Device(ctypes.Structure):
    """``DecompxDevice``: what a launch may use."""

    _fields_ = [(name, ctypes.c_int32) for name in ("multiprocessors", "shared_bytes", "clusters")]


class _Vector(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("stride_b", ctypes.c_int64),
        ("stride_i", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
    ]


class _State(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), *((f"stride_{axis}", ctypes.c_int64) for axis in "bik")]


class _RowArguments(ctypes.Structure):
    _fields_ = [
        *((name, _State) for name in ("x", "residual")),
        *((name, _Vector) for name in ("scale", "gain", "bias", "intercept")),
        ("workspace", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("n_b", "n_i", "n_k", "n_d")),
        *((name, ctypes.c_int32) for name in ("dtype", "rule", "centre", "share_after")),
        ("device", Device),
    ]


class _MixingArguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("out", "alpha", "p")),
        *((f"{name}_strides", 4 * ctypes.c_int64) for name in ("out", "alpha", "p")),
        *((name, ctypes.c_int64) for name in ("n_b", "n_h", "n_i", "n_j", "n_k", "n_v", "group", "offset", "window")),
        *((name, ctypes.c_int32) for name in ("causal", "dtype", "precision")),
        ("device", Device),
    ]


def _vector(t: Tensor | None) -> _Vector:
    """A vector ``[d]`` for all positions, or what begins with the axes ``b, i``."""
    if t is None:
        return _Vector()
    strides = (0, 0) if t.ndim == 1 else t.stride()[:2]
    return _Vector(t.data_ptr(), *strides, DTYPES[t.dtype])


def _state(t: Tensor | None) -> _State:
    return _State() if t is None else _State(t.data_ptr(), *t.stride()[:3])


@dataclass(frozen=True)
class Kernels:
    """The compiled launchers and the device that they launch on.

    The methods compute the ops of the same names; arguments as checked there.
    """

    library: ctypes.CDLL
    device: Device
    stream: int = 0

    def layernorm(
        self,
        x: Tensor,
        scale: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        *,
        centre: bool,
        rule: str,
    ) -> None:
        row = self._row("layernorm_", x, rule, bias)
        row.scale, row.gain, row.centre = _vector(scale), _vector(weight), centre
        self._run("layernorm", row, x)

    def bias_split(
        self, x: Tensor, bias: Tensor | None, *, rule: str, residual: Tensor | None, share_after_residual: bool
    ) -> None:
        row = self._row("bias_split_", x, rule, bias)
        row.residual, row.share_after = _state(residual), share_after_residual
        self._run("bias_split", row, x)

    def activation(self, a: Tensor, slope: Tensor, bias: Tensor | None, *, intercept: Tensor | None, rule: str) -> None:
        row = self._row("activation_", a, rule, bias)
        row.gain = _vector(slope)
        row.intercept = _vector(None if rule == "none" else intercept)
        self._run("activation", row, a)

    def mixing(
        self,
        out: Tensor,
        alpha: Tensor,
        p: Tensor,
        *,
        causal: bool,
        window: int | None,
        offset: int,
        precision: str,
    ) -> None:
        _refuse_dtype("mixing", "p", p)
        b, h, i, j = alpha.shape
        k, g, v = p.shape[2:]
        arguments = _MixingArguments(
            *(t.data_ptr() for t in (out, alpha, p)),
            *((4 * ctypes.c_int64)(*t.stride()[:4]) for t in (out, alpha, p)),
            *(b, h, i, j, k, v, h // g, offset, window or 0),
            *(causal, DTYPES[p.dtype], PRECISIONS[precision]),
            self.device,
        )
        self._check("mixing", self.library.decompx_mixing(ctypes.byref(arguments), ctypes.c_void_p(self.stream)))

    def _row(self, op: str, x: Tensor, rule: str, bias: Tensor | None) -> _RowArguments:
        _refuse_dtype(op, "the state", x)
        if rule not in KERNEL_RULES:
            raise _refusal(op, x.device, f"its kernels share by {', '.join(KERNEL_RULES)}, and rule is {rule!r}")
        if bias is None or rule == "none":
            bias = None
        row = _RowArguments(x=_state(x), bias=_vector(bias), dtype=DTYPES[x.dtype], rule=BIAS_RULES[rule].number)
        row.n_b, row.n_i, row.n_k, row.n_d = x.shape
        row.device = self.device
        return row

    def _run(self, name: str, row: _RowArguments, x: Tensor) -> None:
        # Kept until the launch; PyTorch gives its memory to others only after what is in the stream now.
        workspace = torch.empty(4, *x.shape[:3], dtype=torch.float32, device=x.device)
        row.workspace = workspace.data_ptr()
        launch = getattr(self.library, f"decompx_{name}")
        self._check(f"{name}_", launch(ctypes.byref(row), ctypes.c_void_p(self.stream)))

    def _check(self, op: str, status: int) -> None:
        if status:
            reason = self.library.decompx_status_text(status).decode()
            raise BackendError(f"{op}: backend='cuda' failed to launch: {reason}. Use another backend, or 'auto'")


def _refusal(op: str, device: torch.device, reason: str) -> BackendError:
    return BackendError(
        f"{op}: backend='cuda' cannot be used on {device}: {reason}. Use backend='auto', or one that can be used"
    )


def _refuse_dtype(op: str, name: str, t: Tensor) -> None:
    if t.dtype is torch.float64:
        raise _refusal(op, t.device, f"its kernels take float32, bfloat16 and float16, and {name} is float64")


def load(library: Path) -> ctypes.CDLL:
    """A compiled library, with the types of what it returns."""
    loaded = ctypes.CDLL(str(library))
    loaded.decompx_status_text.restype = ctypes.c_char_p
    loaded.decompx_status_text.argtypes = [ctypes.c_int]
    return loaded


def build(capability: tuple[int, int], *, folder: Path | None = None) -> Path:
    """Compile the kernels for a compute capability, or take what was compiled of the same sources before.

    Args:
        capability: such as ``(9, 0)``; at least 8.0.
        folder: where libraries are kept. ``None``: ``decompx_fast/cuda`` in the user's cache folder
            (``XDG_CACHE_HOME``).

    Returns:
        The library.

    Raises:
        BackendError: if there is no nvcc, if there are no sources, or with the end of what nvcc said.
    """
    library = _library(capability, folder)
    if library.exists():
        return library
    nvcc, reason = _nvcc()
    if nvcc is None:
        raise BackendError(f"backend='cuda' cannot be built: {reason}. Use backend='auto'")
    major, minor = capability
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as unfinished:
        target = Path(unfinished) / library.name
        arch = f"arch=compute_{major}{minor},code=sm_{major}{minor}"
        command = [nvcc, *NVCC_OPTIONS, "-gencode", arch, "-shared", "-Xcompiler", "-fPIC", "--threads", "0"]
        run = subprocess.run(
            [*command, "-o", target, *(SOURCES / unit for unit in UNITS)], capture_output=True, text=True, check=False
        )
        if run.returncode:
            said = "\n".join((run.stdout + run.stderr).strip().splitlines()[-20:])
            raise BackendError(f"backend='cuda' cannot be built: {nvcc} failed with\n{said}\nUse backend='auto'")
        target.replace(library)
    return library


def _library(capability: tuple[int, int], folder: Path | None = None) -> Path:
    """Where the library for a compute capability is kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"{sources_hash()[:16]}-sm_{capability[0]}{capability[1]}.so"
    return (folder or cache / "decompx_fast" / "cuda") / name


@functools.cache
def sources_hash() -> str:
    """Changes with every file that is compiled, and with the options."""
    digest = hashlib.sha256(repr((NVCC_OPTIONS, UNITS)).encode())
    for path in sorted(SOURCES.rglob("*.*")):
        if path.suffix in (".cu", ".cuh", ".h", ".cpp"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _nvcc() -> tuple[str | None, str]:
    """The compiler, or why there is none to run."""
    if not (SOURCES / UNITS[0]).exists():
        return None, f"its sources are not installed ({SOURCES} is missing): it needs a source tree, pip install -e ."
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")):
        if root and (Path(root) / "bin" / "nvcc").exists():
            return str(Path(root) / "bin" / "nvcc"), ""
    found = shutil.which("nvcc")
    return found, "" if found else "there is no nvcc on PATH or in CUDA_HOME to compile its kernels with"


def _probe(device: torch.device) -> tuple[bool, str]:
    if device.type != "cuda":
        return False, f"its kernels need a CUDA device, and this is {device}"
    if torch.version.hip is not None:
        return False, "its kernels need CUDA, and this PyTorch is built for ROCm"
    if torch.version.cuda is None:
        return False, "this PyTorch is built without CUDA"
    if not torch.cuda.is_available():
        return False, "PyTorch sees no CUDA device"
    capability = torch.cuda.get_device_capability(device)
    named = "compute capability " + ".".join(map(str, capability))
    if capability < registry.OLDEST_CAPABILITY:
        oldest = ".".join(map(str, registry.OLDEST_CAPABILITY))
        return False, f"{named} is older than {oldest}, the oldest supported"
    if _library(capability).exists():
        return True, f"{named}, compiled"
    nvcc, reason = _nvcc()
    return (False, reason) if nvcc is None else (True, f"{named}, to be compiled by {nvcc}")


@functools.cache
def _on_device(index: int) -> tuple[ctypes.CDLL, Device]:
    """The library for a device, which is the current one, and what its launches may use."""
    library, limits = load(build(torch.cuda.get_device_capability(index))), Device()
    status = library.decompx_current_device(ctypes.byref(limits))
    if status:
        reason = library.decompx_status_text(status).decode()
        raise BackendError(f"backend='cuda' cannot use cuda:{index}: {reason}. Use backend='auto'")
    return library, limits


def _kernels(t: Tensor) -> Kernels:
    return Kernels(*_on_device(t.device.index), torch.cuda.current_stream(t.device).cuda_stream)


def _register(names: Sequence[tuple[str, str]]) -> None:
    """Every op computes on the device of its first argument, in PyTorch's current stream."""
    registry.add_backend("cuda", _probe, auto_on=AUTO_ON)
    for op, method in names:

        def compute(t: Tensor, *tensors: Tensor | None, method: str = method, **options: object) -> None:
            with torch.cuda.device(t.device):
                getattr(_kernels(t), method)(t, *tensors, **options)

        registry.implements(op, "cuda")(compute)


_register(
    [("layernorm_", "layernorm"), ("bias_split_", "bias_split"), ("activation_", "activation"), ("mixing", "mixing")]
)
