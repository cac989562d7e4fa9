"""``network``: a feed-forward network with its activation linearised, on every source, as one op."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from . import checks, registry
from .backends import native, product_choices, products
from .shares import accumulation_dtype


@dataclass(frozen=True)
class Faster:
    """One row: where ``network`` was measured to be faster than three ops.

    Attributes:
        level: the instruction set in use.
        dtype: of the vectors.
        ways: how large products are made otherwise (:mod:`.backends.product_choices`).
        reason: what was measured.
        vendor: of the processor; ``None`` for any.
    """

    level: str
    dtype: torch.dtype
    ways: tuple[str, ...]
    reason: str
    vendor: str | None = None


_F32_WAYS = ("torch", "onednn", "native")
_BF16_WAYS = ("torch", "widened", "native")

#: Nothing else is known to be faster, and without AVX2 nothing was measured. By the tiles of an Intel with AMX the op
#: alone was (924 to 1,147 GFLOP/s against 758 to 962 by three ops and the library), but not a stream of sentences
#: with it (48 ms each against 43).
FASTER = (
    Faster("avx2", torch.float32, _F32_WAYS, "as fast as a library, and the hidden layer stays in the cache"),
    Faster("avx2", torch.bfloat16, ("widened",), "products in float32 either way, and weights are widened once"),
    Faster("avx512", torch.float32, _F32_WAYS, "on a core of a Zen 5, 223 to 241 GFLOP/s against 206 to 228"),
    Faster("avx512", torch.bfloat16, ("widened",), "on a core of a Zen 5, 200 GFLOP/s and more against 100"),
    Faster("avx512_bf16", torch.float32, _F32_WAYS, "as with AVX-512 alone"),
    Faster("avx512_bf16", torch.bfloat16, ("widened",), "as with AVX-512 alone"),
    Faster(
        "avx512_bf16",
        torch.bfloat16,
        _BF16_WAYS,
        "on a core of a Zen 5, 452 to 485 GFLOP/s against 428 to 466; on an Intel pairs are slower than float32",
        vendor="amd",
    ),
    Faster("amx", torch.float32, _F32_WAYS, "as with AVX-512 alone"),
    Faster("amx", torch.bfloat16, ("widened",), "as with AVX-512 alone"),
)


def network(
    u: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    slope: Tensor,
    bias: Tensor | None = None,
    shares: Tensor | None = None,
    *,
    out: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``out[i,k] = (slope[i] * (u[i,k] W_1 + omega[i,k] bias)) W_2``: what a network gives, less its last bias.

    Natively the hidden layer stays in the cache: in float32, or in bfloat16 where the processor multiplies that.

    Args:
        u: ``[b, i, k, d]``, float32, float64, bfloat16 or float16; last axis contiguous, other strides free.
        w_in, w_out: ``[d, f]`` and ``[f, d]``, dtype of ``u``, any strides.
        slope: ``[b, i, f]``, the activation's slope at each position; dtype of ``u``, or float32.
        bias: ``[f]`` or ``None``; dtype of ``u`` or float32.
        shares: ``[b, i, k]``, each source's share ``omega`` of ``bias``; float32, or float64 for a float64 ``u``.
            With ``bias``, and only then.
        out: like ``u``, overlapping no other argument; allocated if ``None``.
        backend: ``auto``, ``native`` or ``torch``.

    Returns:
        ``[b, i, k, d]``, the dtype of ``u``.

    Raises:
        InputError: for a tensor that does not fit.
        BackendError: if the named backend cannot be used, with the reason.

    Source: Modarressi et al., ACL 2023, section 3 (feed-forward network), equations 8 to 10.
    """
    op = "network"
    checks.tensor(op, "u", u, "b i k d")
    checks.tensor(op, "w_in", w_in, "d f")
    (b, i, k, d), f, wide = u.shape, w_in.shape[1], accumulation_dtype(u.dtype)
    if (bias is None) != (shares is None):
        missing = "bias" if bias is None else "shares"
        raise InputError(f"{op}: `{missing}` is None; `bias` and `shares` are given together, or neither")
    for name, weight, sizes in (("w_in", w_in, [d, f]), ("w_out", w_out, [f, d])):
        checks.shape(op, name, weight, [sizes], "d of `u` and f of `w_in`")
        checks.dtype(op, name, weight, (u.dtype,), "that of `u`")
    constants = {"slope": (slope, [b, i, f]), "bias": (bias, [f]), "shares": (shares, [b, i, k])}
    for name, (constant, sizes) in constants.items():
        if constant is None and name != "slope":
            continue
        checks.shape(op, name, constant, [sizes], "b, i and k of `u`, f of `w_in`")
        assert constant is not None
        if name == "shares":
            checks.dtype(op, name, constant, (wide,), "float32, or float64 for a `u` of float64")
        else:
            checks.dtype(op, name, constant, (u.dtype, torch.float32), "that of `u`, or float32")
        checks.contiguous_last(op, name, constant)
    checks.contiguous_last(op, "u", u)
    out = torch.empty_like(u, memory_format=torch.contiguous_format) if out is None else out
    checks.like_state(op, "out", out, u, state="u")
    checks.writable(op, "out", out)
    checks.together(op, u=u, w_in=w_in, w_out=w_out, slope=slope, bias=bias, shares=shares, out=out)
    if out.numel():
        _network(out, u, w_in, w_out, slope, bias, shares, backend)
    return out


def is_fused(device: torch.device | str, dtype: torch.dtype, backend: str = "auto") -> bool:
    """Whether ``network`` is what an engine should call: where it has a kernel that is faster than three ops.

    It is known beforehand, from :data:`FASTER`.
    """
    device = torch.device(device)
    if backend not in ("auto", "native") or dtype not in native.DTYPES or not registry.usable("native", device)[0]:
        return False
    if backend == "native":
        return True
    here, way = native.level(), products.way(dtype, "large")
    vendors = (None, product_choices.processor().vendor)
    return any(row.level == here and row.dtype is dtype and way in row.ways and row.vendor in vendors for row in FASTER)


@registry.operator("network", writes=("out",))
def _network(
    out: Tensor,
    u: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    slope: Tensor,
    bias: Tensor | None,
    shares: Tensor | None,
    backend: str,
) -> None:
    checks.separate("network", {"out": out}, u=u, w_in=w_in, w_out=w_out, slope=slope, bias=bias, shares=shares)
    compute = registry.select("network", backend, u.device, limits={"native": native.limit(u.dtype)})
    compute(out, u, w_in, w_out, slope, bias, shares)


registry.implements("network", "native")(native.network)


@registry.implements("network", "torch")
def network_torch(
    out: Tensor, u: Tensor, w_in: Tensor, w_out: Tensor, slope: Tensor, bias: Tensor | None, shares: Tensor | None
) -> None:
    """The twin, on checked arguments: the hidden layer is formed whole."""
    wide = accumulation_dtype(u.dtype)
    hidden = u.to(wide) @ w_in.to(wide)
    if bias is not None and shares is not None:
        hidden.addcmul_(shares.unsqueeze(-1), bias.to(wide))
    hidden *= slope.to(wide).unsqueeze(2)
    out.copy_(hidden @ w_out.to(wide))
