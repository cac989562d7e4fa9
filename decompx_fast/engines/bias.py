"""Sharing a bias among the sources: the rules of the method, in plain PyTorch, for any shape."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .shard import Shard


@dataclass(frozen=True)
class Rule:
    """A rule, and the shares that it gives where they do not depend on the vectors.

    Attributes:
        name: any rule of the method.
        shares: ``[b, i, k]`` under ``equal`` (:func:`.reach.equal_shares`), else ``None``.
        shard: the part of the sources that is here; ``None``: all are.
    """

    name: str
    shares: Tensor | None = None
    shard: Shard | None = None

    def add(self, u: Tensor, bias: Tensor | None) -> Tensor:
        """:func:`add_bias` for ``u`` ``[b, i, k, d]``."""
        return add_bias(u, bias, self.name, shares=self.shares, shard=self.shard)

    def at(self, positions: slice | int) -> Rule:
        """The same at some of the positions."""
        return self if self.shares is None else replace(self, shares=self.shares[:, positions])

    def among(self, positions: Tensor) -> Rule:
        """The same at some positions ``[r]`` of the joined axis of batch and positions, as one input."""
        return self if self.shares is None else replace(self, shares=self.shares.flatten(0, 1)[None, positions])


def bias_shares(u: Tensor, bias: Tensor, rule: str, shard: Shard | None = None) -> Tensor:
    """The share of each source in a bias.

    ``absdot``: ``|b . u[k]|``; ``abssim``: ``|cos(b, u[k])|``; ``norm``: ``|u[k]|``; ``equal``: 1 where ``u[k]`` is
    not zero; ``cls``: 1 for the first source; ``dot``: ``b . u[k]``; each divided by its sum over the sources. Where
    that sum is zero, the bias is shared equally among the sources whose vector is not zero, and if there are none,
    among all.

    Args:
        u: ``[..., k, d]``, the vectors before the bias is added.
        bias: ``[d]``, or ``[..., d]`` with the leading axes of ``u``.
        rule: one of the six above.
        shard: the part of the sources that ``u`` has; ``None``: all.

    Returns:
        ``[..., k]``, summing to 1 over ``k``; float32 at least.

    Source: DecompX (ACL 2023), section 3, "bias decomposition", and appendix.
    """
    wide = torch.promote_types(u.dtype, torch.float32)
    if rule == "cls":
        return _all_to(0 if shard is None else shard.place(0), u.to(wide))
    return shares_by_weights(_weights(u.to(wide), bias.to(wide), rule), u, rule, shard)


def shares_by_weights(weights: Tensor, u: Tensor, rule: str, shard: Shard | None = None) -> Tensor:
    """Weights ``[..., k]`` over their sum; where that is zero, equal shares of the vectors ``u`` that are not zero."""
    if shard is not None:
        return shard.shares(weights, lambda: (u != 0).any(-1), signed=rule == "dot")[0]
    # The sum of weights may leave the range that each is in; their size does not matter.
    weights, _ = _to_size_one(weights)
    total = weights.sum(-1, keepdim=True)
    if u.device.type != "cpu" or bool((total == 0).any()):  # to wait for a GPU takes longer than to compute it
        nonzero = (u != 0).any(-1).to(weights.dtype)
        nonzero = torch.where(nonzero.sum(-1, keepdim=True) == 0, torch.ones_like(nonzero), nonzero)
        weights = torch.where(total == 0, nonzero, weights)
        total = weights.sum(-1, keepdim=True)
    return weights / total


def _weights(u: Tensor, bias: Tensor, rule: str) -> Tensor:
    if rule == "equal":
        return (u != 0).any(-1).to(u.dtype)
    if rule == "norm":
        return safe_norm(u)
    if rule == "abssim":
        return _absolute_similarity(u, bias)
    bias, _ = _to_size_one(bias)  # its size is common to all sources, and products with it might vanish
    dot = (u @ bias.unsqueeze(-1)).squeeze(-1)  # [..., k]
    if rule == "dot":
        return dot
    if rule == "absdot":
        return dot.abs()
    raise ValueError(f"rule={rule!r} shares no bias")


def _all_to(source: int | None, u: Tensor) -> Tensor:
    """The shares where one source takes all, or one that is not here."""
    shares = torch.zeros_like(u[..., 0])
    if source is not None:
        shares[..., source] = 1
    return shares


def safe_norm(x: Tensor) -> Tensor:
    """``|x|`` over the last axis, for vectors of any size: their squares may leave the range that they are in."""
    x, size = _to_size_one(x)
    return x.norm(dim=-1) * size.squeeze(-1)


def _absolute_similarity(u: Tensor, bias: Tensor) -> Tensor:
    """``|u . b| / |u|`` but for the size of the bias, which is common to all sources; 0 for a vector of zeros."""
    u, _ = _to_size_one(u)
    bias, _ = _to_size_one(bias)
    norm = u.norm(dim=-1)
    dot = (u @ bias.unsqueeze(-1)).squeeze(-1).abs()
    return torch.where(norm == 0, torch.zeros_like(norm), dot / torch.where(norm == 0, torch.ones_like(norm), norm))


def _to_size_one(x: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors over a power of two near their largest number, which changes no digit, and that size."""
    exponent = torch.frexp(x.abs().amax(-1, keepdim=True)).exponent
    size = torch.ldexp(torch.ones_like(exponent, dtype=x.dtype), exponent - 1)
    return x / size, size


def add_bias(
    u: Tensor, bias: Tensor | None, rule: str, *, shares: Tensor | None = None, shard: Shard | None = None
) -> Tensor:
    """The vectors with a bias shared among them, ``u[k] + omega[k] b``, or given to the last source (``bias_token``).

    Args:
        u: ``[..., k, d]``.
        bias: ``[d]`` or ``[..., d]``; ``None`` for no bias.
        rule: any rule of the method; ``none`` leaves the bias out.
        shares: ``[..., k]``, where they are known beforehand: for ``equal`` (:func:`.reach.equal_shares`).
        shard: the part of the sources that ``u`` has; ``None``: all.

    Returns:
        A new tensor of the shape of ``u``.
    """
    if bias is None or rule == "none":
        return u
    bias = bias.to(u.dtype)
    if rule == "bias_token":
        if shard is None:
            return torch.cat([u[..., :-1, :], u[..., -1:, :] + bias.unsqueeze(-2)], dim=-2)
        shares = _all_to(shard.place(-1), u)
    share = bias_shares(u, bias, rule, shard) if shares is None else shares
    return u + share.unsqueeze(-1).to(u.dtype) * bias.unsqueeze(-2)
