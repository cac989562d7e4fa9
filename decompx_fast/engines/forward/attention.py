"""Attention on the decomposed state: blocks of sources in place, and one row of the last layer.

Mixing contracts over the attended positions only, so a block of sources ``X[:, :, kb]`` needs no other source. What
the sharing of a bias needs of all sources is one number each (``|b . z[k]|``, say), kept in ``[b, i, k]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from ...linearize.layer import Attention, HubAttention, Norm
from ...ops import mixing
from ..blocks import carve, matmul
from .live import Live
from .mixing import AlphaBlock, Mixing
from .sharing import PendingBias, ShareCollector


def attend_(
    x: Tensor,
    op: Attention,
    options: Mixing,
    *,
    pre_norm: Norm | None = None,
    pre_shares: Tensor | None = None,
    ride: bool = False,
    out: Tensor | None = None,
    join: Callable[[Tensor, Tensor | None], None] | None = None,
    live: tuple[Live, Live] | None = None,
) -> PendingBias | None:
    """Equation 4: ``out[i,k] += sum_h sum_j alpha[h,i,j] u[j,k] W_V^h W_O^h``, a block of sources at a time.

    Args:
        x: what it reads, ``[b, j, k, d]``, contiguous: the state, or the memory.
        op: the attention.
        options: block sizes and rules.
        pre_norm, pre_shares: the norm before it, and how its bias is shared, ``[b, j, k]``.
        ride: whether the value bias rides inside the value vectors of its own token (first layer, ``released``).
        out: what is added to, ``[b, i, k, d]``; ``None`` for ``x`` itself.
        join: called with what the attention gives, ``[b, i, k, d]``, and the bias that is still to be added, instead
            of adding it; only where all sources are one block.
        live: which sources may have vectors in what it reads, and in what it gives; ``None``: all. Then a block of them
            is taken from the first position that they reach.

    Returns:
        The bias that is still to be added, or ``None``.
    """
    b, n, k, d = x.shape
    out = x if out is None else out
    n_out = out.shape[1]
    bias = remaining_bias(op, ride)
    collector = options.collector(bias, out) if join is None else None
    w_out = op.w_out.to(x.dtype)
    n_gv, n_hv = op.w_value.shape[1], w_out.shape[0]
    patterns = [options.alpha(part.pattern, x.dtype) for part in op.parts]
    most = options.n_sources if live is None else min(options.n_sources, live[1].width)
    for sources in options.storage.by_sources(most, x, out):
        read, given = (0, 0) if live is None else (options.aligned(part.first(sources)) for part in live)
        if read >= n or given >= n_out:  # of zeros alone
            if collector is not None:
                collector.skip(sources)
            continue
        width = sources.stop - sources.start
        area = b * max(n - read, n_out - given) * width
        left, right = options.workspace.take((area * max(d, n_hv),), (area * max(w_out.shape[1], n_gv),))
        if pre_norm is None and width == k and not read:
            u = x
        else:
            u = carve(left, b, n - read, width, d).copy_(x[:, read:, sources])
        if pre_norm is not None:
            _norm_(u, pre_norm, None if pre_shares is None else pre_shares[:, read:, sources], read)
        values = carve(right, b, n - read, width, n_gv)
        # The rows of hubs are few, and wait in memory of their own.
        beside = []
        if op.hubs is not None:
            _project(u, op.hubs, options, sources, read, ride=ride, out=values)
            beside = list(_mix_hubs(patterns[1], values, op, options))
        if op.hubs is None or op.hubs.w_value is not op.w_value:
            _project(u, op, options, sources, read, ride=ride, out=values)
        mixed = carve(left, b, n_out - given, width, n_hv)  # u is not read again
        _mix(patterns[0], values, op, options, out=mixed, first=(given, read))
        for rows, part in beside:
            mixed[:, rows] += part
        z = carve(right, b, n_out - given, width, w_out.shape[1])  # nor are the values
        matmul(mixed, w_out, out=z)
        if join is not None:
            patterns = []  # not needed any more
            join(z, bias)
            return None
        if collector is not None:
            collector.add(z, sources, given)
        out[:, given:, sources] += z
    return pending_of(bias, collector)


def _project(
    u: Tensor, part: Attention | HubAttention, options: Mixing, sources: slice, first: int, *, ride: bool, out: Tensor
) -> None:
    """The values of some sources from a first position on, ``[b, j, k, (g v)]``, with the bias of each token's own
    where it rides with them."""
    matmul(u, part.w_value.to(u.dtype), out=out)
    if ride and part.b_value is not None:
        # Each token's own value vector; `out` is [b, j, k, (g v)].
        out.addcmul_(options.owned(sources)[:, first:].unsqueeze(-1).to(out.dtype), part.b_value.to(out.dtype))


def _mix_hubs(
    patterns: Iterable[AlphaBlock], values: Tensor, op: Attention, options: Mixing
) -> Iterator[tuple[slice, Tensor]]:
    """The same as :func:`_mix` for the rows of hubs alone, ``[b, i, k, (h v)]``."""
    values = values.unflatten(-1, (op.kv_heads, -1))
    for rows, columns, alpha in patterns:
        precision, backend = options.precision, options.backend
        mixed = mixing(alpha, values[:, columns], precision=precision, backend=backend)  # type: ignore[arg-type]
        yield rows, mixed.flatten(-2)


def _mix(
    patterns: Iterable[AlphaBlock],
    values: Tensor,
    op: Attention,
    options: Mixing,
    *,
    out: Tensor,
    first: tuple[int, int],
) -> None:
    """``out[i,k,(h v)] = sum_j alpha[h,i,j] values[j,k,(g v)]`` by blocks of rows; ``first`` are the positions that
    ``out`` and ``values`` begin with, before which values are zero."""
    values, out = values.unflatten(-1, (op.kv_heads, -1)), out.unflatten(-1, (op.heads, -1))
    for rows, columns, alpha in patterns:
        start, left = max(rows.start, first[0]), max(columns.start, first[1])
        if start >= rows.stop:
            continue
        if left >= columns.stop:
            out[:, start - first[0] : rows.stop - first[0]] = 0
            continue
        mixing(
            alpha[:, :, start - rows.start :, left - columns.start :],
            values[:, left - first[1] : columns.stop - first[1]],
            causal=op.pattern.causal,
            window=op.pattern.window,
            offset=start - left,
            out=out[:, start - first[0] : rows.stop - first[0]],
            precision=options.precision,  # type: ignore[arg-type]
            backend=options.backend,
        )


def attend_row(
    x: Tensor,
    position: int,
    op: Attention,
    options: Mixing,
    *,
    pre_norm: Norm | None = None,
    pre_shares: Tensor | None = None,
    ride: bool = False,
) -> tuple[Tensor, PendingBias | None]:
    """Equation 4 at one position: mix first, project after.

    ``sum_j alpha[h,i,j] X[j,k]`` is taken over whole vectors: ``H`` of them for each source are far less to project
    than ``N``.

    Args:
        x: what it reads, ``[b, j, k, d]``, contiguous; left as it is.
        position: the row wanted.
        op, options, pre_norm, pre_shares, ride: as in :func:`attend_`.

    Returns:
        ``[b, 1, k, d_out]``, without the residual, and the bias that is still to be added, or ``None``.
    """
    b, n, k, _ = x.shape
    parts = [(part, part.pattern.weights(slice(position, position + 1))[:, :, 0]) for part in op.parts]  # [b, h, j]
    w_out = op.w_out.to(x.dtype)
    z = x.new_empty(b, 1, k, w_out.shape[1])
    most = options.n_sources if options.storage.in_blocks else max(options.n_sources * n // op.heads, 1)
    for sources in options.storage.by_sources(most, x):
        shares = None if pre_shares is None else pre_shares[:, :, sources]
        for item in range(b):
            values = sum(
                _values_of_row(x, item, sources, op, part, alpha[item], options, pre_norm, shares, ride=ride)
                for part, alpha in parts
            )
            assert isinstance(values, Tensor)
            z[item, 0, sources] = values.transpose(0, 1).flatten(1) @ w_out
    bias = remaining_bias(op, ride, slice(position, position + 1))
    collector = options.collector(bias, z)
    if collector is not None:
        collector.add(z, slice(0, k))
    return z, pending_of(bias, collector)


def _values_of_row(
    x: Tensor,
    item: int,
    sources: slice,
    op: Attention,
    part: Attention | HubAttention,
    alpha: Tensor,
    options: Mixing,
    pre_norm: Norm | None,
    pre_shares: Tensor | None,
    *,
    ride: bool,
) -> Tensor:
    """The mixed values of some sources by the weights ``alpha`` ``[h, j]`` of one row of one input: ``[h, k, v]``."""
    n, d = x.shape[1], x.shape[3]
    (mixed,) = options.workspace.take((op.heads, sources.stop - sources.start, d))
    scaled = (alpha if pre_norm is None else alpha / pre_norm.std[item]).to(x.dtype)
    alpha = alpha.to(x.dtype)
    torch.mm(scaled, x[item, :, sources].reshape(n, -1), out=mixed.flatten(1))
    if pre_norm is not None:
        _norm_mixed_(mixed, pre_norm, alpha, pre_shares if pre_shares is None else pre_shares[item])
    w_value = op.expand_heads(part.w_value.to(x.dtype).unflatten(-1, (op.kv_heads, -1))).transpose(0, 1)
    values = torch.bmm(mixed, w_value)  # [h, k, v]
    if ride and part.b_value is not None:
        own = options.owned(sources)[item].to(x.dtype)  # [j, k]
        b_value = op.expand_heads(part.b_value.to(x.dtype).view(op.kv_heads, -1))  # [h, v]
        values += (alpha @ own).unsqueeze(-1) * b_value.unsqueeze(1)
    return values


def _norm_(u: Tensor, norm: Norm, shares: Tensor | None, first: int) -> None:
    """A norm in place on some sources from a first position on, ``[b, j, k, d]``, its bias by shares ``[b, j, k]``
    known from all."""
    if norm.centre:
        u -= u.mean(-1, keepdim=True)
    u /= norm.std[:, first:, None, None]
    if norm.weight is not None:
        u *= norm.weight
    if shares is not None and norm.bias is not None:
        u.addcmul_(shares.unsqueeze(-1).to(u.dtype), norm.bias.to(u.dtype))


def _norm_mixed_(mixed: Tensor, norm: Norm, alpha: Tensor, shares: Tensor | None) -> None:
    """A norm after the mixing, ``[h, k, d]``: its ``1 / std`` is in the weights already, and the rest is common to
    all positions; ``alpha`` is ``[h, j]``, ``shares`` ``[j, k]``."""
    if norm.centre:
        mixed -= mixed.mean(-1, keepdim=True)
    if norm.weight is not None:
        mixed *= norm.weight
    if shares is not None and norm.bias is not None:
        mixed += (alpha @ shares.to(alpha.dtype)).unsqueeze(-1) * norm.bias.to(mixed.dtype)


def remaining_bias(op: Attention, ride: bool, rows: slice = slice(None)) -> Tensor | None:
    """The bias that is shared: ``b_O`` alone where the value bias rides with the values; of the positions ``rows``
    where each has its own."""
    return op.b_out if ride and op.has_value_bias else op.bias(rows)


def pending_of(bias: Tensor | None, collector: ShareCollector | None) -> PendingBias | None:
    if bias is None:
        return None
    return PendingBias(bias, None if collector is None else collector.shares())
