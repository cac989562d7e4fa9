"""Which sources reach a position: those that the rule ``equal`` shares a bias among.

"The sources whose vector is not zero" is read off the structure of the model: a source reaches a position where the
masks of the attentions (causal, windowed) let it pass, through any chain of layers. It is not read off the numbers: a
weight of the softmax that is rounded to zero (every one below 1e-45 in float32) would give or take a whole share, so
that scores would jump from one precision to the next, and differ between engines that round in another order. For
weights that are not rounded to zero both readings are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..config import DecompXConfig
from ..linearize.layer import Attention, AttentionPattern, Convolution, Linearization, Op, Sublayer


@dataclass(frozen=True)
class Reach:
    """The tokens that reach position ``i``: from ``first[i]`` to ``last[i]``, both ``[i]``; at a head also ``[b, r]``.

    A range without holes, whose ends grow along the positions, since what a position attends is one. With hubs
    (:mod:`..linearize.hubs`) these reach every position beside the range, ``hubs`` ``[b, j]``, and are reached by all
    themselves, ``whole`` ``[b, i]``; after another attention with hubs, all is.
    ``None`` in place of a reach: every token, at every position.

    Tokens of an encoder-decoder are numbered through both, and all that there are are never those of one stack
    (``of_stack``): a position of the encoder is reached by its tokens, and one of the decoder by its own token, those
    of the decoder before it, and, once they have been attended, the encoder's.
    """

    first: Tensor
    last: Tensor
    hubs: Tensor | None = None
    whole: Tensor | None = None
    of_stack: bool = False

    @classmethod
    def own(cls, n: int, device: torch.device) -> Reach:
        """At the start each position holds its own token alone."""
        i = torch.arange(n, device=device)
        return cls(i, i)

    @classmethod
    def at_start(cls, linearization: Linearization, layer: int = 0, device: torch.device | None = None) -> Reach:
        """The same where the layers begin among which is this one: a model's, an encoder's or a decoder's; on a device,
        or where the model is."""
        n, here = linearization.embedding.shape[1], linearization.embedding.device
        encoder, own = linearization.encoder, cls.own(n, here if device is None else device)
        if encoder is None:
            return own
        part = encoder.part(layer)
        return cls(own.first[part], own.last[part], of_stack=True)

    def to(self, device: torch.device) -> Reach:
        """The same on another device."""
        hubs, whole = (None if part is None else part.to(device) for part in (self.hubs, self.whole))
        return replace(self, first=self.first.to(device), last=self.last.to(device), hubs=hubs, whole=whole)

    def everything(self) -> Reach | None:
        """Every token, at every position; of a stack all that have reached any of its positions."""
        if not self.of_stack:
            return None
        return replace(self, first=self.first.amin().expand_as(self.first), last=self.last.amax().expand_as(self.last))

    def after(self, op: Attention) -> Reach | None:
        """What reaches the positions after an attention; after one to an encoder all of its tokens do."""
        return self.through(op.pattern) if op.memory is None else replace(self, first=torch.zeros_like(self.first))

    def within(self, op: Attention) -> Reach | None:
        """What reaches that which an attention gives, before it is added: of one to an encoder its tokens alone."""
        found = self.after(op)
        if op.memory is None or found is None:
            return found
        return replace(found, last=torch.full_like(found.last, op.memory.shape[1] - 1))

    @classmethod
    def around(cls, n: int, before: int, after: int, device: torch.device) -> Reach:
        """Each position holds so many tokens before and after its own: what a convolution of the embedding makes."""
        i = torch.arange(n, device=device)
        return cls((i - before).clamp_min(0), (i + after).clamp_max(n - 1))

    def joined(self, other: Reach) -> Reach:
        """What either reaches; both hold the position itself, so that no hole comes between."""
        first, last = torch.minimum(self.first, other.first), torch.maximum(self.last, other.last)
        return replace(self, first=first, last=last)

    def read(self, positions: Sequence[int]) -> Reach:
        """Of one row that is made of several positions: whatever reaches any of them."""
        rows = list(positions)
        whole = None if self.whole is None else self.whole[:, rows].any(1, keepdim=True)
        return Reach(self.first[rows].amin(0, keepdim=True), self.last[rows].amax(0, keepdim=True), self.hubs, whole)

    def at(self, rows: Tensor) -> Reach:
        """At positions ``[b, r]``, which may differ from item to item."""
        whole = None if self.whole is None else self.whole.gather(1, rows.to(self.whole.device))
        return Reach(self.first[rows], self.last[rows], self.hubs, whole)

    def through(self, pattern: AttentionPattern) -> Reach | None:
        """What is reached after an attention; all that was before, and more."""
        n = len(self.first)
        if pattern.hubs is not None and self.hubs is None:
            lowest, highest = pattern.hubs.window(torch.arange(n, device=self.first.device))
            where = pattern.hubs.where
            return Reach(self.first[lowest], self.last[highest], where, where)
        # All attend some hub, and hubs were reached by all.
        if self.hubs is not None or (not pattern.causal and pattern.window is None):
            return self.everything()
        window = n if pattern.window is None else pattern.window
        i = torch.arange(n, device=self.first.device)
        lowest = (i - window + 1).clamp_min(0)
        highest = i if pattern.causal else (i + window - 1).clamp_max(n - 1)
        return replace(self, first=self.first[lowest], last=self.last[highest])


def reach_after(sublayer: Sublayer, reach: Reach | None, config: DecompXConfig) -> Reach | None:
    """What reaches the positions after a sublayer, if ``reach`` did before."""
    ops = active_ops(sublayer, config)
    if not ops and config.ln2 and sublayer.out_norm is not None and sublayer.out_norm.bias is not None:
        return None  # Of the branch only the bias of its norm is left, and that is shared among all.
    for op in ops:
        if reach is not None and isinstance(op, Attention):
            reach = reach.after(op)
        if reach is not None and isinstance(op, Convolution):
            reach = reach.joined(reach_of_convolution(op))
    return reach


def reach_of_convolution(op: Convolution) -> Reach:
    """Which tokens reach a position within a convolution, which reads the embedding and no state."""
    return Reach.around(op.embedding.shape[1], op.before, op.after, op.embedding.device)


def active_ops(sublayer: Sublayer, config: DecompXConfig) -> tuple[Op, ...]:
    """The operations of a sublayer that are not left out."""
    return tuple(op for op in sublayer.ops if config.ffn or op.kind != "ffn")


def equal_shares(reach: Reach | None, member: Tensor, n_sources: int, dtype: torch.dtype) -> Tensor:
    """Of the sources that reach a position, an equal share each.

    Args:
        reach: of the tokens.
        member: ``[b, j]``, the source that each token belongs to, of all tokens. A source of several tokens reaches
            what one of them does; one without tokens reaches nothing.
        n_sources: how many sources there are.
        dtype: of the shares.

    Returns:
        ``[b, i, k]``, adding up to one over ``k``.
    """
    b, n = member.shape
    owns = member.unsqueeze(-1) == torch.arange(n_sources, device=member.device)  # [b, j, k]
    if reach is None:
        reached = owns.any(1, keepdim=True).expand(b, n, n_sources)
    else:
        before = torch.zeros(b, n + 1, n_sources, dtype=torch.int32, device=member.device)
        before[:, 1:] = owns.cumsum(1, dtype=torch.int32)  # how many tokens of a source come before a position
        reached = before[:, reach.last + 1] > before[:, reach.first]
        if reach.hubs is not None and reach.whole is not None:
            reached = reached | (owns & reach.hubs.unsqueeze(-1)).any(1, keepdim=True)
            reached = reached | (reach.whole.unsqueeze(-1) & owns.any(1, keepdim=True))
    shares = reached.to(dtype)
    return shares / shares.sum(-1, keepdim=True)


def equal_shares_at_head(
    reach: Reach | None, rows: Tensor | None, member: Tensor, n_sources: int, dtype: torch.dtype
) -> Tensor:
    """The same for what a head reads: positions ``[b, r]``, or ``None`` for the mean of all; ``[b, r, k]``."""
    if reach is None or rows is None:
        read = None if reach is None else reach.read(range(len(reach.first)))
        shares = equal_shares(read, member, n_sources, dtype)[:, :1]
        return shares if rows is None else shares.expand(-1, rows.shape[1], -1)
    shares = equal_shares(reach, member, n_sources, dtype)  # [b, i, k]
    return shares.gather(1, rows.to(shares.device).unsqueeze(-1).expand(-1, -1, n_sources))
