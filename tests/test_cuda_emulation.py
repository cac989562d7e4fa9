"""The emulated device itself: it notices what a GPU would leave to luck."""

from __future__ import annotations

import ctypes

import cuda_emulation
import pytest
import torch

F32 = torch.float32


def run_bad(name: str, *, backwards: bool = False) -> tuple[str, float]:
    """What the emulation says to a kernel that is wrong on purpose, and the first number that it wrote."""
    library = cuda_emulation.library()
    library.decompx_emulation_order(int(backwards))
    x = cuda_emulation.guarded(torch.arange(64, dtype=F32))
    status = getattr(library, f"bad_{name}")(ctypes.c_void_p(x.data_ptr()), ctypes.c_int(x.numel()))
    return (library.decompx_status_text(status).decode() if status else ""), float(x[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("divergent_barrier", "for threads of its block that never come"),
        ("different_barriers", "for threads of its block that never come"),
        ("divergent_shuffle", "for threads of its warp that never come"),
        ("outside_memory", "memory outside of a buffer was read or written"),
        ("outside_shared", "memory outside of a buffer was read or written"),
        ("unaligned", "an access is not aligned to its size"),
    ],
)
def test_emulation_says_what_is_wrong(name, said):
    assert said in run_bad(name)[0]


@pytest.mark.slow
def test_a_missing_barrier_shows_in_one_of_the_orders():
    forwards, backwards = (run_bad("race", backwards=order)[1] for order in (False, True))
    assert forwards != backwards


def test_a_copy_that_was_not_waited_for_has_not_arrived():
    assert run_bad("early")[1] != 0  # NaN, where the copy would bring 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halfs_are_rounded_as_pytorch_rounds_them(dtype):
    # Through `bias_split` without a bias: x + residual, rounded once.
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    x = bits.view(dtype)
    x = x[x.isfinite()]
    x = torch.cat([x, x[: -x.numel() % 8 + 8]])[: x.numel() // 8 * 8].view(1, 1, -1, 8)
    residual = x.flip(2) / 3
    expected = (x.float() + residual.float()).to(dtype)
    cuda_emulation.kernels().bias_split(x, None, rule="none", residual=residual, share_after_residual=False)
    assert torch.equal(x.view(torch.int16), expected.view(torch.int16))
