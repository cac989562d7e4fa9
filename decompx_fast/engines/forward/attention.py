"""Attention on the decomposed state: blocks of sources in place, the first layer, and one row of the last.

Mixing contracts over the attended positions only, so a block of sources ``X[:, :, kb]`` needs no other source. What
the sharing of a bias needs of all sources is one number each (``|b . z[k]|``, say), kept in ``[b, i, k]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...bias_rules import VECTOR_RULES
from ...linearize.layer import Attention, AttentionPattern, HubAttention, Norm
from ...ops import mixing, with_padded_rows
from ..blocks import Workspace, blocks, carve, matmul
from .sharing import PendingBias, ShareCollector

AlphaBlock = tuple[slice, slice, Tensor]


@dataclass(frozen=True)
class Mixing:
    """What every mixing of one explanation has in common.

    Attributes:
        rule, variant: of the configuration.
        backend: of the ops.
        n_sources: how many sources are mixed at once.
        n_rows: how many target positions have their attention weights in memory at once.
        workspace: for two blocks of vectors.
        member: ``[b, j]``, the source that each token belongs to.
        grouped: whether sources are other than the tokens themselves.
    """

    rule: str
    variant: str
    backend: str
    n_sources: int
    n_rows: int
    workspace: Workspace
    member: Tensor
    grouped: bool

    @property
    def precision(self) -> str:
        """Float32 products in Triton follow the user's setting for matrix products."""
        return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"

    def collector(self, bias: Tensor | None, z: Tensor) -> ShareCollector | None:
        """Where the rule looks at the vectors of the attention itself, what collects it; ``z`` is ``[b, i, k, d]``."""
        looks = self.rule in VECTOR_RULES and self.variant == "paper"
        return ShareCollector(bias, self.rule, z, self.backend) if looks and bias is not None else None

    def alpha(self, pattern: AttentionPattern, dtype: torch.dtype) -> Iterable[AlphaBlock]:
        """The attention weights in blocks of rows, ``(rows, columns, [b, h, i, j])``; kept if there is one block."""
        n = pattern.query.shape[2]
        on_gpu = self.backend == "auto" and pattern.query.is_cuda
        pad = on_gpu or self.backend in ("triton", "cuda")  # for their kernels, which load runs of numbers
        found = _AlphaBlocks(pattern, n, min(self.n_rows, n), dtype, pad)
        return list(found) if self.n_rows >= n else found


