"""Which backends exist, where each can be used, and which function computes an op on it.

A backend is a name, a probe that says whether it can be used on a device (and why not), and the device types
on which ``backend="auto"`` prefers it. An op's file adds its own functions with :func:`implements`. So a new
backend is one call of :func:`add_backend` and one function per op that it can do; no op changes.
"""

import functools
import importlib.util
import inspect
import os
import re
import shutil
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from ..bias_rules import KERNEL_RULES
from ..errors import BackendError
from .shares import full_precision

Probe = Callable[[torch.device], tuple[bool, str]]

# Triton decides when a kernel is decorated, so the value at import counts, not a later one.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
OLDEST_TRITON = (3, 6)
OLDEST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class _Backend:
    probe: Probe
    auto_on: tuple[str, ...]


_backends: dict[str, _Backend] = {}
_implementations: dict[tuple[str, str], Callable[..., None]] = {}


def add_backend(name: str, probe: Probe, *, auto_on: Sequence[str] = ()) -> None:
    """Make a backend known.

    Args:
        name: what users write in ``backend=``.
        probe: tells for a device whether the backend can be used there, and the reason.
        auto_on: device types (``"cpu"``, ``"cuda"``) on which ``"auto"`` prefers it to the backends known so
            far.
    """
    _backends[name] = _Backend(probe, tuple(auto_on))


