"""The backend ``native``: ops on the CPU in C++ (``csrc/cpu``), where they were compiled when this was installed.

They take float32 and bfloat16, sum in float32, and run on PyTorch's own threads. One library holds them for several
instruction sets and takes the widest that the processor has; ``DECOMPX_FAST_CPU_LEVEL`` names another. Products with
weights are left to PyTorch's libraries, except those of a feed-forward network, whose hidden layer need then not leave
the cache; so is the mixing of long inputs, but not of short ones, since a library wants each head's values moved
together.
"""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from ...bias_rules import BIAS_RULES, KERNEL_RULES
from ...errors import BackendError
from .. import registry

#: Instruction sets, from the one that every processor has.
LEVELS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")

#: Names the instruction set; without it, the widest that the processor has.
LEVEL_VARIABLE = "DECOMPX_FAST_CPU_LEVEL"

#: For tests: with "1", the library is taken whose AVX-512 and AMX kernels are compiled to AVX2 (see setup.py).
LOWERED_VARIABLE = "DECOMPX_FAST_LOWERED"

DTYPES = (torch.float32, torch.bfloat16)

#: The mixing of more attended positions than this is left to a library's products: measured at 512, these were faster;
#: by tiles, 241 GFLOP/s against 100.
MIXED_POSITIONS, MIXED_BY_TILES = 256, 512

#: What the library holds.
OPERATORS = (
    "bias_split_",
    "layernorm_",
    "add_norm_",
    "activation_",
    "functional_dots",
    "mixing",
    "network",
    "product",
    "has_level",
    "set_level",
)

_ABSENT = (
    "it was not compiled when the package was installed; with PyTorch and a C++ compiler, "
    "`pip install --no-build-isolation --no-deps --force-reinstall .` in the source tree compiles it"
)


def limit(dtype: torch.dtype, rule: str = "none") -> str | None:
    """Why these kernels cannot do a call, or ``None``."""
    if dtype not in DTYPES:
        return f"its kernels take float32 and bfloat16, and the state is {str(dtype).removeprefix('torch.')}"
    if rule not in KERNEL_RULES:
        return f"its kernels share by {', '.join(KERNEL_RULES)}, and rule is {rule!r}"
    return None


def has_level(name: str) -> bool:
    """Whether the library is there and the processor has this instruction set."""
    return _load() is None and name in LEVELS and torch.ops.decompx_fast_native.has_level(LEVELS.index(name))


def unusable() -> str | None:
    """Why the library cannot be used, or ``None``."""
    return _load()


def level() -> str | None:
    """The instruction set in use, or ``None`` without the library."""
    return None if _load() is not None else _in_use[-1]


def mixed_positions(dtype: torch.dtype) -> int:
    """Up to how many attended positions are mixed by these kernels."""
    return MIXED_BY_TILES if dtype is torch.bfloat16 and level() == "amx" else MIXED_POSITIONS


@contextmanager
def forced_level(name: str) -> Iterator[None]:
    """Use another instruction set, in every thread, until the end of the block.

    Raises:
        BackendError: if it cannot be used here.
    """
    if not has_level(name):
        raise BackendError(f"level={name!r} cannot be used here: use one of {', '.join(filter(has_level, LEVELS))}")
    before = _in_use[-1]
    _use(name)
    try:
        yield
    finally:
        _use(before)


def bias_split(
    x: Tensor, bias: Tensor | None, *, rule: str, residual: Tensor | None, share_after_residual: bool
) -> None:
    """:func:`decompx_fast.ops.bias_split_` on checked arguments."""
    torch.ops.decompx_fast_native.bias_split_(x, _constants(bias, x), residual, _rule(rule), share_after_residual)


def layernorm(
    x: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    centre: bool,
    rule: str,
) -> None:
    """:func:`decompx_fast.ops.layernorm_` on checked arguments."""
    scale = scale.to(torch.float32).unsqueeze(-1)
    constants = (_constants(weight, x), _constants(bias, x))
    torch.ops.decompx_fast_native.layernorm_(x, scale, *constants, centre, _rule(rule))


def add_norm(
    x: Tensor,
    branch: Tensor,
    branch_bias: Tensor | None,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    share_after_residual: bool,
    centre: bool,
    rule: str,
) -> None:
    """:func:`decompx_fast.ops.add_norm_` on checked arguments."""
    scale = scale.to(torch.float32).unsqueeze(-1)
    vectors = (_constants(branch_bias, x), scale, _constants(weight, x), _constants(bias, x))
    torch.ops.decompx_fast_native.add_norm_(x, branch, *vectors, share_after_residual, centre, _rule(rule))