@dataclass(frozen=True)
class _AlphaBlocks:
    """Blocks of attention weights, computed anew each time they are iterated."""

    pattern: AttentionPattern
    n: int
    n_rows: int
    dtype: torch.dtype
    pad: bool

    def __iter__(self) -> Iterator[AlphaBlock]:
        for run in self.pattern.live_rows(slice(0, self.n)):
            for block in blocks(run.stop - run.start, self.n_rows):
                rows = slice(run.start + block.start, run.start + block.stop)
                columns = self.pattern.columns(rows)
                alpha = self.pattern.weights(rows, columns)
                yield rows, columns, with_padded_rows(alpha, self.dtype) if self.pad else alpha.to(self.dtype)


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
) -> PendingBias | None:
    """Equation 4: ``out[i,k] += sum_h sum_j alpha[h,i,j] u[j,k] W_V^h W_O^h``, a block of sources at a time.

    Args:
        x: the state, ``[b, i, k, d]``, contiguous.
        op: the attention.
        options: block sizes and rules.
        pre_norm, pre_shares: the norm before it, and how its bias is shared, ``[b, j, k]``.
        ride: whether the value bias rides inside the value vectors of its own token (first layer, ``released``).
        out: what is added to; ``None`` for ``x`` itself.
        join: called with what the attention gives, ``[b, i, k, d]``, and the bias that is still to be added, instead
            of adding it; only where all sources are one block.

    Returns:
        The bias that is still to be added, or ``None``.
    """
    b, n, k, d = x.shape
    out = x if out is None else out
    bias = _remaining_bias(op, ride)
    collector = options.collector(bias, x) if join is None else None
    w_out = op.w_out.to(x.dtype)
    n_gv, n_hv = op.w_value.shape[1], w_out.shape[0]
    patterns = [options.alpha(part.pattern, x.dtype) for part in op.parts]
    for sources in blocks(k, options.n_sources):
        width = sources.stop - sources.start
        area = b * n * width
        left, right = options.workspace.take((area * max(d, n_hv),), (area * max(d, n_gv),))
        if pre_norm is None and width == k:
            u = x
        else:
            u = carve(left, b, n, width, d).copy_(x[:, :, sources])
        if pre_norm is not None:
            _norm_(u, pre_norm, None if pre_shares is None else pre_shares[:, :, sources])
        values = carve(right, b, n, width, n_gv)
        # The rows of hubs are few, and wait in memory of their own.
        beside = []
        if op.hubs is not None:
            _project(u, op.hubs, options, sources, ride=ride, out=values)
            beside = list(_mix_hubs(patterns[1], values, op, options))
        if op.hubs is None or op.hubs.w_value is not op.w_value:
            _project(u, op, options, sources, ride=ride, out=values)
        mixed = carve(left, b, n, width, n_hv)  # u is not read again
        _mix(patterns[0], values, op, options, out=mixed)
        for rows, part in beside:
            mixed[:, rows] += part
        z = carve(right, b, n, width, w_out.shape[1])  # nor are the values
        matmul(mixed, w_out, out=z)
        if join is not None:
            patterns = []  # not needed any more
            join(z, bias)
            return None
        if collector is not None:
            collector.add(z, sources)
        out[:, :, sources] += z
    return _pending(bias, collector)


def _project(
    u: Tensor, part: Attention | HubAttention, options: Mixing, sources: slice, *, ride: bool, out: Tensor
) -> None:
    """The values of some sources, ``[b, j, k, (g v)]``, with the bias of each token's own where it rides with them."""
    matmul(u, part.w_value.to(u.dtype), out=out)
    if ride and part.b_value is not None:
        _ride_(out, part.b_value, options.member, sources)


def _mix_hubs(
    patterns: Iterable[AlphaBlock], values: Tensor, op: Attention, options: Mixing
) -> Iterator[tuple[slice, Tensor]]:
    """The same as :func:`_mix` for the rows of hubs alone, ``[b, i, k, (h v)]``."""
    values = values.unflatten(-1, (op.kv_heads, -1))
    for rows, columns, alpha in patterns:
        precision, backend = options.precision, options.backend
        mixed = mixing(alpha, values[:, columns], precision=precision, backend=backend)  # type: ignore[arg-type]
        yield rows, mixed.flatten(-2)


def _mix(patterns: Iterable[AlphaBlock], values: Tensor, op: Attention, options: Mixing, *, out: Tensor) -> None:
    """``out[i,k,(h v)] = sum_j alpha[h,i,j] values[j,k,(g v)]`` by blocks of rows."""
    values, out = values.unflatten(-1, (op.kv_heads, -1)), out.unflatten(-1, (op.heads, -1))
    for rows, columns, alpha in patterns:
        mixing(
            alpha,
            values[:, columns],
            causal=op.pattern.causal,
            window=op.pattern.window,
            offset=rows.start - columns.start,
            out=out[:, rows],
            precision=options.precision,  # type: ignore[arg-type]
            backend=options.backend,
        )


