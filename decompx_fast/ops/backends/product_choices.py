"""Which library multiplies matrices on the CPU, as data: known before anything runs, and the same in every process.

PyTorch hands products to one library by dtype alone, and that can cost half the speed of a processor or far more
(bfloat16 without bfloat16 units). A race of the ways there are would be decided by a busy neighbour, differently in
each process, and results would differ in the last digits with it. So the choice is a table of what was measured, with
the reason for each row; where nothing was, which the reason says, PyTorch's own choice stays.
"""

import functools
import os
from dataclasses import dataclass

import torch

from ...errors import OptionError
from . import native
from .processor import Processor
from .processor import processor as processor  # :mod:`..network` asks for it here too

#: Names a way for all dtypes that have it, or for some: ``onednn``, or ``float32=torch,bfloat16=widened``.
VARIABLE = "DECOMPX_FAST_PRODUCTS"

#: Products with a short side, such as one head's mixing, and large ones.
KINDS = ("short", "large")

DTYPES = F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16

#: The ways of :mod:`.products`, and the dtypes that each may be named for.
WAYS: dict[str, tuple[torch.dtype, ...]] = {
    "torch": DTYPES,
    "onednn": (F32,),
    "widened": (BF16, F16),
    "native": native.DTYPES,
}


@dataclass(frozen=True)
class Choice:
    """One row: what is taken where its conditions hold.

    Attributes:
        way: a key of :data:`WAYS`.
        dtypes: of the products.
        reason: what was measured, or why nothing else is taken.
        kinds: of :data:`KINDS`.
        vendor: of the processor; ``None`` for any.
        features: one of which the processor has; none for any processor.
        mkl: whether the row is about a PyTorch that multiplies float32 with MKL.
        levels: of :mod:`.native`, one of which is in use; none for any, and for none.
    """

    way: str
    dtypes: tuple[torch.dtype, ...]
    reason: str
    kinds: tuple[str, ...] = KINDS
    vendor: str | None = None
    features: frozenset[str] = frozenset()
    mkl: bool = False
    levels: frozenset[str] = frozenset()


#: The first row whose conditions hold counts.
CHOICES = (
    Choice(
        "native",
        (F32,),
        "on a core of a Zen 5 236 GFLOP/s (784 x 384 x 384), 215 by oneDNN and 111 by MKL, which leaves AVX-512 unused;"
        " 130 of short products (28 x 384 x 384) against 72 and 100; on a core of a Zen 4 99, 95 and 99, short 75, 39"
        " and 85",
        vendor="amd",
        features=frozenset({"avx512f"}),
        levels=frozenset({"avx512", "avx512_bf16"}),
    ),
    Choice(
        "onednn",
        (F32,),
        "MKL leaves AVX-512 unused on processors of AMD: on a Zen 5, 410 GFLOP/s by oneDNN against PyTorch's own 210",
        kinds=("large",),
        vendor="amd",
        features=frozenset({"avx512f"}),
        mkl=True,
    ),
    Choice(
        "torch",
        (F32,),
        "oneDNN moves the operands of short products first: on a Zen 5, 43 GFLOP/s for 28 x 28 x 896 against MKL's 88",
        kinds=("short",),
        vendor="amd",
        features=frozenset({"avx512f"}),
        mkl=True,
    ),
    Choice(
        "torch",
        (F32,),
        "with AVX2, both libraries were within some percent of each other on a Zen 3, MKL ahead",
        vendor="amd",
        features=frozenset({"avx2"}),
        mkl=True,
    ),
    Choice(
        "torch",
        (F32,),
        "MKL is made for processors of Intel: on a core with AMX 176 GFLOP/s (784 x 384 x 384), 156 by our kernels and"
        " 131 by oneDNN; 131, 81 and 45 of short products (28 x 384 x 384)",
        vendor="intel",
        features=frozenset({"avx512f"}),
        mkl=True,
    ),
    Choice("torch", (F32,), "not measured: MKL is made for processors of Intel", vendor="intel", mkl=True),
    Choice("torch", (F32,), "nothing was measured on such a processor, or with this PyTorch: its own choice stays"),
    Choice(
        "torch",
        (BF16,),
        "the processor has tiles for bfloat16, which PyTorch uses: on a core of an Intel 810 to 1,570 GFLOP/s (large),"
        " 770 to 990 by our tiles, which are quicker for 48 rows (359 against 255) and slower for 28 (170 and 240)",
        features=frozenset({"amxbf16"}),
    ),
    Choice(
        "torch",
        (BF16,),
        "the processor has units for bfloat16, which PyTorch uses: on a Zen 5, 900 GFLOP/s, as many as by our kernels;"
        " on a core of a Zen 4 221 against 201",
        features=frozenset({"avx512bf16", "bf16"}),
    ),
    Choice(
        "torch",
        (F16,),
        "the processor has units for float16, which PyTorch uses: on a core of an Intel 170 GFLOP/s (784 x 384 x 384),"
        " 145 in float32",
        features=frozenset({"avx512fp16", "amxfp16"}),
    ),
    Choice(
        "widened",
        (BF16, F16),
        "the processor has no units for the dtype, and emulated products are slow: on a Zen 3, 0.4 GFLOP/s against 17; "
        "on other processors not measured",
    ),
)


