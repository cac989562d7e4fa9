"""Which packages are installed, from which folders, and what is compiled. All other metadata is in pyproject.toml.

The Triton kernels live in the top folder ``kernels/`` and are installed as ``decompx_fast.kernels``. Nothing
may be installed as a top-level ``kernels``: that name belongs to another project, which transformers imports
when it is there. Hence three rules: packages are listed here, never discovered; ``kernels/`` has no
``__init__.py``; and a symlink, ``decompx_fast/kernels``, serves a source tree that is used where it lies.

An editable install puts ``.editable/`` on the path, a folder with nothing in it but a link to the package. What
setuptools does by itself, a finder that is asked last, loses against a folder named ``decompx_fast`` beside the script
that is run, such as a clone of the repository; and the repository itself on the path would bring ``kernels`` with it.

What is compiled is optional. It needs a C++ compiler and PyTorch, which an isolated build does not see; without them
the package is installed without it, and ``decompx-fast doctor`` says so. ``DECOMPX_FAST_NATIVE=0`` leaves it out,
``DECOMPX_FAST_NATIVE=1`` makes it an error if it cannot be built.

``DECOMPX_FAST_LOWERED=1`` builds another library for tests, beside the one that is used: its AVX-512 and AMX kernels
are compiled to AVX2, so that they can be run where the wider instruction set is missing.
"""

import importlib.util
import os
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup

PACKAGES = [
    "decompx_fast",
    "decompx_fast.bulk",
    "decompx_fast.calls",
    "decompx_fast.commands",
    "decompx_fast.engines",
    "decompx_fast.engines.adjoint",
    "decompx_fast.engines.forward",
    "decompx_fast.evaluation",
    "decompx_fast.evaluation.methods",
    "decompx_fast.interop",
    "decompx_fast.kernels",
    "decompx_fast.linearize",
    "decompx_fast.linearize.families",
    "decompx_fast.linearize.reading",
    "decompx_fast.models",
    "decompx_fast.ops",
    "decompx_fast.ops.backends",
    "decompx_fast.request",
    "decompx_fast.request.tasks",
    "decompx_fast.result",
    "decompx_fast.serve",
    "decompx_fast.summarize",
]

PACKAGE_DIR = {"decompx_fast.kernels": "kernels"}

EDITABLE = Path(".editable")

PACKAGE_DATA = {
    "decompx_fast": ["py.typed"],
    "decompx_fast.kernels": ["*"],
    "decompx_fast.models": ["*.safetensors"],
    "decompx_fast.result": ["templates/*"],
    "decompx_fast.serve": ["templates/*"],
}

#: The oldest PyTorch that what is compiled runs with, whichever it is compiled with: 2.11.
OLDEST_TORCH = "0x020b000000000000ULL"

#: No instruction set is named here: a file that needs one selects it, and is called only where the processor has it.
COMPILE_FLAGS = ["-std=c++20", "-O3", "-g0", "-fvisibility=hidden", "-ffp-contract=fast", "-Wno-psabi"]

OLDEST_PYTHON = {"tag": "cp310", "macro": "0x030a0000"}


def torch_folder() -> Path | None:
    """Where a PyTorch with a stable interface lies; it is not imported, which takes seconds."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    return folder if (folder / "include/torch/csrc/stable/ops.h").exists() else None


def native() -> list[Extension]:
    """``csrc/cpu``, or nothing where it cannot be built."""
    wish = os.environ.get("DECOMPX_FAST_NATIVE", "auto")
    if wish not in ("auto", "0", "1"):
        raise SystemExit(f"DECOMPX_FAST_NATIVE={wish!r}: use 0, 1 or auto")
    lowered = os.environ.get("DECOMPX_FAST_LOWERED", "0")
    if lowered not in ("0", "1"):
        raise SystemExit(f"DECOMPX_FAST_LOWERED={lowered!r}: use 0 or 1")
    folder = None if wish == "0" or platform.system() == "Windows" else torch_folder()
    if folder is None:
        if wish == "1":
            raise SystemExit("DECOMPX_FAST_NATIVE=1, but there is no PyTorch here: install it, --no-build-isolation")
        return []
    macros: list[tuple[str, str | None]] = [
        ("TORCH_TARGET_VERSION", OLDEST_TORCH),
        ("Py_LIMITED_API", OLDEST_PYTHON["macro"]),
    ]
    return [
        Extension(
            "decompx_fast.ops._lowered" if lowered == "1" else "decompx_fast.ops._native",
            sources=[str(path) for path in sorted(Path("csrc/cpu").glob("*.cpp"))],
            depends=[str(path) for path in sorted(Path("csrc/cpu").glob("*.h"))],
            include_dirs=[str(folder / "include")],
            library_dirs=[str(folder / "lib")],
            libraries=["torch_cpu"],
            define_macros=[*macros, ("DECOMPX_LOWERED", None)] if lowered == "1" else macros,
            extra_compile_args=COMPILE_FLAGS,
            py_limited_api=True,
            optional=wish == "auto",
            language="c++",
        )
    ]


def package_dir() -> dict[str, str]:
    """Where the packages are; of an editable install, by a link that is made here."""
    if "editable_wheel" not in sys.argv:
        return PACKAGE_DIR
    link = EDITABLE / "decompx_fast"
    EDITABLE.mkdir(exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(Path("..", "decompx_fast"), target_is_directory=True)
    return {"": str(EDITABLE)}


if __name__ == "__main__":
    extensions = native()
    setup(
        packages=PACKAGES,
        package_dir=package_dir(),
        package_data=PACKAGE_DATA,
        ext_modules=extensions,
        options={"bdist_wheel": {"py_limited_api": OLDEST_PYTHON["tag"]}} if extensions else {},
    )