def attend_first(
    out: Tensor,
    u: Tensor,
    op: Attention,
    options: Mixing,
    *,
    common: Tensor | None = None,
    ride: bool = False,
) -> PendingBias | None:
    """Equation 4 where every token's vector belongs to its own source alone: ``X[j,k] = u[j]`` if ``j`` is in ``k``.

    ``out[i,k] = sum_(j in k) sum_h alpha[h,i,j] (u[j] W_V^h) W_O^h``: no product with ``N K`` rows for single tokens,
    one instead of two for groups.

    Args:
        out: the state to be written, ``[b, i, k, d]``, contiguous.
        u: ``[b, j, d]``, what the attention reads.
        op, options, ride: as in :func:`attend_`.
        common: ``[d]``, what one source (the first under ``cls``, the last under ``bias_token``) has at every position
            beside it: the bias of a norm.

    Returns:
        The bias that is still to be added, or ``None``.
    """
    k, n_own = out.shape[2], out.shape[2] - (options.rule == "bias_token")  # the last source is no token then
    bias = _remaining_bias(op, ride)
    collector = options.collector(bias, out)
    parts = []
    for part in op.parts:
        values = u @ part.w_value.to(u.dtype)
        if ride and part.b_value is not None:
            values = values + part.b_value.to(u.dtype)
        values = op.expand_heads(values.unflatten(-1, (op.kv_heads, -1)))  # [b, j, h, v]
        parts.append((values, options.alpha(part.pattern, out.dtype)))
    w_out = op.w_out.to(out.dtype)
    compute = _first_of_groups if options.grouped else _first_of_tokens
    for sources in blocks(k, options.n_sources):
        own = slice(sources.start, min(sources.stop, n_own))
        if own.start < own.stop:
            compute(out[:, :, own], parts, w_out, own, options)
        if sources.stop > n_own:
            out[:, :, -1] = 0
        receiver = 0 if options.rule == "cls" else k - 1
        if common is not None and sources.start <= receiver < sources.stop:
            out[:, :, receiver] += _constant_through(common, op)
        if collector is not None:
            collector.add(out[:, :, sources], sources)
    return _pending(bias, collector)


#: Values ``[b, j, h, v]``, and the blocks of the weights that mix them; after the first, what is added to some rows.
_Parts = Sequence[tuple[Tensor, Iterable[AlphaBlock]]]


def _first_of_tokens(out: Tensor, parts: _Parts, w_out: Tensor, own: slice, options: Mixing) -> None:
    """Project first: ``H`` vectors ``x[k] W_V^h W_O^h`` for each token, weighted by ``alpha[h,i,k]``."""
    b, _, _, d = out.shape
    for number, (values, patterns) in enumerate(parts):
        w_heads = w_out.view(values.shape[2], -1, d)  # [h, v, d]
        for rows, columns, alpha in patterns:
            start, stop = max(own.start, columns.start), min(own.stop, columns.stop)
            if not number and (start > own.start or stop < own.stop):
                out[:, rows] = 0
            if start >= stop:
                continue
            height = rows.stop - rows.start
            (z,) = options.workspace.take((stop - start, height, d))
            for item in range(b):
                vectors = torch.bmm(values[item, start:stop].transpose(0, 1), w_heads).transpose(0, 1)  # [k, h, d]
                weights = alpha[item, :, :, start - columns.start : stop - columns.start].permute(2, 1, 0)
                torch.bmm(weights.contiguous(), vectors.contiguous(), out=z)  # [k, i, d]
                place = out[item, rows, start - own.start : stop - own.start]
                if number:
                    place += z.transpose(0, 1)
                else:
                    place.copy_(z.transpose(0, 1))


