"""What the kernels of matrix products have in common."""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def multiply_add(a, b, acc, PRECISION: tl.constexpr):
    """``acc + a b`` with accumulators in float32."""
    if INTERPRETED:  # it would multiply the bit patterns of bfloat16; products of halves are exact in float32
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=PRECISION)
