"""Every kernel launch that the engines make, as Triton would specialise it, so that the compile gate can compile it.

    TRITON_INTERPRET=1 python tools/engine_launches.py > launches.json

The interpreter runs kernels that the compiler refuses: what is absent, constant or 1 in a real call decides what the
compiler sees. So the forward engine explains small models of every shape, by every rule and path, and of each launch is
written down what Triton would compile: the types of the arguments, what is known of them, constants and options. Equal
ones are written once. Launch choices are those of :data:`ARCH`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

#: What the launches are recorded and compiled for.
ARCH = "sm_90"


@dataclass(frozen=True)
class EngineLaunch:
    """One launch, as ``compile_gate.py`` compiles it; the attributes are those of its ``Case``.

    Attributes:
        signature: the type of each argument, ``"constexpr"`` where its value is compiled in.
        constants: ``(path, value)`` of each of those; a path leads through tuples of arguments.
        divisible: the paths of arguments that are multiples of 16.
    """

    kernel: Any
    name: str
    arch: str
    dtype: str
    signature: tuple[tuple[str, Any], ...]
    constants: tuple[tuple[tuple[int, ...], Any], ...]
    divisible: tuple[tuple[int, ...], ...]
    num_warps: int
    num_stages: int
    needs_matrix: bool = False

    def source(self) -> Any:
        """What Triton compiles."""
        from triton.compiler import ASTSource

        attributes = {path: [["tt.divisibility", 16]] for path in self.divisible}
        return ASTSource(self.kernel, dict(self.signature), dict(self.constants), attributes)


def recorded() -> list[dict[str, Any]]:
    """What :func:`main` writes, from a process of its own: in this one kernels may not be interpreted.

    Raises:
        RuntimeError: if the engines fail.
    """
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, __file__], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise RuntimeError(f"the launches of the engines cannot be recorded:\n{run.stderr[-3000:]}")
    return json.loads(run.stdout)


def read_back(entry: dict[str, Any]) -> EngineLaunch:
    """One launch from its JSON."""
    from importlib import import_module

    module, function = entry["kernel"].rsplit(".", 1)
    fields = {key: as_tuples(value) for key, value in entry.items()}
    return EngineLaunch(**fields | {"kernel": getattr(import_module(module), function), "arch": ARCH})


def kind(entry: dict[str, Any]) -> str:
    """What of a launch decides which code there is: types, what is absent, flags; not tiles, sizes and alignment."""
    names = [name for name, _ in entry["signature"]]
    pointers = [(name, type_) for name, type_ in entry["signature"] if name.endswith("_ptr")]
    tiles = ("BLOCK_K", "BLOCK_D", "BLOCK_M", "BLOCK_N", "BLOCK_L", "STAGES")
    flags = [
        (names[path[0]], value)
        for path, value in entry["constants"]
        if len(path) == 1 and names[path[0]].isupper() and names[path[0]] not in tiles
    ]
    return json.dumps([entry["kernel"], pointers, flags])


def as_tuples(value: Any) -> Any:
    return tuple(as_tuples(part) for part in value) if isinstance(value, list) else value


# ---- what runs in the interpreter


def main() -> None:
    seen: dict[str, dict[str, Any]] = {}
    with listening(seen):
        every_question()
    print(json.dumps(list(seen.values())))


@contextlib.contextmanager
def listening(seen: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Every op as on a GPU, by Triton where it can be; but launches are only written down, and the twin computes."""
    from decompx_fast.kernels import launch
    from decompx_fast.ops import registry

    def listen(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], **constants: Any) -> None:
        entry = specialised(kernel, arguments, constants)
        seen.setdefault(json.dumps(entry, sort_keys=True), entry)

    def both(op: str) -> Callable[..., None]:
        by_triton, twin = (registry._implementations[op, backend] for backend in ("triton", "torch"))

        def compute(*tensors: Any, **options: Any) -> None:
            by_triton(*tensors, **options)
            twin(*tensors, **options)

        return compute

    ops = [op for op, backend in registry._implementations if backend == "triton" and op != "add_norm_"]
    on_gpu = {"triton": replace(registry._backends["triton"], auto_on=("cpu",)), "torch": registry._backends["torch"]}
    with (
        mock.patch.dict(registry._backends, on_gpu, clear=True),
        mock.patch.dict(registry._implementations, {(op, "triton"): both(op) for op in ops}),
        mock.patch.multiple(launch, start=listen, arch_of=lambda device: ARCH),
    ):
        yield


