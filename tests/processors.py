"""Processors that this machine is made to look like: their instruction sets decide how an engine computes.

The kernels that run are this machine's; which of them are taken, by which library matrices are multiplied, and what a
plan expects follow from what the processor is said to have. For tests of memory: half precisions give no real numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from decompx_fast.ops.backends import native, product_choices, products
from decompx_fast.ops.backends.processor import Processor


@dataclass(frozen=True)
class Described:
    """The level of our kernels that the processor has, and what the system says of it."""

    level: str
    processor: Processor


def described(level: str, vendor: str, features: str) -> Described:
    return Described(level, Processor(vendor, frozenset(features.split())))


PROCESSORS = {
    "plain": described("portable", "other", "sse2"),
    "zen3": described("avx2", "amd", "sse2 avx2 fma"),
    "zen5": described("avx512_bf16", "amd", "sse2 avx2 fma avx512f avx512bw avx512dq avx512vl avx512bf16"),
    "skylake": described("avx512", "intel", "sse2 avx2 fma avx512f avx512bw avx512dq avx512vl"),
    "granite": described("amx", "intel", "sse2 avx2 fma avx512f avx512bf16 avx512fp16 amxbf16 amxint8 amxfp16"),
    "graviton": described("portable", "other", "fp asimd asimdhp bf16 sve"),
}

#: A table that treats the two kinds of products differently in both dtypes.
MIXED = (
    product_choices.Choice("widened", (torch.bfloat16,), "for the test", kinds=("short",)),
    product_choices.Choice("onednn", (torch.float32,), "for the test", kinds=("short",)),
    product_choices.Choice("torch", product_choices.DTYPES, "for the test"),
)

#: What a test may be given as ``name`` of :func:`become`.
NAMES = (*PROCESSORS, "mixed")


def become(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Until the end of the test, this machine is taken for the named one."""
    this = PROCESSORS.get(name, PROCESSORS["zen5"])
    monkeypatch.delenv(product_choices.VARIABLE, raising=False)
    monkeypatch.setattr(product_choices, "processor", lambda: this.processor)
    monkeypatch.setattr(product_choices, "CHOICES", MIXED if name == "mixed" else product_choices.CHOICES)
    monkeypatch.setattr(native, "level", _level(native.level, this.level))
    monkeypatch.setitem(products.WAYS, "torch", _with_units)
    product_choices._choose.cache_clear()


def _with_units(a: Tensor, b: Tensor, out: Tensor) -> None:
    """In half precisions as quick, and with as little memory, as units for them: any numbers will do, since emulated
    products take minutes."""
    if a.dtype is torch.float32:
        torch.mm(a, b, out=out)
    else:
        out.normal_()


def _level(real: Callable[[], str | None], said: str) -> Callable[[], str | None]:
    return lambda: None if real() is None else said
