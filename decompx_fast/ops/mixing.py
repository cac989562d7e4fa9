"""``mixing``: attention weights applied to the decomposed values, from and to the natural layout."""

from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import InputError
from . import checks, registry
from .backends import native
from .backends.products import multiply
from .shares import accumulation_dtype

Precision = Literal["ieee", "tf32", "tf32x3"]
PRECISIONS: tuple[str, ...] = ("ieee", "tf32", "tf32x3")

_ROW_MULTIPLE = 16  # what Triton takes for aligned
_ROWS = 128  # target positions that the twin does at once where keys can be skipped


def mixing(
    alpha: Tensor,
    p: Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    offset: int | None = None,
    out: Tensor | None = None,
    precision: Precision = "ieee",
    backend: str = "auto",
) -> Tensor:
    """Mix the decomposed values by the attention weights.

    ``out[b,i,k,h,v] = sum_j alpha[b,h,i,j] p[b,j,k,g(h),v]``, with ``g(h) = h // (H / G)`` for ``H`` heads
    and ``G`` key-value heads. Sums are accumulated in float32 at least.

    Args:
        alpha: ``[b, h, i, j]``, float32, float64, bfloat16 or float16; any strides.
        p: ``[b, j, k, g, v]``, dtype of ``alpha``; last axis contiguous, other strides free: a view of the
            natural layout ``[b, j, k, (g v)]`` needs no copy.
        causal: position ``i`` attends ``j <= i + offset`` only.
        window: if given, position ``i`` attends ``j`` with ``|i + offset - j| < window`` only. What
            ``causal`` and ``window`` exclude is taken as zero, whatever ``alpha`` holds there, and skipped
            block by block.
        offset: the attended position that row 0 of ``alpha`` stands at, for a block of rows. ``None``: the
            rows are the last ones, ``n_j - n_i``.
        out: ``[b, i, k, h, v]`` to write to, like ``p``, not overlapping the inputs. ``None``: a new tensor.
        precision: of the products of float32 numbers in Triton: ``ieee``, ``tf32`` (10-bit mantissas on the
            matrix units) or ``tf32x3`` (three such products, nearly float32). Plain PyTorch follows
            ``torch.backends.cuda.matmul`` instead.
        backend: ``auto``, ``triton``, ``cuda``, ``native`` or ``torch``.

    Returns:
        ``out``, ``[b, i, k, h, v]``.

    Raises:
        InputError: for a tensor or option that does not fit.
        BackendError: if the named backend cannot be used, with the reason.

    Source: Modarressi et al., ACL 2023, section 3 (multi-head self-attention).
    """
    op = "mixing"
    checks.tensor(op, "alpha", alpha, "b h i j")
    checks.tensor(op, "p", p, "b j k g v")
    b, h, i, j = alpha.shape
    _, _, k, g, v = p.shape
    checks.shape(op, "p", p, [[b, j, k, g, v]], "b and j of `alpha`; k, g and v free")
    checks.dtype(op, "p", p, (alpha.dtype,), "that of `alpha`")
    checks.contiguous_last(op, "p", p)
    if g == 0 or h % g != 0:
        raise InputError(f"{op}: `alpha` has {h} heads and `p` has {g}; {h} must be a multiple of {g}")
    checks.choice(op, "precision", precision, PRECISIONS)
    for name, number, least in (("window", window, 1), ("offset", offset, -(1 << 63))):
        if number is not None:
            checks.whole(op, name, number, least)
    if out is None:
        out = p.new_empty(b, i, k, h, v)
    else:
        checks.tensor(op, "out", out, "b i k h v")
        checks.shape(op, "out", out, [[b, i, k, h, v]], "from `alpha` and `p`")
        checks.dtype(op, "out", out, (p.dtype,), "that of `p`")
        checks.contiguous_last(op, "out", out)
        checks.writable(op, "out", out)
    checks.together(op, alpha=alpha, p=p, out=out)
    if out.numel():
        _mixing(out, alpha, p, causal, window, j - i if offset is None else offset, precision, backend)
    return out