def implements(op: str, backend: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: this function computes ``op`` on ``backend``, in the precision of its arguments under autocast too."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def compute(t: torch.Tensor, *tensors: Any, **options: Any) -> None:
            with full_precision(t.device):
                function(t, *tensors, **options)

        _implementations[op, backend] = compute
        return function

    return add


def backend_names() -> tuple[str, ...]:
    """What ``backend=`` takes, ``"auto"`` first."""
    return ("auto", *_backends)


def usable(backend: str, device: torch.device | str) -> tuple[bool, str]:
    """Whether ``backend`` can be used for tensors on ``device``, and the reason."""
    if backend not in _backends:
        return False, f"no such backend; known are {', '.join(_backends)}"
    return _backends[backend].probe(torch.device(device))


def select(
    op: str, backend: str, device: torch.device, *, limits: Mapping[str, str | None] | None = None
) -> Callable[..., None]:
    """The function that computes ``op``: the named backend's or, for ``"auto"``, the first that can.

    Args:
        op: name of the op.
        backend: ``"auto"`` or a backend's name.
        device: where the tensors are.
        limits: backend to the reason why it cannot do this call (``None``: it can).

    Raises:
        BackendError: if the named backend cannot be used, with the reason.
    """
    limits = limits or {}
    if backend != "auto":
        reason = _refusal(op, backend, device, limits)
        if reason is not None:
            raise BackendError(
                f"{op}: backend={backend!r} cannot be used on {device}: {reason}. "
                "Use backend='auto', or one that can be used"
            )
        return _implementations[op, backend]
    preferred = [name for name in reversed(_backends) if device.type in _backends[name].auto_on]
    for name in (*preferred, "torch"):
        if _refusal(op, name, device, limits) is None:
            return _implementations[op, name]
    raise BackendError(f"{op}: no backend can do this call on {device}: {limits}")


def _refusal(op: str, backend: str, device: torch.device, limits: Mapping[str, str | None]) -> str | None:
    can, reason = usable(backend, device)
    if not can:
        return reason
    if (op, backend) not in _implementations:
        return f"it has no {op}"
    return limits.get(backend)


def operator(name: str, *, writes: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: this function, which only writes to some of its arguments, is the operator ``decompx_fast::name``.

    What traces, transforms or listens to operators sees it as one. Where nothing does, its body is called as it is:
    the way through PyTorch's dispatcher takes longer than a kernel on a short text.

    Args:
        name: of the operator.
        writes: the arguments that it writes to.
    """

    def make(function: Callable[..., None]) -> Callable[..., None]:
        dispatched = torch.library.custom_op(f"decompx_fast::{name}", function, mutates_args=writes)
        dispatched.register_fake(lambda *args: None)
        written = [number for number, known in enumerate(inspect.signature(function).parameters) if known in writes]

        @functools.wraps(function)
        def call(*args: Any) -> None:
            if torch.compiler.is_compiling() or _heard() or not all(map(_is_plain, args)):
                dispatched(*args)
                return
            function(*args)
            torch.autograd.graph.increment_version([args[n] for n in written if not args[n].is_inference()])

        return call

    return make


def _heard() -> bool:
    """Whether anything sees each operation here: a tracer, a default device of the caller's, or a profiler."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._profiler_enabled()
    )


def _is_plain(argument: object) -> bool:
    """Whether an argument is no tensor of a kind that wants to see what is done with it, or that holds no numbers."""
    return not isinstance(argument, torch.Tensor) or (type(argument) in _PLAIN and not argument.is_meta)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def triton_dtype_limit(dtype: torch.dtype) -> str | None:
    """Why the Triton kernels cannot do this dtype, or ``None``."""
    if dtype is torch.float64:
        return "its kernels take float32, bfloat16 and float16, and the state is float64"
    return None


def triton_rule_limit(rule: str) -> str | None:
    """Why the Triton kernels cannot share by this rule, or ``None``."""
    if rule not in KERNEL_RULES:
        return f"its kernels share by {', '.join(KERNEL_RULES)}, and rule is {rule!r}"
    return None


def triton_precision_limit(dtype: torch.dtype, precision: str) -> str | None:
    """Why Triton cannot multiply in this precision on this machine's devices, or ``None``."""
    if dtype is torch.float32 and precision == "tf32x3" and torch.version.hip is not None:
        return "precision='tf32x3' does not exist on ROCm"
    return None


def _probe_torch(device: torch.device) -> tuple[bool, str]:
    return True, "plain PyTorch runs on every device"


def _probe_triton(device: torch.device) -> tuple[bool, str]:
    can, reason = _installed_triton()
    if not can:
        return False, reason
    if INTERPRETED:
        return _interpreter()
    if device.type != "cuda":
        return False, f"its kernels need a CUDA or ROCm device (or TRITON_INTERPRET=1), and this is {device}"
    can, reason = _capable(torch.cuda.current_device() if device.index is None else device.index)
    if not can:
        return False, reason
    compiler, missing = c_compiler()
    return (False, f"Triton compiles what starts its kernels, and {missing}") if compiler is None else (True, reason)


def c_compiler() -> tuple[str | None, str]:
    """The C compiler that Triton will call when a kernel is first launched, or ``None``; and what is missing.

    As Triton looks for it: all of ``CC`` is one program, then ``gcc``, then ``clang``; and it includes ``Python.h``.
    """
    return _c_compiler(os.environ.get("CC"), os.environ.get("PATH"))


@functools.cache
def _c_compiler(named: str | None, path: str | None) -> tuple[str | None, str]:
    found = shutil.which(named, path=path) if named is not None else None
    if named is not None and found is None:
        return None, f"CC={named!r} is no program that can be run: set CC to the path of a C compiler, or unset it"
    found = found or shutil.which("gcc", path=path) or shutil.which("clang", path=path)
    if found is None:
        return None, "there is no C compiler: install gcc or clang, or set CC to the path of one"
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    header = os.path.join(sysconfig.get_paths(scheme=scheme)["include"], "Python.h")
    if not os.path.exists(header):
        return None, f"{header} is missing: install Python's headers (python3-dev on Debian and Ubuntu)"
    return found, ""


@functools.cache
def _interpreter() -> tuple[bool, str]:
    """Until Triton 3.6 it makes a loop's bound of an array of one number, which NumPy 2.4 no longer converts."""
    triton, numpy = _version("triton"), _version("numpy")
    if _numbers(triton) < (3, 7) and _numbers(numpy) >= (2, 4):
        return False, (
            f"TRITON_INTERPRET=1, and the interpreter of triton {triton} fails with numpy {numpy}: "
            "install numpy<2.4, or triton>=3.7"
        )
    return True, "TRITON_INTERPRET=1: kernels are interpreted"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # some builds of PyTorch bring Triton under another name
        return str(getattr(importlib.import_module(package), "__version__", "0"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


@functools.cache
def _installed_triton() -> tuple[bool, str]:
    if importlib.util.find_spec("triton") is None:
        return False, "triton is not installed"
    version = _version("triton")
    oldest = ".".join(map(str, OLDEST_TRITON))
    if _numbers(version) < OLDEST_TRITON:
        return False, f"triton {version} is installed, and {oldest} is the oldest supported"
    return True, f"triton {version}"


@functools.cache
def _capable(index: int) -> tuple[bool, str]:
    if torch.version.hip is not None:
        return True, f"ROCm {torch.version.hip}"
    capability = torch.cuda.get_device_capability(index)
    named = "compute capability " + ".".join(map(str, capability))
    if capability < OLDEST_CAPABILITY:
        return False, f"{named} is older than {'.'.join(map(str, OLDEST_CAPABILITY))}, the oldest supported"
    return True, named


add_backend("torch", _probe_torch)
add_backend("triton", _probe_triton, auto_on=("cuda",))