def choose(dtype: torch.dtype, kind: str) -> Choice:
    """The way that a dtype and a kind of products take on this machine, and why.

    Raises:
        OptionError: if :data:`VARIABLE` holds something that does not exist here.
    """
    named, mkl = os.environ.get(VARIABLE, ""), torch.backends.mkl.is_available()
    return _choose(dtype, kind, named, processor(), mkl, native.level())


@functools.lru_cache
def _choose(dtype: torch.dtype, kind: str, named: str, this: Processor, mkl: bool, level: str | None) -> Choice:
    wishes = _parse(named)
    if dtype in wishes:
        return Choice(wishes[dtype], (dtype,), f"{VARIABLE}={named}")
    for row in CHOICES:
        fits = dtype in row.dtypes and kind in row.kinds and row.vendor in (None, this.vendor)
        if (row.features and not row.features & this.features) or (row.levels and level not in row.levels):
            fits = False
        if fits and (mkl or not row.mkl) and (row.way != "onednn" or has_onednn()):
            return row
    return Choice("torch", (dtype,), "there is one way only")


def _parse(named: str) -> dict[torch.dtype, str]:
    """What the variable asks for, by dtype."""
    wishes: dict[torch.dtype, str] = {}
    dtypes = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    for part in filter(None, (part.strip() for part in named.split(","))):
        key, given, way = (word.strip() for word in part.rpartition("="))
        if way not in WAYS or (given and key not in dtypes):
            raise OptionError(
                f"{VARIABLE}={named!r} is not understood at {part!r}: name one of {', '.join(WAYS)}, "
                f"or pairs such as float32=torch,bfloat16=widened, with {', '.join(dtypes)}"
            )
        if given and dtypes[key] not in WAYS[way]:
            raise OptionError(
                f"{VARIABLE}={named!r}: {key} has no way {way!r}; "
                f"it has {', '.join(name for name, taken in WAYS.items() if dtypes[key] in taken)}"
            )
        if way == "onednn" and not has_onednn():
            raise OptionError(f"{VARIABLE}={named!r}: this build of PyTorch has no oneDNN; name another way")
        if way == "native" and native.level() is None:
            raise OptionError(f"{VARIABLE}={named!r}: {native.unusable()}; name another way")
        wishes |= {dtype: way for dtype in ((dtypes[key],) if given else WAYS[way])}
    return wishes


def has_onednn() -> bool:
    """Whether this build of PyTorch can be asked for oneDNN's products."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
