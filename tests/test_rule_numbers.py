"""The bias rules have the same numbers in Python as in the headers of the C++ and CUDA kernels, and the same names."""

from __future__ import annotations

import re
from pathlib import Path

from decompx_fast.ops.backends import cuda
from decompx_fast.ops.shares import DOT_RULES, KERNEL_RULES, RULES

SOURCES = Path(__file__).resolve().parent.parent / "csrc"


def enumeration(header: str, name: str) -> str:
    """What stands between the braces of an enumeration."""
    found = re.search(rf"\benum\s+(?:class\s+)?{name}\b[^{{]*{{([^}}]*)}}", (SOURCES / header).read_text())
    assert found is not None, f"{header} has no enumeration {name}"
    return found[1]


def test_the_numbers_of_the_cpu_kernels_are_their_places_in_the_table():
    names = [name.strip() for name in enumeration("cpu/rows.h", "Rule").split(",")]
    assert names == list(KERNEL_RULES)


def test_the_numbers_of_the_cuda_kernels_are_those_of_their_header():
    entries = re.findall(r"DECOMPX_(\w+)\s*=\s*(\d+)", enumeration("cuda/arguments.h", "DecompxRule"))
    assert {name.lower(): int(number) for name, number in entries} == cuda.RULES


def test_every_kernel_has_the_same_rules():
    assert set(cuda.RULES) == set(KERNEL_RULES)
    assert set(DOT_RULES) < set(KERNEL_RULES) < set(RULES)