def activation(a: Tensor, slope: Tensor, bias: Tensor | None, *, intercept: Tensor | None, rule: str) -> None:
    """:func:`decompx_fast.ops.activation_` on checked arguments."""
    constants = (_constants(slope, a), _constants(bias, a), _constants(intercept, a))
    torch.ops.decompx_fast_native.activation_(a, *constants, _rule(rule))


def functional_dots(out: Tensor, x: Tensor, g: Tensor) -> None:
    """:func:`decompx_fast.ops.functional_dots` on checked arguments."""
    torch.ops.decompx_fast_native.functional_dots(out, x, g.to(torch.float32))


def mixing(
    out: Tensor,
    alpha: Tensor,
    p: Tensor,
    *,
    causal: bool,
    window: int | None,
    offset: int,
    precision: str = "ieee",
) -> None:
    """:func:`decompx_fast.ops.mixing` on checked arguments; the products are exact, whatever ``precision`` allows."""
    torch.ops.decompx_fast_native.mixing(out, alpha, p, causal, window, offset)


def network(
    out: Tensor, u: Tensor, w_in: Tensor, w_out: Tensor, slope: Tensor, bias: Tensor | None, shares: Tensor | None
) -> None:
    """:func:`decompx_fast.ops.network` on checked arguments."""
    d, f = w_in.shape
    packed = torch.empty(laid_out_numbers(d, f) + laid_out_numbers(f, d), dtype=torch.float32, device="cpu")
    bias = None if bias is None else bias.to(torch.float32)
    torch.ops.decompx_fast_native.network(out, u, w_in, w_out, slope.to(torch.float32), bias, shares, packed)


def product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """``out = a b`` for ``[m, k]`` and ``[k, n]``; ``a`` and ``out`` contiguous along their last axis."""
    packed = torch.empty(laid_out_numbers(*b.shape), dtype=torch.float32, device="cpu")
    torch.ops.decompx_fast_native.product(out, a, b, packed)


def laid_out_numbers(rows: int, columns: int) -> int:
    """Numbers of float32 that a matrix takes as csrc/cpu/rows.h wants it: whole panels of 64 columns, of 16 rows at
    the least."""
    return (max(rows, 16) if rows else 0) * (-(-columns // 64) * 64)


def _constants(t: Tensor | None, x: Tensor) -> Tensor | None:
    """``[d]`` or ``[b, i, d]`` as ``[b, i, d]`` in float32, without a copy where it is."""
    return None if t is None else t.to(torch.float32).expand(x.shape[0], x.shape[1], -1)


def _rule(rule: str) -> int:
    number = BIAS_RULES[rule].number
    assert number is not None  # `limit` refuses the others
    return number


_in_use: list[str] = []


def _use(name: str) -> None:
    torch.ops.decompx_fast_native.set_level(LEVELS.index(name))
    _in_use[:] = [name]


@functools.cache
def _load() -> str | None:
    """Load the library; why it cannot be used, or ``None``."""
    lowered = os.environ.get(LOWERED_VARIABLE) == "1"
    files = sorted(Path(__file__).parents[1].glob("_lowered*.so" if lowered else "_native*.so"))
    if lowered and not files:
        return f"{LOWERED_VARIABLE}=1, but there is no such library: `make test-levels` builds it"
    if not files:
        return _ABSENT
    try:
        torch.ops.load_library(files[0])
        library = torch.ops.decompx_fast_native
        missing = [name for name in OPERATORS if not hasattr(library, name)]
        if missing:
            return f"{files[0].name} is older than this package (it has no {missing[0]}): compile it anew"
        has = library.has_level
        levels = [name for number, name in enumerate(LEVELS) if has(number)]
    except (OSError, RuntimeError, AttributeError) as error:
        return f"{files[0].name} cannot be loaded ({str(error).splitlines()[0]}): compile it anew"
    name = os.environ.get(LEVEL_VARIABLE) or levels[-1]
    if name not in levels:
        return f"{LEVEL_VARIABLE}={name!r} cannot be used here: use one of {', '.join(levels)}"
    _use(name)
    return None


def _probe(device: torch.device) -> tuple[bool, str]:
    if device.type != "cpu":
        return False, f"its kernels are for the CPU, and this is {device}"
    reason = _load()
    lowered = ", of the library for tests" if os.environ.get(LOWERED_VARIABLE) == "1" else ""
    return (True, f"C++ kernels, {level()}{lowered}") if reason is None else (False, reason)


registry.add_backend("native", _probe, auto_on=("cpu",))