def _first_of_groups(out: Tensor, parts: _Parts, w_out: Tensor, own: slice, options: Mixing) -> None:
    """Mix first: the values of a group's tokens are weighted and summed, then projected."""
    b, n, width, d = out.shape
    mixed, z = options.workspace.take((b, n, width, w_out.shape[0]), (b, n, width, d))
    for number, (values, patterns) in enumerate(parts):
        for rows, columns, alpha in patterns:
            member = options.member[:, columns]
            for item in range(b):
                for group in range(own.start, own.stop):
                    (tokens,) = torch.nonzero(member[item] == group, as_tuple=True)
                    vectors = values[item, columns][tokens].transpose(0, 1)  # [h, j, v]
                    part = torch.bmm(alpha[item][:, :, tokens], vectors).transpose(0, 1).flatten(1)  # [i, (h v)]
                    place = mixed[item, rows, group - own.start]
                    if number:
                        place += part
                    else:
                        place.copy_(part)
    matmul(mixed, w_out, out=z)
    out.copy_(z)


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
        x: the state, ``[b, i, k, d]``, contiguous; left as it is.
        position: the row wanted.
        op, options, pre_norm, pre_shares, ride: as in :func:`attend_`.

    Returns:
        ``[b, 1, k, d]``, without the residual, and the bias that is still to be added, or ``None``.
    """
    b, n, k, d = x.shape
    parts = [(part, part.pattern.weights(slice(position, position + 1))[:, :, 0]) for part in op.parts]  # [b, h, j]
    w_out = op.w_out.to(x.dtype)
    z = x.new_empty(b, 1, k, d)
    for sources in blocks(k, max(options.n_sources * n // op.heads, 1)):
        shares = None if pre_shares is None else pre_shares[:, :, sources]
        for item in range(b):
            values = sum(
                _values_of_row(x, item, sources, op, part, alpha[item], options, pre_norm, shares, ride=ride)
                for part, alpha in parts
            )
            assert isinstance(values, Tensor)
            z[item, 0, sources] = values.transpose(0, 1).flatten(1) @ w_out
    bias = _remaining_bias(op, ride, slice(position, position + 1))
    collector = options.collector(bias, z)
    if collector is not None:
        collector.add(z, slice(0, k))
    return z, _pending(bias, collector)


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
        own = torch.nn.functional.one_hot(options.member[item], x.shape[2])[:, sources].to(x.dtype)  # [j, k]
        b_value = op.expand_heads(part.b_value.to(x.dtype).view(op.kv_heads, -1))  # [h, v]
        values += (alpha @ own).unsqueeze(-1) * b_value.unsqueeze(1)
    return values


def _norm_(u: Tensor, norm: Norm, shares: Tensor | None) -> None:
    """A norm in place on some sources, ``[b, j, k, d]``, its bias by shares ``[b, j, k]`` known from all."""
    if norm.centre:
        u -= u.mean(-1, keepdim=True)
    u /= norm.std[:, :, None, None]
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


def _ride_(values: Tensor, b_value: Tensor, member: Tensor, sources: slice) -> None:
    """Add the value bias to each token's own value vector; ``values`` are ``[b, j, k, (g v)]``."""
    own = member.unsqueeze(-1) == torch.arange(sources.start, sources.stop, device=member.device)
    values.addcmul_(own.unsqueeze(-1).to(values.dtype), b_value.to(values.dtype))


def _remaining_bias(op: Attention, ride: bool, rows: slice = slice(None)) -> Tensor | None:
    """The bias that is shared: ``b_O`` alone where the value bias rides with the values; of the positions ``rows``
    where each has its own."""
    return op.b_out if ride and op.has_value_bias else op.bias(rows)


def _constant_through(vector: Tensor, op: Attention) -> Tensor:
    """What the attention makes of one vector ``[d]`` at every position, ``[d]``: its weights sum to 1; with hubs,
    ``[b, i, d]``."""
    dtype = vector.dtype
    (plain, *of_hubs) = (
        op.expand_heads((vector @ part.w_value.to(dtype)).view(op.kv_heads, -1)).flatten() @ op.w_out.to(dtype)
        for part in op.parts
    )
    if op.hubs is None or op.hubs.pattern.hubs is None:
        return plain
    return torch.where(op.hubs.pattern.hubs.where.unsqueeze(-1), of_hubs[0], plain)


def _pending(bias: Tensor | None, collector: ShareCollector | None) -> PendingBias | None:
    if bias is None:
        return None
    return PendingBias(bias, None if collector is None else collector.shares())
