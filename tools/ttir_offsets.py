"""Finds pointer offsets that a kernel computes in 32 bits and that can exceed them, in Triton's IR.

An offset is an index times a stride, or a sum of such. A kernel that serves tensors of more than 2^31 elements has to
multiply in 64 bits. The check is the simple one: from the offset of every ``tt.addptr`` it goes back through all that
the offset is made of, and reports each 32-bit multiplication of two values that are only known at run time, or of an
argument of the kernel (a size or a stride) and a constant. What remains in 32 bits are positions along one axis: a
block's number times the size of the block, plus what is inside the block.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

VALUE = r"%[\w.$-]+"
NAME = re.compile(rf"{VALUE}(?:#\d+)?")
# Operations that hand on one value as it is.
SAME_VALUE = ("tt.splat", "tt.broadcast", "tt.expand_dims", "arith.extsi", "arith.extui", "arith.trunci")
# Operations whose result is no longer made of their operands.
OPAQUE = ("tt.load", "tt.reduce", "arith.cmpi", "arith.cmpf")
# Operations of which only the first operand counts: what is divided, not by what.
QUOTIENTS = ("arith.divsi", "arith.divui", "arith.remsi", "arith.remui")


@dataclass
class _Function:
    """What defines each value: an operation with its operands, its type, and its text."""

    operands: dict[str, list[str]] = field(default_factory=dict)
    operation: dict[str, str] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)
    arguments: set[str] = field(default_factory=set)
    offsets: list[str] = field(default_factory=list)

    def define(self, name: str, operation: str, operands: list[str], text: str) -> None:
        self.operation.setdefault(name, operation)
        self.text.setdefault(name, text)
        self.operands.setdefault(name, []).extend(operands)


def narrow_offsets(ttir: str) -> list[str]:
    """The offending multiplications of a module in Triton's IR, as text, each once."""
    function = _parse(ttir)
    seen: set[str] = set()
    found: dict[str, None] = {}
    todo = list(function.offsets)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        operation, operands = function.operation.get(name), function.operands.get(name, [])
        if operation == "arith.muli" and _is_32_bits(function.text[name]) and _may_exceed(function, operands):
            found[function.text[name]] = None
        if operation not in OPAQUE:
            todo.extend(operands[:1] if operation in QUOTIENTS else operands)
    return list(found)


def _may_exceed(function: _Function, factors: list[str]) -> bool:
    origins = [_origin(function, factor) for factor in factors]
    constant = [function.operation.get(origin) == "arith.constant" for origin in origins]
    if not any(constant):
        return True
    return any(origin in function.arguments for origin in origins)


def _origin(function: _Function, name: str) -> str:
    while function.operation.get(name) in SAME_VALUE:
        name = function.operands[name][0]
    return name


def _is_32_bits(text: str) -> bool:
    return re.search(r":\s*(tensor<[\dx]*xi32[^>]*>|i32)", text) is not None


def _parse(ttir: str) -> _Function:
    function = _Function()
    regions: list[list[str]] = []  # of each open brace: the values that its yields define
    for line in ttir.splitlines():
        text = re.sub(r"\s*loc\(.*$", "", line).strip()
        if "tt.func" in text:
            function.arguments.update(re.findall(rf"({VALUE}): ", line))
        targets = _read_operation(function, text)
        for brace in re.findall(r"[{}]", re.sub(r"\{[^{}]*\}", "", text)):
            if brace == "}":
                if regions:
                    targets = targets or regions[-1]  # "} else {" goes on with the same results
                    regions.pop()
            else:
                regions.append(targets)
        if text.startswith("scf.yield") and regions:
            yielded = NAME.findall(text.split(" : ")[0])
            for n, value in enumerate(yielded):
                for target in regions[-1]:
                    function.operands.setdefault(f"{target}#{n}", []).append(value)
    return function


def _read_operation(function: _Function, text: str) -> list[str]:
    """Note what one line defines; returns what the yields of a region that it opens define."""
    match = re.match(rf"({VALUE})(?::(\d+))? = (\S+)(.*)", text)
    if match is None:
        return []
    name, count, operation, rest = match.groups()
    operands = NAME.findall(rest)
    if operation in ("scf.for", "scf.if", "scf.while"):
        carried = re.findall(rf"({VALUE}) = ({NAME.pattern})", rest.partition("iter_args(")[2].partition(")")[0])
        for n, (inner, start) in enumerate(carried):
            function.define(inner, "carried", [start, f"{name}#{n}"], text)
        for n in range(int(count or 1)):
            function.define(f"{name}#{n}", "region", [], text)
        if count is None:
            function.define(name, "region", [f"{name}#0"], text)
        return [name]
    function.define(name, operation, operands, text)
    if operation == "tt.addptr":
        function.offsets.append(operands[1])
    return []
