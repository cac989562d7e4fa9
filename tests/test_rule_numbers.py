"""The bias rules: one table in Python, that of the options, the ops, and the headers of the C++ and CUDA kernels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from decompx_fast.bias_rules import BIAS_RULES, OP_RULES
from decompx_fast.config import BiasRule, SplitRule
from decompx_fast.ops import Rule

SOURCES = Path(__file__).resolve().parent.parent / "csrc"


def enumeration(header: str, name: str) -> dict[str, int]:
    """The entries of an enumeration; one without a number comes after the one before it."""
    found = re.search(rf"\benum\s+(?:class\s+)?{name}\b[^{{]*{{([^}}]*)}}", (SOURCES / header).read_text())
    assert found is not None, f"{header} has no enumeration {name}"
    numbers: dict[str, int] = {}
    for entry in found[1].split(","):
        label, _, number = entry.partition("=")
        numbers[label.strip().removeprefix("DECOMPX_").lower()] = int(number) if number else len(numbers)
    return numbers


@pytest.mark.parametrize(("header", "name"), [("cpu/rows.h", "Rule"), ("cuda/arguments.h", "DecompxRule")])
def test_kernels_have_the_numbers_of_the_table(header, name):
    numbered = {rule: facts.number for rule, facts in BIAS_RULES.items() if facts.number is not None}
    assert enumeration(header, name) == numbered


def test_options_and_ops_take_the_rules_of_the_table():
    assert set(get_args(BiasRule)) == set(BIAS_RULES)
    assert set(get_args(SplitRule)) == set(BIAS_RULES) - {"none", "bias_token"}
    assert get_args(Rule) == OP_RULES
