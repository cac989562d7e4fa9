"""Windows and offsets of any size mask what the formula says, on every backend: none may overflow."""

from __future__ import annotations

import sys

import ops_formulas as formulas
import pytest
import torch
from ops_cases import random

from decompx_fast import ops
from decompx_fast.errors import InputError
from decompx_fast.ops.mixing import near_mask

FAR = [0, 1, 2, 3, 9, 40, 2**31 - 1, 2**31, 2**62, sys.maxsize - 3, sys.maxsize]
OFFSETS = sorted({sign * far for far in FAR for sign in (1, -1)} | {-sys.maxsize - 1})
WINDOWS = [None, *FAR[1:]]
N_I, N_J = 5, 7

BACKENDS = [
    pytest.param(name, marks=[] if ops.usable(name, "cpu")[0] else pytest.mark.skip(ops.usable(name, "cpu")[1]))
    for name in ("torch", "native", "triton")
]


def mask(causal: bool, window: int | None, offset: int, n_i: int = N_I, n_j: int = N_J) -> list[list[bool]]:
    """By the definition, in Python's whole numbers, which have no end."""

    def attends(i: int, j: int) -> bool:
        return (not causal or j <= i + offset) and (window is None or abs(i + offset - j) < window)

    return [[attends(i, j) for j in range(n_j)] for i in range(n_i)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("n_i", "n_j"), [(1, 1), (1, 7), (5, 7), (7, 5)])
def test_a_mask_of_small_numbers_is_the_same(causal, window, n_i, n_j):
    small = range(-20, 21)
    far = [sign * (window or 1) + near for sign in (1, -1) for near in small]
    for offset in {*OFFSETS, *small, *far}:
        near = near_mask(causal, window, offset, n_i, n_j)
        assert mask(*near, n_i, n_j) == mask(causal, window, offset, n_i, n_j)
        assert abs(near[2]) <= 3 * (n_i + n_j) and (near[1] or 1) <= n_i + n_j
        # What a plan of the memory looks at: whether there is a mask at all.
        assert (near[0] or near[1] is not None) == (causal or window is not None)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("window", "offset"),
    [
        (sys.maxsize, None),
        (sys.maxsize, sys.maxsize),
        (sys.maxsize, -sys.maxsize - 1),
        (None, sys.maxsize),
        (None, -sys.maxsize - 1),
        (2**62, 2**62 + 2),
        (2**62, -(2**62)),
        (2**31, 2**31 + 2),
        (3, sys.maxsize - 1),
    ],
)
def test_mixing_takes_far_windows_and_offsets(backend, causal, window, offset):
    alpha, p = random(1, 2, N_I, N_J, low=0).cpu(), random(1, N_J, 3, 2, 4).cpu()
    got = ops.mixing(alpha, p, causal=causal, window=window, offset=offset, backend=backend)
    allowed = torch.tensor(mask(causal, window, N_J - N_I if offset is None else offset))
    expected = formulas.mixing(alpha.where(allowed, torch.zeros(())), p)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)  # sums of 7 numbers of order 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 2**63}, "`window` is 9223372036854775808; it must be a whole number from 1 to 9223372036854775807"),
        ({"window": 2.5}, "`window` is 2.5; it must be a whole number"),
        ({"window": True}, "`window` is True; it must be a whole number"),
        ({"offset": 2**63}, "`offset` is 9223372036854775808; it must be a whole number from -9223372036854775808"),
        ({"offset": "1"}, "`offset` is '1'; it must be a whole number"),
    ],
)
def test_what_is_no_window_or_offset_is_refused(options, message):
    with pytest.raises(InputError, match=f"mixing: {message}"):
        ops.mixing(torch.ones(1, 1, 2, 2), torch.ones(1, 2, 1, 1, 1), **options)


@pytest.mark.skipif(not ops.usable("native", "cpu")[0], reason=ops.usable("native", "cpu")[1])
@pytest.mark.parametrize(("window", "offset"), [(sys.maxsize, 0), (None, sys.maxsize), (None, -sys.maxsize - 1)])
def test_the_binding_refuses_what_would_overflow(window, offset):
    out, alpha, p = torch.zeros(1, 2, 1, 1, 1), torch.ones(1, 1, 2, 2), torch.ones(1, 2, 1, 1, 1)
    with pytest.raises(RuntimeError, match="window|offset"):
        torch.ops.decompx_fast_native.mixing(out, alpha, p, False, window, offset)
