"""Launch choices: block sizes, warps and pipeline stages of every kernel, as data with a reason each.

The arithmetic knows nothing of this, and nothing here knows the arithmetic. Choices depend on the shape, the dtype and
the architecture; ``tools/compile_gate.py`` compiles every one of them. What ``tools/tune.py`` measured on a GPU can
take the place of what is reasoned here: :func:`adopt`.
"""

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton

#: Dynamic shared memory that one program may use, in bytes. 8.6, 8.9 and 12.x have the least of NVIDIA's.
SHARED_BYTES = {
    "sm_80": 163 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "sm_120": 99 << 10,
    "gfx942": 64 << 10,
}
#: The interpreter has no multiprocessors. Few, so that small tests run both ways of dividing rows.
INTERPRETER_MULTIPROCESSORS = 4


def arch_of(device: torch.device) -> str:
    """The key of the tables here: the architecture that a device's limits are those of."""
    if device.type != "cuda":
        return "sm_80"  # interpreted: any will do
    if torch.version.hip is not None:
        return "gfx942"
    major, minor = torch.cuda.get_device_capability(device)
    if major == 8:
        return "sm_80" if minor == 0 else "sm_120"
    return {9: "sm_90", 10: "sm_100"}.get(major, "sm_120")


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many programs of the largest kind run at once."""
    if device.type != "cuda":
        return INTERPRETER_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def on_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make a device current: Triton launches on the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def start(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], **constants: Any) -> None:
    """Start a kernel: the one place where that is done, and where ``tools/engine_launches.py`` listens.

    Args:
        kernel: the Triton function.
        grid: how many programs, on each axis.
        arguments: tensors, the first of which says where; sizes; strides.
        constants: compile-time arguments and options of the compiler.
    """
    with on_device(arguments[0].device):
        kernel[grid](*arguments, **constants)


def register_limit(num_warps: int, arch: str) -> dict[str, int]:
    """The option that lets one program have all the registers; only NVIDIA's compiler knows it."""
    return {} if arch.startswith("gfx") else {"maxnreg": min(255, REGISTERS // (32 * num_warps))}


@dataclass(frozen=True)
class RowLaunch:
    """How a kernel that goes over rows of sources is launched.

    Attributes:
        block_k, block_d: the tile of vectors that is loaded at once.
        num_warps, stages: warps of a program; tiles that are in flight.
        rows, splits: the grid.
        k_per_program: sources of a row that one program takes, a multiple of ``block_k``.
    """

    block_k: int
    block_d: int
    num_warps: int
    stages: int
    rows: int
    splits: int
    k_per_program: int


# Bytes of state in one tile, over all tensors that are streamed. 32 KB at 16 warps is 16 half-precision numbers
# (32 registers once they are float32) per thread, in wide loads.
TILE_BYTES = 32 << 10
# Where Triton cannot know that rows begin at multiples of 16, every number is loaded alone and has an address of its
# own in registers: a quarter of the numbers.
UNALIGNED_TILE_BYTES = 8 << 10
# Tiles in flight, and the one in use. Three of 32 KB ahead keep more than the 25 KB in flight that a multiprocessor
# of an H100 needs to draw its part of the bandwidth at 1 us latency, and take so much shared memory that one program
# is resident on it: few rows are then in flight, and their second read finds them in the L2 cache. gfx942 prefetches
# into registers, where there is room for one.
ROW_STAGES = {"sm_80": 4, "sm_90": 5, "sm_100": 5, "sm_120": 3, "gfx942": 2}
# A wavefront of gfx942 has 64 lanes: half as many of them hold the tile.
ROW_WARPS = {"sm_80": 16, "sm_90": 16, "sm_100": 16, "sm_120": 16, "gfx942": 8}


@dataclass(frozen=True)
class RowChoice:
    """What decides the tiles of a kernel over rows: bytes of a tile, tiles in flight, and warps at the most."""

    tile_bytes: int
    stages: int
    warps: int


# One program may have all the registers of a multiprocessor. Left to itself, ptxas spills in some of these kernels, to
# make room for a further program that shared memory forbids.
REGISTERS = 64 << 10
# Chunks of a vector: whole lines of memory, and little of the last chunk is masked.
CHUNKS_D = (256, 128, 64)


def row_tile(
    n_k: int, n_d: int, item_bytes: int, arch: str, *, streams: int = 1, whole: bool = False, aligned: bool = True
) -> tuple[int, int, int, int]:
    """``block_k, block_d, num_warps, stages`` for vectors of ``n_d`` numbers.

    Args:
        streams: how many tensors are read at once, or take the registers of one; a power of two.
        whole: whether the tile must hold whole vectors, for a mean over them.
        aligned: whether all rows are known to begin at multiples of 16 numbers.
    """
    block_d = triton.next_power_of_2(n_d)
    if not whole:
        block_d = min(block_d, min(CHUNKS_D, key=lambda c: (triton.cdiv(n_d, c) * c, -c)))
    choice = choices(arch).rows
    tile = (choice.tile_bytes if aligned else UNALIGNED_TILE_BYTES) // (item_bytes * streams)
    block_k = max(1, min(tile // block_d, triton.next_power_of_2(n_k)))
    # Numbers that are loaded one by one go through registers, where nothing waits its turn.
    stages = max(1, min(choice.stages, choice.stages * tile // (block_k * block_d))) if aligned else 1
    # Small tiles want fewer warps: at least 8 numbers per thread, or most of a reduction is between threads.
    warps = max(1, min(choice.warps, block_k * block_d // 256))
    return block_k, block_d, warps, stages


def is_aligned(*tensors: torch.Tensor, widths: Sequence[int] | None = None) -> bool:
    """Whether Triton will know that rows begin at multiples of 16: all strides are, or are 1, and so are addresses.

    Args:
        widths: how many numbers of a row of each tensor are read, where that is not the length of its last axis.
    """
    widths = [t.shape[-1] for t in tensors] if widths is None else widths
    return all(n % 16 == 0 or n == 1 for t in tensors for n in t.stride()) and all(
        t.data_ptr() % 16 == 0 and width % 16 == 0 for t, width in zip(tensors, widths, strict=True)
    )


def readable_width(t: torch.Tensor) -> int:
    """How many numbers of each row of ``t`` ``[..., n]`` can be read in whole runs of 16: ``n``, or ``n`` and padding.

    Padding is what lies between two rows in the same memory. It is read because runs of which a part is masked are
    loaded one number at a time; what it holds does not count.
    """
    n = t.shape[-1]
    padded = -(-n // 16) * 16
    if padded == n or t.stride(-1) != 1 or any(stride < padded for stride in t.stride()[:-1]):
        return n
    last = sum((size - 1) * stride for size, stride in zip(t.shape[:-1], t.stride()[:-1], strict=True))
    end = t.untyped_storage().nbytes() // t.element_size()
    return padded if t.storage_offset() + last + padded <= end else n


def row_launch(x: torch.Tensor, *, streams: int = 1, whole: bool = False) -> RowLaunch:
    """The launch of a kernel over rows of ``x`` ``[b, i, k, d]``; ``splits == 1`` is the fused way."""
    b, i, k, d = x.shape
    rows, wanted = b * i, multiprocessors(x.device)
    tile = row_tile(k, d, x.element_size(), arch_of(x.device), streams=streams, whole=whole, aligned=is_aligned(x))
    block_k = tile[0]
    # Rows enough for all multiprocessors: fused. Else two programs for each, so that the last ones do not run alone.
    splits = 1 if rows >= wanted else min(triton.cdiv(k, block_k), triton.cdiv(2 * wanted, rows))
    k_per_program = triton.cdiv(triton.cdiv(k, splits), block_k) * block_k
    return RowLaunch(*tile, rows=rows, splits=triton.cdiv(k, k_per_program), k_per_program=k_per_program)


def needed_phases(phases: tuple[str, ...], rule: str, *, absent: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Which of a kernel's phases a rule needs; ``absent`` are those that have nothing to do in this call."""
    if rule in ("absdot", "dot"):
        needed = phases
    elif rule == "equal":
        needed = tuple(phase for phase in phases if not phase.startswith("DOTS"))
    else:
        needed = ("APPLY",)
    return tuple(phase for phase in needed if phase not in absent)


def workspace(x: torch.Tensor, pairs: int) -> torch.Tensor:
    """Room for pairs of a dot and a flag of every source, ``[2 pairs, b, i, k]``."""
    return torch.empty(2 * pairs, *x.shape[:3], dtype=torch.float32, device=x.device)


def row_strides(t: torch.Tensor | None, axes: int = 2) -> tuple[int, ...]:
    """The strides of the first axes, zeros where there is no tensor."""
    return (0,) * axes if t is None else t.stride()[:axes]


def run_rows(
    kernel: Any,
    choice: RowLaunch,
    pointers: tuple[Any, ...],
    sizes: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    **constants: Any,
) -> None:
    """Launch a kernel over rows."""
    start(
        kernel,
        (choice.rows, choice.splits),
        (*pointers, *sizes, *strides),
        **constants,
        BLOCK_K=choice.block_k,
        BLOCK_D=choice.block_d,
        STAGES=choice.stages,
        num_warps=choice.num_warps,
        **register_limit(choice.num_warps, arch_of(pointers[0].device)),
    )


def run_phases(
    kernel: Any,
    choice: RowLaunch,
    every: tuple[str, ...],
    needed: tuple[str, ...],
    pointers: tuple[Any, ...],
    sizes: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    **constants: Any,
) -> None:
    """Launch a kernel over rows: all needed phases at once if no row is split, else one after the other."""
    for together in [needed] if choice.splits == 1 else [(phase,) for phase in needed]:
        flags: dict[str, Any] = {phase: phase in together for phase in every}
        run_rows(kernel, choice, pointers, sizes, strides, **constants, **flags)


@dataclass(frozen=True)
class MatrixLaunch:
    """How a kernel of matrix products ``[m, l] x [l, n]`` is launched.

    Attributes:
        block_m, block_n, block_l: the tile of the result, and how much of the sum one step takes.
        num_warps, stages: warps of a program; steps whose operands are in flight.
    """

    block_m: int
    block_n: int
    block_l: int
    num_warps: int
    stages: int


#: Up to how many rows the tiles for few rows are taken. They read as much and idle less; at 64 rows each number that
#: is read meets 64 multiplications, too few to keep the matrix units of any of these devices busy.
FEW_ROWS = 64
# Tiles by how numbers are multiplied and what the operands are: block_m, block_n, block_l, warps.
MATRIX_TILES = {
    # 64 numbers of 2 bytes are the 128 bytes of a line. Two warp groups of 64 rows each, the smallest that the matrix
    # instructions of 9.0 and 10.0 take, and 64 accumulators per thread.
    ("half", "many"): (128, 128, 64, 8),
    ("half", "few"): (64, 128, 64, 4),
    # Where every number has an address of its own in registers, fewer of them.
    ("half", "unaligned"): (64, 64, 32, 4),
    # The same bytes in 4-byte numbers.
    ("tf32", "many"): (128, 128, 32, 8),
    ("tf32", "few"): (64, 128, 32, 4),
    ("tf32", "unaligned"): (64, 64, 32, 4),
    # Both parts of both operands are held in registers: half the columns, or they spill on 9.0.
    ("tf32x3", "many"): (128, 64, 32, 8),
    ("tf32x3", "few"): (64, 64, 32, 4),
    ("tf32x3", "unaligned"): (64, 64, 16, 4),
    # No matrix units: every multiplication is an instruction, and the loop over 16 is unrolled in full.
    ("ieee", "many"): (128, 64, 16, 8),
    ("ieee", "few"): (64, 64, 16, 4),
    ("ieee", "unaligned"): (64, 64, 16, 8),
}
# gfx942 multiplies float32 exactly on its matrix units.
MATRIX_TILES_GFX942 = MATRIX_TILES | {("ieee", "many"): (128, 128, 32, 8), ("ieee", "few"): (64, 128, 32, 4)}
# Steps whose operands are in flight. A step of the largest tile holds 32 KB, of which one less than the stages are in
# shared memory at once: 96 KB where it has 163 or more, 64 KB of 99, 32 KB of 64.
MATRIX_STAGES = {"sm_80": 4, "sm_90": 4, "sm_100": 4, "sm_120": 3, "gfx942": 2}
# Numbers that are loaded one by one go through registers, where there is room for one step ahead.
UNALIGNED_STAGES = 2


def matrix_mode(dtype: torch.dtype, precision: str) -> str:
    """How numbers are multiplied: ``half``, or the ``precision`` of float32."""
    return precision if dtype is torch.float32 else "half"


@dataclass(frozen=True)
class Choices:
    """All choices for an architecture; ``matrix`` by how numbers are multiplied and what the operands are."""

    rows: RowChoice
    matrix: Mapping[tuple[str, str], MatrixLaunch]


@functools.cache
def reasoned(arch: str) -> Choices:
    """The choices of the tables here."""
    tiles = MATRIX_TILES_GFX942 if arch.startswith("gfx") else MATRIX_TILES
    stages = {"many": MATRIX_STAGES[arch], "few": MATRIX_STAGES[arch], "unaligned": UNALIGNED_STAGES}
    matrix = {key: MatrixLaunch(*tile, stages=stages[key[1]]) for key, tile in tiles.items()}
    return Choices(RowChoice(TILE_BYTES, ROW_STAGES[arch], ROW_WARPS[arch]), matrix)


_adopted: dict[str, Choices] = {}


def choices(arch: str) -> Choices:
    """The choices in force."""
    return _adopted.get(arch) or reasoned(arch)


def adopt(arch: str, measured: Choices | None) -> None:
    """Use measured choices on an architecture from now on; ``None`` goes back to the tables."""
    if measured is None:
        _adopted.pop(arch, None)
    else:
        _adopted[arch] = measured


def matrix_tile(mode: str, operands: str, arch: str) -> MatrixLaunch:
    """The launch for ``operands`` with ``many`` or ``few`` rows, or ``unaligned`` ones."""
    return choices(arch).matrix[mode, operands]


def matrix_launch(
    precision: str, rows: int, *operands: torch.Tensor, widths: Sequence[int] | None = None
) -> MatrixLaunch:
    """The launch of a kernel that multiplies ``operands`` to a result with ``rows`` rows; ``widths`` as in
    :func:`is_aligned`."""
    kind = ("few" if rows <= FEW_ROWS else "many") if is_aligned(*operands, widths=widths) else "unaligned"
    return matrix_tile(matrix_mode(operands[0].dtype, precision), kind, arch_of(operands[0].device))


def run_matrix(
    kernel: Any,
    choice: MatrixLaunch,
    grid: tuple[int, ...],
    *arguments: Any,
    precision: str,
    **constants: Any,
) -> None:
    """Launch a kernel of matrix products on ``arguments``: tensors, then sizes, then strides."""
    tensors, sizes, strides = arguments
    start(
        kernel,
        grid,
        (*tensors, *sizes, *strides),
        **constants,
        PRECISION=precision,
        BLOCK_M=choice.block_m,
        BLOCK_N=choice.block_n,
        BLOCK_L=choice.block_l,
        num_warps=choice.num_warps,
        num_stages=choice.stages,
        **register_limit(choice.num_warps, arch_of(tensors[0].device)),
    )
