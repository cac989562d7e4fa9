"""What ``compile_gate.py`` compiles: every kernel, with every launch choice, dtype and architecture.

Import it where kernels are not interpreted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from decompx_fast.kernels import (
    activation,
    bias_split,
    functional_dots,
    launch,
    layernorm,
    mixing,
    position_apply,
    position_operator,
)

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
MULTIPLE_OF_16 = [["tt.divisibility", 16]]
ALIGNED_SIZES = ("n_d", "n_f", "n_e", "n_j", "n_readable")


@dataclass(frozen=True)
class Case:
    """One compilation.

    Attributes:
        kernel: the Triton function; ``name`` says which and how.
        arch: a key of ``TARGETS``.
        pointers: element types, such as ``"bf16"``, by argument; absent arguments are in ``constants`` as ``None``.
        strides: how many strides each tuple of them has; ``ones`` are the (argument, position) of those known to be 1.
        constants: values of ``tl.constexpr`` arguments.
        aligned: whether pointers, strides and sizes are known to be multiples of 16, as they are for usual models.
        integers: how sizes and strides come: ``"i32"``; ``"i64"`` where strides are huge; ``"one"`` where all are 1,
            which Triton makes constants of.
        needs_matrix: whether the architecture's matrix instruction has to be there.
        odd: sizes that are known for nothing, though the others are multiples of 16.
    """

    kernel: Any
    name: str
    arch: str
    dtype: str
    pointers: dict[str, str]
    strides: dict[str, int]
    constants: dict[str, Any]
    num_warps: int
    num_stages: int = 1
    ones: tuple[tuple[str, int], ...] = ()
    aligned: bool = True
    integers: str = "i32"
    needs_matrix: bool = False
    odd: tuple[str, ...] = ()

    def source(self) -> ASTSource:
        """What Triton compiles: types, constants and what is known of the arguments."""
        signature: dict[str, Any] = {}
        constants: dict[Any, Any] = dict(self.constants)
        attributes = {}
        stride = "i64" if self.integers == "i64" else "i32"
        for n, name in enumerate(self.kernel.arg_names):
            if name in self.constants:
                signature[name] = "constexpr"
            elif name in self.strides:
                one = [self.integers == "one" or (name, axis) in self.ones for axis in range(self.strides[name])]
                signature[name] = tuple("constexpr" if known else stride for known in one)
                constants |= {(n, axis): 1 for axis, known in enumerate(one) if known}
                attributes |= {(n, axis): MULTIPLE_OF_16 for axis, known in enumerate(one) if not known}
            elif name in self.pointers:
                signature[name] = f"*{self.pointers[name]}"
                attributes[(n,)] = MULTIPLE_OF_16
            elif self.integers == "one":
                signature[name], constants[name] = "constexpr", 1
            else:
                signature[name] = "i32"
                if name in ALIGNED_SIZES and name not in self.odd:
                    attributes[(n,)] = MULTIPLE_OF_16
        return ASTSource(self.kernel, signature, constants, attributes if self.aligned else {})


def row_cases(arch: str) -> Iterable[Case]:
    """Kernels that go over the sources of a position, at the sizes of a common model and at a large one."""
    split = {"SHARE_AFTER": False, "residual_ptr": None}
    after = {"SHARE_AFTER": True, "streams": 2}
    norm = {"CENTRE": True}
    active = {"streams": activation.STREAMS}
    of_8 = {"streams": functional_dots.STREAMS, "N_M": 8, "BLOCK_M": 8}
    for dtype in ITEM_BYTES:
        yield row_case(arch, dtype, "bias_split", "", 768, **split)
        yield row_case(arch, dtype, "bias_split", "after residual", 768, **after)
        yield row_case(arch, dtype, "layernorm", "", 768, **norm)
        yield row_case(arch, dtype, "layernorm", "", 8192, **norm)
        yield row_case(arch, dtype, "activation", "", 3072, **active, intercept_ptr=None)
        yield row_case(arch, dtype, "activation", "with intercept", 3072, **active)
        yield row_case(arch, dtype, "functional_dots", "of 8", 768, **of_8)
    yield row_case(arch, "bf16", "layernorm", "RMS", 768, CENTRE=False)
    yield row_case(arch, "bf16", "bias_split", "equal", 768, RULE="equal", DOTS=False, **split)
    for phase in bias_split.PHASES:
        alone = {name: name == phase for name in bias_split.PHASES}
        yield row_case(arch, "bf16", "bias_split", f"{phase} alone", 768, **split, **alone)
    for dtype in ("bf16", "fp32"):
        yield row_case(arch, dtype, "bias_split", "after residual, unaligned", 100, aligned=False, **after)
        yield row_case(arch, dtype, "layernorm", "unaligned", 100, aligned=False, **norm)
        yield row_case(arch, dtype, "activation", "with intercept, unaligned", 100, **active, aligned=False)
        yield row_case(arch, dtype, "functional_dots", "of 8, unaligned", 100, aligned=False, **of_8)


ROW_KERNELS = {
    "bias_split": (bias_split.bias_split_kernel, bias_split.PHASES),
    "layernorm": (layernorm.layernorm_kernel, layernorm.PHASES),
    "activation": (activation.activation_kernel, activation.PHASES),
    "functional_dots": (functional_dots.functional_dots_kernel, ()),
}
STATES = {"x_ptr", "residual_ptr", "a_ptr", "bias_ptr", "weight_ptr", "slope_ptr", "intercept_ptr"}


def row_case(
    arch: str,
    dtype: str,
    name: str,
    label: str,
    d: int,
    *,
    streams: int = 1,
    aligned: bool = True,
    **constants: Any,
) -> Case:
    kernel, phases = ROW_KERNELS[name]
    whole = name == "layernorm"
    options = {"streams": streams, "whole": whole, "aligned": aligned}
    block_k, block_d, warps, stages = launch.row_tile(512, d, ITEM_BYTES[dtype], arch, **options)
    constants = dict.fromkeys(phases, True) | ({"RULE": "absdot"} if phases else {}) | constants
    constants |= {"BLOCK_K": block_k, "BLOCK_D": block_d, "STAGES": stages}
    pointers = {arg: dtype if arg in STATES else "fp32" for arg in kernel.arg_names if arg.endswith("_ptr")}
    strides = {"x_strides": 3, "residual_strides": 3, "a_strides": 3, "out_strides": 3, "g_strides": 3}
    return Case(
        kernel,
        f"{name}, d = {d}" + (f", {label}" if label else ""),
        arch,
        dtype,
        {arg: kind for arg, kind in pointers.items() if arg not in constants},
        {arg: strides.get(arg, 2) for arg in kernel.arg_names if arg.endswith("_strides")},
        constants,
        warps,
        aligned=aligned,
    )


MATRIX_KERNELS = {
    "mixing": (mixing.mixing_kernel, {"N_V": 64, "GROUP": 1, "CAUSAL": False, "WINDOWED": False, "PADDED": False}),
    "position_operator": (position_operator.position_operator_kernel, {}),
    "position_apply": (position_apply.position_apply_kernel, {"N_M": 5}),
}
FLOAT32_ALWAYS = {"theta_ptr", "factor_ptr", "skip_ptr", "shares_ptr", "u_ptr"}
STRIDES = {"alpha_strides": 4, "p_strides": 4, "shares_strides": 4}
STRIDES_OF_TWO = ("theta_strides", "w_in_strides", "w_out_strides")


def matrix_cases(arch: str) -> Iterable[Case]:
    """Kernels of matrix products: every dtype, precision and tile."""
    for name in MATRIX_KERNELS:
        for operands in ("many rows", "few rows", "unaligned"):
            for dtype, mode in (("bf16", "half"), ("fp16", "half"), *(("fp32", p) for p in ("ieee", "tf32", "tf32x3"))):
                if (arch, mode) != ("gfx942", "tf32x3"):  # which ROCm does not have
                    yield matrix_case(arch, dtype, name, operands, mode)
    for label, changes in (
        ("causal, windowed", {"CAUSAL": True, "WINDOWED": True}),
        ("4 heads to a key of 48", {"N_V": 48, "GROUP": 4}),
        ("weights padded", {"PADDED": True}),
    ):
        yield matrix_case(arch, "bf16", "mixing", f"many rows, {label}", "half", **changes)
    yield matrix_case(arch, "fp32", "mixing", "many rows, weights padded", "tf32", PADDED=True)
    alone = {"N_M": 0, "shares_ptr": None, "u_ptr": None}
    for dtype, mode in (("bf16", "half"), ("fp32", "ieee")):
        yield matrix_case(arch, dtype, "position_apply", "many rows, no updates", mode, **alone)


def matrix_case(arch: str, dtype: str, name: str, label: str, mode: str, **changes: Any) -> Case:
    kernel, constants = MATRIX_KERNELS[name]
    operands = label.partition(" ")[0]
    aligned = operands != "unaligned"
    tile = launch.matrix_tile(mode, operands, arch)
    args = kernel.arg_names
    strides = {a: 2 if a in STRIDES_OF_TWO else STRIDES.get(a, 3) for a in args if a.endswith("_strides")}
    if name == "mixing":
        strides["out_strides"] = 4
    blocks = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_L": tile.block_l}
    # The weights of a linear layer, seen the other way round; attention weights and shares as they are made.
    ones = [("w_in_strides", 0), ("w_out_strides", 0), ("alpha_strides", 3)]
    if changes.get("N_M") != 0:
        ones.append(("shares_strides", 3))
    return Case(
        kernel,
        f"{name}, {label}" + (f", {mode}" if dtype == "fp32" else ""),
        arch,
        dtype,
        {a: "fp32" if a in FLOAT32_ALWAYS else dtype for a in args if a.endswith("_ptr") and a not in changes},
        strides,
        constants | changes | blocks | {"PRECISION": mode if dtype == "fp32" else "ieee"},
        tile.num_warps,
        tile.stages,
        tuple(one for one in ones if one[0] in args) if aligned else (),
        aligned,
        needs_matrix=mode != "ieee",
        odd=("n_j",) if changes.get("PADDED") else (),
    )


def all_cases() -> list[Case]:
    """Every case; sizes of 1 and strides of 64 bits change what the front end sees, so one architecture is enough."""
    cases = [case for arch in TARGETS for make in (row_cases, matrix_cases) for case in make(arch)]
    one_of_each = [case for case in cases if case.arch == "sm_90" and case.dtype == "bf16"]
    for integers, label, aligned in (("one", "all sizes 1", False), ("i64", "strides of 64 bits", True)):
        for case in {case.kernel: case for case in one_of_each if case.aligned is aligned}.values():
            cases.append(replace(case, name=f"{case.name.partition(',')[0]}, {label}", integers=integers))
    return cases