def every_question() -> None:
    """Explanations that between them make every kind of launch that the engines make."""
    sys.path[:0] = [str(ROOT / "tests")]
    import synthetic
    import torch
    from random_models import LAYERS, random_model

    from decompx_fast.config import DecompXConfig
    from decompx_fast.engines.forward import run as forward

    rules = ("absdot", "abssim", "norm", "equal", "cls", "dot", "bias_token", "none")
    groups = torch.tensor([[0, 0, 1, 2, 2, 2, 1]])

    def explain(linearization: Any, paths: tuple[str, ...], dtype: Any = None, sources: Any = None, **options: Any):
        for path in paths:
            if path == "operator" and options.get("bias") in ("norm", "abssim"):
                continue
            config = DecompXConfig(**options)
            forward.attribute(linearization, config, dtype=dtype, sources=sources, path=path)

    both = ("direct", "operator")
    f32 = {"dtype": torch.float32}
    usual = synthetic.hugging_face(n=7, layers=3, d=64, f=128, heads=2, **f32)  # sizes are multiples of 16
    odd = synthetic.hugging_face(n=5, layers=2, d=36, f=50, heads=3, batch=2, **f32)
    for rule in rules:
        for variant in ("paper", "released"):
            explain(usual, both, bias=rule, variant=variant)
        explain(odd, both, bias=rule)
        explain(usual, both, sources=groups, bias=rule)
        explain(usual, both, bias=rule, activation="linear")
    for dtype in (torch.bfloat16, torch.float16):
        for rule in ("absdot", "equal", "bias_token", "none"):
            explain(usual, both, dtype=dtype, bias=rule)
    explain(odd, both, dtype=torch.bfloat16)
    explain(synthetic.hugging_face(n=16, layers=2, d=64, f=128, heads=2, **f32), both, dtype=torch.bfloat16)
    explain(synthetic.hugging_face(n=1, layers=2, d=64, f=128, heads=2, **f32), both)
    for switch in ("ln1", "ln2", "ffn", "head"):
        explain(usual, ("direct",) if switch == "ffn" else both, **{switch: False})
    for shape in LAYERS:
        for dtype in (torch.float32, torch.bfloat16):
            model = random_model(shape, n=5, layers=2, b=1, d=64, f=128, **f32, position=-1)
            for rule in ("absdot", "cls", "none"):
                explain(model, ("auto",), dtype=dtype, bias=rule)


def specialised(kernel: Any, arguments: tuple[Any, ...], constants: dict[str, Any]) -> dict[str, Any]:
    """What Triton would compile for this launch, as its own launcher finds it out."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime.jit import native_specialize_impl

    backend = CUDABackend(GPUTarget("cuda", int(ARCH.removeprefix("sm_")), 32))
    names = kernel.arg_names
    signature, known, divisible = [], [], []

    def note(path: tuple[int, ...], kind: Any, property_: Any, value: Any) -> None:
        if isinstance(kind, tuple):
            for n, part in enumerate(kind):
                note((*path, n), part, property_[n], value[n])
        elif kind == "constexpr":
            known.append((path, value))
        elif property_ == "D":
            divisible.append(path)

    for n, (name, value) in enumerate(zip(names, arguments, strict=False)):
        kind, property_ = native_specialize_impl(backend, value, False, True, True)
        signature.append((name, kind))
        note((n,), kind, property_, value)
    for name in names[len(arguments) :]:
        signature.append((name, "constexpr"))
        known.append(((names.index(name),), constants[name]))
    state = next(kind for name, kind in signature if name in ("x_ptr", "a_ptr", "r_ptr", "p_ptr", "w_in_ptr"))
    dtype = state.removeprefix("*")
    return {
        "kernel": f"{kernel.fn.__module__}.{kernel.fn.__name__}",
        "name": f"{kernel.fn.__name__} as an engine launches it",
        "dtype": dtype,
        "signature": signature,
        "constants": known,
        "divisible": divisible,
        "num_warps": constants["num_warps"],
        "num_stages": constants.get("num_stages", 1),
    }


if __name__ == "__main__":
    main()
