"""The first attention, where every token's vector still belongs to its own source alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ...config import DecompXConfig
from ...linearize.layer import Attention, Norm
from ..blocks import matmul
from ..doubts import Doubts
from .attention import pending_of, remaining_bias
from .mixing import AlphaBlock, Mixing
from .sharing import PendingBias


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
    shard = options.shard
    k, offset, total = out.shape[2], options.first_source, out.shape[2] if shard is None else shard.total
    n_own = min(max(total - (options.rule == "bias_token") - offset, 0), k)  # the last source is no token then
    source = 0 if options.rule == "cls" else -1
    receiver = source % k if shard is None else shard.place(source)
    bias = remaining_bias(op, ride)
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
    for sources in options.storage.by_sources(options.n_sources, out):
        own = slice(sources.start, min(sources.stop, n_own))
        if own.start < own.stop:
            compute(out[:, :, own], parts, w_out, slice(own.start + offset, own.stop + offset), options)
        if sources.stop > n_own:
            out[:, :, max(sources.start, n_own) : sources.stop] = 0
        if common is not None and receiver is not None and sources.start <= receiver < sources.stop:
            out[:, :, receiver] += _constant_through(common, op)
        if collector is not None:
            collector.add(out[:, :, sources], sources)
    return pending_of(bias, collector)


def first_input(
    embedding: Tensor, exact: Tensor, norm: Norm | None, op: Attention, config: DecompXConfig, doubts: Doubts
) -> tuple[Tensor, Tensor | None] | None:
    """What the first attention reads where each token's vector is its own source's alone, ``[b, j, d]``, and what one
    source has at every position beside it; ``None`` where a token has no vector, so that all sources share the bias, or
    where what one source has is not passed on unchanged.

    Args:
        embedding, exact: ``[b, j, d]``, in the dtype of the state, and in that of the linearisation.
        norm: before the attention.
        op: the attention.
        config: the options.
        doubts: what this run takes for granted on a GPU.
    """
    if norm is None:
        return embedding, None
    u = norm.linear(exact)
    if norm.bias is None or config.bias == "none":
        return u.to(embedding.dtype), None
    if config.bias in ("cls", "bias_token"):
        if op.pattern.sink is not None:
            return None
        return u.to(embedding.dtype), norm.bias.to(embedding.dtype)
    empty = config.bias != "equal" and doubts.raised((u == 0).all(-1))
    return None if empty else ((u + norm.bias).to(embedding.dtype), None)


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
            for item in range(b):
                tokens_of = options.tokens_of(item, columns)
                for group in range(own.start, own.stop):
                    tokens = tokens_of.get(group, options.member[item, :0])
                    vectors = values[item, columns][tokens].transpose(0, 1)  # [h, j, v]
                    part = torch.bmm(alpha[item][:, :, tokens], vectors).transpose(0, 1).flatten(1)  # [i, (h v)]
                    place = mixed[item, rows, group - own.start]
                    if number:
                        place += part
                    else:
                        place.copy_(part)
    matmul(mixed, w_out, out=z)
    out.copy_(z)


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