def with_padded_rows(alpha: Tensor, dtype: torch.dtype) -> Tensor:
    """``alpha`` ``[..., j]`` in a dtype, every row beginning at a multiple of 16 numbers.

    Kernels on GPUs load aligned runs of numbers in one instruction, and single numbers otherwise: :func:`mixing` is
    then several times slower. The padding between rows holds anything; nothing uses it.
    """
    n = alpha.shape[-1]
    if n % _ROW_MULTIPLE == 0:
        return alpha.to(dtype)
    width = -(-n // _ROW_MULTIPLE) * _ROW_MULTIPLE
    padded = torch.empty(*alpha.shape[:-1], width, dtype=dtype, device=alpha.device)[..., :n]
    return padded.copy_(alpha)


def mixing_torch(
    out: Tensor,
    alpha: Tensor,
    p: Tensor,
    *,
    causal: bool,
    window: int | None,
    offset: int,
    precision: str = "ieee",
) -> None:
    """The twin of :func:`mixing` in plain PyTorch: one large product per head; arguments as checked there."""
    dtype = accumulation_dtype(p.dtype)
    b, h, n_i, n_j = alpha.shape
    n_k, n_g, n_v = p.shape[2:]
    rows = n_i if not causal and window is None else _ROWS
    for n in range(b):
        for head in range(h):
            values = p[n, :, :, head // (h // n_g)].reshape(n_j, n_k * n_v).to(dtype)  # [j, (k v)]
            for start in range(0, n_i, rows):
                stop = min(start + rows, n_i)
                keys = _attended(start + offset, stop + offset, n_j, causal, window)
                weights = alpha[n, head, start:stop, keys].to(dtype)
                allowed = _allowed(start + offset, stop + offset, keys, causal, window, alpha.device)
                if allowed is not None:
                    weights = weights.where(allowed, weights.new_zeros(()))
                mixed = weights.new_empty(stop - start, n_k * n_v)  # [i, (k v)]
                multiply(weights, values[keys], out=mixed, varied=True)
                out[n, start:stop, :, head] = mixed.view(stop - start, n_k, n_v)


def near_mask(causal: bool, window: int | None, offset: int, n_i: int, n_j: int) -> tuple[bool, int | None, int]:
    """The same mask for ``n_i`` rows and ``n_j`` keys by a window and an offset of the order of these, which overflow
    in no kernel's arithmetic; there is a mask if and only if there was one.

    Row ``i`` attends the keys from ``i + low`` to ``i + high``. Far numbers matter on one side at the most.
    """
    if window is None:
        return causal, None, max(-n_i, min(offset, n_j)) if causal else 0
    low, high = offset - window + 1, offset if causal else offset + window - 1
    below, above, wide = low > 1 - n_i, high < n_j - 1, n_i + n_j
    if below and above:
        return causal, window, offset
    if above:
        return True, None, max(high, -n_i)
    return False, wide, min(low, n_j) + wide - 1 if below else 0


def _attended(first: int, stop: int, n_j: int, causal: bool, window: int | None) -> slice:
    """The keys that positions ``first`` to ``stop - 1`` attend."""
    low = 0 if window is None else max(0, first - window + 1)
    high = n_j
    if causal:
        high = min(high, stop)
    if window is not None:
        high = min(high, stop - 1 + window)
    return slice(low, max(low, high))


def _allowed(
    first: int, stop: int, keys: slice, causal: bool, window: int | None, device: torch.device
) -> Tensor | None:
    """``[i, j]``, True where a position attends a key; ``None`` if all do."""
    if not causal and window is None:
        return None
    positions = torch.arange(first, stop, device=device)
    distance = positions[:, None] - torch.arange(keys.start, keys.stop, device=device)
    allowed = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    return allowed if window is None else allowed & (distance.abs() < window)


@registry.operator("mixing", writes=("out",))
def _mixing(
    out: Tensor,
    alpha: Tensor,
    p: Tensor,
    causal: bool,
    window: int | None,
    offset: int,
    precision: str,
    backend: str,
) -> None:
    checks.separate("mixing", {"out": out}, alpha=alpha, p=p)
    causal, window, offset = near_mask(causal, window, offset, *alpha.shape[2:])
    limits = {
        "triton": registry.triton_dtype_limit(p.dtype) or registry.triton_precision_limit(p.dtype, precision),
        "native": native.limit(p.dtype),
    }
    compute = registry.select("mixing", backend, p.device, limits=limits)
    compute(out, alpha, p, causal=causal, window=window, offset=offset, precision=precision)


registry.implements("mixing", "torch")(mixing_torch)


@registry.implements("mixing", "triton")
def _mixing_triton(*tensors: Any, **options: Any) -> None:
    from ..kernels.mixing import mixing as launch

    launch(*tensors, **options)


@registry.implements("mixing", "native")
def _mixing_native(out: Tensor, alpha: Tensor, p: Tensor, **options: Any) -> None:
    compute = native.mixing if p.shape[1] <= native.mixed_positions(p.dtype) else mixing_torch
    compute(out, alpha, p, **options)
