"""Sharing biases in the forward engine: in place through the ops, or by numbers collected block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from ...linearize.layer import Norm
from ...ops import activation_, add_norm_, bias_shares, bias_split_, functional_dots, layernorm_, vector_shares
from ...ops.shares import absolute_similarity, nonzero_sources, safe_norm, size_of
from ..blocks import wide
from ..doubts import Doubts
from ..shard import Shard
from .live import LiveBlock


@dataclass(frozen=True)
class Sharing:
    """How a bias reaches the sources: by a rule of the ops, to the last source (``bias_token``), or by shares that do
    not depend on the vectors (``equal``).

    Attributes:
        rule: of the configuration.
        backend: of the ops.
        known: ``[1, p, k]`` under ``equal``: the shares at the positions that are worked on, float32 at least.
        shard: the part of the sources that is here; ``None``: all are. Otherwise the ops share no bias, since they know
            nothing of the others.
        doubts: what this run takes for granted on a GPU.
    """

    rule: str
    backend: str
    known: Tensor | None = None
    shard: Shard | None = None
    doubts: Doubts = field(default_factory=Doubts)

    def at(self, rows: slice | Tensor, block: LiveBlock | None = None) -> Sharing:
        """The same at some positions of the joined axis of batch and positions, among the sources of a block."""
        if self.known is None:
            return self
        known = self.known[:, rows]
        return replace(self, known=known if block is None else block.sources(known))

    @property
    def collects(self) -> bool:
        """Whether the last source takes every bias, so that the ops share none."""
        return self.rule == "bias_token"

    @property
    def _by_ops(self) -> bool:
        """Whether the ops share the biases."""
        return not self.collects and self.known is None and self.shard is None

    @property
    def takes_all(self) -> bool:
        """Whether one source takes every bias."""
        return self.collects or self.rule == "cls"

    @property
    def receiver(self) -> int | None:
        """Which of the sources here takes every bias, if it is here."""
        source = -1 if self.collects else 0
        return source if self.shard is None else self.shard.place(source)

    @property
    def _options(self) -> dict[str, str]:
        return {"rule": self.rule if self._by_ops else "none", "backend": self.backend}

    def add_(self, x: Tensor, bias: Tensor | None) -> None:
        """``x[i,k] <- x[i,k] + omega[i,k] bias[i]``, weights taken from ``x`` ``[1, p, k, d]``; ``bias`` is ``[d]`` or
        ``[1, p, d]``."""
        if bias is None or self.rule == "none":
            return
        bias = bias.to(wide(x.dtype))
        if self._by_ops:
            bias_split_(x, bias, **self._options)  # type: ignore[arg-type]
        else:
            self._put_(x, bias)

    def _put_(self, x: Tensor, bias: Tensor) -> None:
        """The same where the ops do not do it; ``bias`` may be ``[1, p, d]`` too."""
        if self.rule == "none":
            return
        if self.takes_all:
            if self.receiver is not None:
                x[..., self.receiver, :] += bias
            return
        shares = self.shares(x, bias) if self.known is None else self.known
        x.addcmul_(shares.unsqueeze(-1).to(x.dtype), bias.to(x.dtype).unsqueeze(-2))

    def norm_(self, x: Tensor, norm: Norm | None) -> None:
        """Equation 7: the linear part of a norm, then its bias shared; ``norm.std`` is ``[1, p]``."""
        if norm is None:
            return
        weight, bias = _to(norm.weight, x), _to(norm.bias, x)
        shared = bias if self._by_ops else None
        layernorm_(x, norm.std, weight, shared, centre=norm.centre, **self._options)  # type: ignore[arg-type]
        if bias is not None and not self._by_ops:
            self._put_(x, bias)

    def add_norm_(
        self, x: Tensor, branch: Tensor, bias: Tensor | None, norm: Norm | None, *, after_residual: bool = False
    ) -> None:
        """Equations 5 to 7: a branch with its bias added to ``x``, then the norm; ``branch`` is overwritten.

        Args:
            x, branch: ``[1, p, k, d]``.
            bias: ``[d]`` or ``None``.
            norm: with ``std`` ``[1, p]``, or ``None``.
            after_residual: whether the bias is shared by ``x + branch`` and not by ``branch``.
        """
        if norm is not None and self._by_ops:
            vectors = (_to(bias, x), norm.std, _to(norm.weight, x), _to(norm.bias, x))
            options = {"share_after_residual": after_residual, "centre": norm.centre, **self._options}
            add_norm_(x, branch, *vectors, **options)  # type: ignore[arg-type]
            return
        if not after_residual:
            self.add_(branch, bias)
        x += branch
        if after_residual:
            self.add_(x, bias)
        self.norm_(x, norm)

    def activate_(self, a: Tensor, slope: Tensor, bias: Tensor | None, intercept: Tensor | None) -> None:
        """Equation 9: the bias before an activation, its slope ``[1, p, f]``, and its intercept shared likewise."""
        bias, intercept = _to(bias, a), _to(intercept, a)
        if self._by_ops:
            activation_(a, _to(slope, a), bias, intercept=intercept, **self._options)  # type: ignore[arg-type]
            return
        if bias is not None:
            self._put_(a, bias)
        activation_(a, _to(slope, a), **self._options)  # type: ignore[arg-type]
        if intercept is not None:
            self._put_(a, intercept)

    def shares_before(
        self, u: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None] | None:
        """How a bias will be shared by vectors that are not formed yet, ``a = u W``.

        Args:
            u: ``[1, p, k, d]``.
            weight: ``W``, ``[d, f]``.
            bias: ``[f]`` or ``None``.

        Returns:
            The bias and the shares ``[1, p, k]`` of the sources, both ``None`` where nothing is to be added; ``None``
            where only the vectors themselves can tell, since all dots of a position are zero. The rule must be one of
            :data:`decompx_fast.bias_rules.FUNCTIONAL_RULES`.
        """
        # A bias of zeros has dots of zero, and nobody needs to know who gets it.
        if bias is None or self.rule == "none" or not bool(bias.any()):
            return None, None
        dtype = wide(u.dtype)
        if self.known is not None:
            return bias.to(dtype), self.known.to(dtype).contiguous()
        if self.takes_all:
            return bias.to(dtype), self._to_one(u)
        functional = (weight.to(dtype) @ bias.to(dtype)).expand(*u.shape[:2], 1, -1)
        dots = functional_dots(u, functional, backend=self.backend).squeeze(-1)
        shares, undecided = self.shares_by_dots(dots)
        return None if bool(undecided.any()) else (bias.to(dtype), shares)

    def shares_by_dots(self, dots: Tensor) -> tuple[Tensor, Tensor]:
        """The shares ``[..., k]`` by the dots of the vectors, and where these are all zero, ``[...]``, so that only the
        vectors could tell; for a rule that weighs by dots."""
        weights = dots if self.rule == "dot" else dots.abs()
        if self.shard is not None:
            return self.shard.shares(weights, lambda: torch.ones_like(dots, dtype=torch.bool), signed=self._signed)
        return bias_shares(dots, rule=self.rule), weights.sum(-1) == 0  # type: ignore[arg-type]

    @property
    def _signed(self) -> bool:
        return self.rule == "dot"

    def _to_one(self, u: Tensor) -> Tensor:
        """The shares ``[..., k]`` where one source takes all."""
        shares = torch.zeros(u.shape[:-1], dtype=wide(u.dtype), device=u.device)
        if self.receiver is not None:
            shares[..., self.receiver] = 1
        return shares

    def shares(self, u: Tensor, bias: Tensor) -> Tensor:
        """``[1, p, k]``, the share of each source by the vectors ``u`` ``[1, p, k, d]``, float32 at least; for every
        rule but ``none``."""
        if self.takes_all:
            return self._to_one(u)
        if self.known is not None:
            return self.known
        if self.shard is None:
            look = partial(self.doubts.about, bias=bias)
            return vector_shares(u, bias.to(u.dtype), rule=self.rule, look=look)  # type: ignore[arg-type]
        bias = bias.to(wide(u.dtype))
        weights = weigh(u, bias / size_of(bias), self.rule, self.backend)
        return self.shard.shares(weights, lambda: nonzero_sources(u), signed=self._signed)[0]


@dataclass(frozen=True)
class SharingInTurn(Sharing):
    """The same where the shares of every bias are known before any is added.

    Attributes:
        turns: ``[1, p, k]`` each, in the order in which the biases are added.
    """

    turns: Iterator[Tensor] = field(default_factory=lambda: iter(()))

    @property
    def _by_ops(self) -> bool:
        return False

    def at(self, rows: slice | Tensor, block: LiveBlock | None = None) -> Sharing:
        return self  # they are those of the positions that are worked on

    def shares(self, u: Tensor, bias: Tensor) -> Tensor:
        return next(self.turns)

    def shares_before(
        self, u: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None] | None:
        return (None, None) if bias is None else (bias.to(wide(u.dtype)), next(self.turns).contiguous())


@dataclass(frozen=True)
class PendingBias:
    """A bias that is still to be added: by ``shares`` ``[b, i, k]`` if they are known, else by the rule.

    It is ``[d]``, or ``[b, i, d]`` where each position has its own.
    """

    vector: Tensor
    shares: Tensor | None = None

    def at(self, rows: slice | Tensor, block: LiveBlock | None = None) -> PendingBias:
        """The same at some positions of the joined axis of batch and positions, ``[1, p, k]``, among the sources of a
        block."""
        vector = self.vector if self.vector.ndim == 1 else self.vector.flatten(0, 1)[None, rows]
        if self.shares is None:
            return PendingBias(vector)
        shares = self.shares.flatten(0, 1)[None, rows]
        return PendingBias(vector, shares if block is None else block.sources(shares))

    def add_(self, x: Tensor, sharing: Sharing) -> None:
        """Add it to ``x`` ``[1, p, k, d]``."""
        if self.shares is None:
            sharing.add_(x, self.vector)
        else:
            x.addcmul_(self.shares.unsqueeze(-1).to(x.dtype), self.vector.to(x.dtype).unsqueeze(-2))


class ShareCollector:
    """Collects, block of sources by block, what a rule needs in order to share a bias by vectors that do not stay.

    Args:
        bias: ``[d]`` or ``[b, i, d]``.
        rule: one of :data:`decompx_fast.bias_rules.VECTOR_RULES`.
        like: ``[b, i, k, d]``, the shape and dtype of the vectors.
        backend: of the op that takes the dots.
        shard: the part of the sources that is here; ``None``: all are.
        doubts: what this run takes for granted on a GPU.
    """

    def __init__(
        self,
        bias: Tensor,
        rule: str,
        like: Tensor,
        backend: str,
        shard: Shard | None = None,
        doubts: Doubts | None = None,
    ) -> None:
        self._doubts = Doubts() if doubts is None else doubts
        self._bias = bias.to(wide(like.dtype))
        self._rule = rule
        self._backend = backend
        self._shard = shard
        self._weights = torch.zeros(like.shape[:-1], dtype=self._bias.dtype, device=like.device)
        self._nonzero: Tensor | None = None
        self._absent: list[tuple[slice, slice]] = []

    def add(self, z: Tensor, sources: slice, first: int = 0) -> None:
        """The vectors ``[b, i, k, d]`` of some sources, from the position ``first`` on; before, they are zero."""
        bias = self._bias if self._bias.ndim == 1 else self._bias[:, first:]
        weights = weigh(z, bias, self._rule, self._backend)
        self._weights[:, first:, sources] = weights
        self._absent.append((slice(first), sources))
        # Which vectors are zero matters only where the weights add up to nothing, which is rare, and costs a read.
        if self._rule == "dot" or self._doubts.at_once(z.device, lambda: weights.sum(-1) == 0):
            if self._nonzero is None:
                self._nonzero = torch.ones_like(self._weights, dtype=torch.bool)
            self._nonzero[:, first:, sources] = nonzero_sources(z)

    def skip(self, sources: slice) -> None:
        """Sources whose vectors are all zero."""
        self._absent.append((slice(None), sources))

    def shares(self) -> Tensor:
        """``[b, i, k]``, adding up to one over the sources."""
        if self._nonzero is not None:
            for rows, sources in self._absent:
                self._nonzero[:, rows, sources] = False
        elif self._shard is None and self._weights.device.type != "cpu":
            self._doubts.about(self._weights.sum(-1) == 0, self._bias)
        if self._shard is None:
            return bias_shares(self._weights, rule="dot", nonzero=self._nonzero)
        return self._shard.shares(self._weights, self._there, signed=self._rule == "dot")[0]

    def _there(self) -> Tensor:
        return torch.ones_like(self._weights, dtype=torch.bool) if self._nonzero is None else self._nonzero


def weigh(u: Tensor, bias: Tensor, rule: str, backend: str) -> Tensor:
    """What a rule weighs each vector of ``u`` ``[b, i, k, d]`` by, ``[b, i, k]`` in float32 at least, but for a factor
    common to the sources; ``bias`` is ``[d]`` or ``[b, i, d]``."""
    if rule == "norm":
        return safe_norm(u)
    functional = bias.unsqueeze(-2).expand(*u.shape[:2], 1, -1).contiguous()
    dots = functional_dots(u, functional, backend=backend).squeeze(-1)
    if rule == "abssim":
        return absolute_similarity(u, bias, dots)
    return dots if rule == "dot" else dots.abs()


def _to(constant: Tensor | None, x: Tensor) -> Tensor | None:
    """A constant in the dtype in which it is combined with ``x``, without gaps (biases may be stored in turns)."""
    return None if constant is None else constant.to(wide(x.dtype)).contiguous()
