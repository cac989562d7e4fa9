"""What the biases add, and to whom the rule gives it."""

from __future__ import annotations

import torch
from torch import Tensor

from ...config import DecompXConfig
from ..attribution import SiteShare
from ..reach import Reach


class Ledger:
    """Sums what the biases add, and gives it to whom the rule says.

    Shares go to ranges of sources, so they are kept as the differences from each source to the next, and
    summed up at the end; in float64, because differences cancel.

    Attributes:
        scores: ``[b, m, k]``, of the tokens themselves.
        bias_token: ``[b, m]`` or ``None``.
        layer, reach: where :meth:`add` is: index of the layer (-1: the head), sources with a vector.
        first: the number among all tokens of the first whose state is worked on: of a decoder, that after the
            encoder's.
        memory: ``[b, m, j, d]``, what the cross attentions so far have pulled back to the memory, or ``None``.
        beyond: ``[k]`` or ``[b, m, k]``, True for sources after those that the head reaches, or ``None`` if there are
            none.
        components: ``"name.layer"`` to ``[b, k, m]``, as :class:`Attribution` says.
    """

    def __init__(self, b: int, m: int, n: int, config: DecompXConfig, *, like: Tensor, keep_sites: bool) -> None:
        self.scores = like.new_zeros(b, m, n)
        self.bias_token = like.new_zeros(b, m) if config.bias == "bias_token" else None
        self.layer = -1
        self.reach: Reach | None = None
        self.first = 0
        self.memory: Tensor | None = None
        self.beyond: Tensor | None = None
        self.components: dict[str, Tensor] = {}
        self._rule = config.bias
        self._steps = torch.zeros(b, m, n + 1, dtype=torch.float64, device=like.device)
        self._sites: dict[tuple[int, str], Tensor] | None = {} if keep_sites else None

    def add(self, place: str, g: Tensor, bias: Tensor | None, rows: slice) -> None:
        """Note ``g[i] . bias`` for ``rows``; ``bias`` is ``[d]``, or ``[b, i, d]`` with these ``i``."""
        if bias is None or (self._rule == "none" and self._sites is None):
            return
        self.note(place, g @ bias if bias.ndim == 1 else (g * bias.unsqueeze(1)).sum(-1), rows)

    def note(self, place: str, share: Tensor, rows: slice) -> None:
        """Note what a bias adds at ``rows``, ``[b, m, i]``."""
        total = share.sum(-1)
        if self._sites is not None:
            key = (self.layer, place)
            self._sites[key] = self._sites[key] + total if key in self._sites else total
        if self.bias_token is not None:
            self.bias_token += total
        elif self._rule == "cls":
            self._steps[..., 0] += total
            self._steps[..., 1] -= total
        elif self._rule == "equal":
            self._share_equally(share.double(), rows)

    def _share_equally(self, share: Tensor, rows: slice) -> None:
        if self.reach is None:
            self._steps[..., 0] += share.sum(-1) / self.scores.shape[-1]
            return
        first, end = self.reach.first[..., rows], self.reach.last[..., rows] + 1
        if first.ndim == 2:  # positions of each item's own, [b, i]
            first, end = first.unsqueeze(1), end.unsqueeze(1)
        if self.reach.hubs is None or self.reach.whole is None:
            each = share / (end - first)
        else:
            each = self._share_with_hubs(share, first, end, self.reach.hubs, self.reach.whole[:, rows])
        first, end = first.expand_as(share), end.expand_as(share)
        self._steps.scatter_add_(-1, first, each)
        self._steps.scatter_add_(-1, end, -each)

    def _share_with_hubs(self, share: Tensor, first: Tensor, end: Tensor, hubs: Tensor, whole: Tensor) -> Tensor:
        """Give hubs outside of a range, and all tokens where all reach a position, their parts of ``share``
        ``[b, m, i]``; what is left for each token of the ranges, ``[b, m, i]``.

        Args:
            share: what is to be shared at each position.
            first, end: of the ranges, ``[i]`` or ``[b, 1, i]``.
            hubs: ``[b, j]``.
            whole: ``[b, i]``, where all reach a position.
        """
        self._steps[..., 0] += (share * whole.unsqueeze(1)).sum(-1) / self.scores.shape[-1]
        share = share.masked_fill(whole.unsqueeze(1), 0)
        tokens = hubs.any(0).nonzero().flatten()  # [h]
        outside = (tokens < first.unsqueeze(-1)) | (tokens >= end.unsqueeze(-1))
        outside = outside & hubs[:, None, None, tokens]  # [b, 1, i, h]
        each = share / (end - first + outside.sum(-1))
        given = (each.unsqueeze(-2) @ outside.to(each.dtype)).squeeze(-2)  # [b, m, h]
        self._steps.index_add_(-1, tokens, given)
        self._steps.index_add_(-1, tokens + 1, given, alpha=-1)
        return each

    def carry(self, name: str, g: Tensor, x: Tensor, rows: slice) -> None:
        """Note ``g[i] . x[i]``, what positions ``rows`` send through a component; ``[b, m, i, d]``, ``[b, i, d]``."""
        if self._sites is None:
            return
        b, m, n = self.scores.shape
        key = f"{name}.{self.layer}"
        carried = (g * x.unsqueeze(1)).sum(-1).transpose(1, 2)  # [b, i, m]
        if key not in self.components and carried.shape[1] == n:
            self.components[key] = carried.contiguous()
        else:
            self.components.setdefault(key, g.new_zeros(b, n, m))[:, self._tokens(rows)] += carried

    def credit(self, scores: Tensor, rows: slice) -> None:
        """Note scores ``[b, m, k]`` that are the tokens' own under every rule, for the positions ``rows``."""
        self.scores[:, :, self._tokens(rows)] += scores

    def _tokens(self, rows: slice) -> slice:
        """The numbers of positions among all tokens."""
        return slice(self.first + rows.start, self.first + rows.stop)

    def add_memory(self, g: Tensor, memory: Tensor) -> None:
        """Note what a cross attention has pulled back to the memory, ``[b, m, j, d]``; that is ``[b, j, d]``."""
        first, self.first = self.first, 0  # its tokens are the encoder's
        self.carry("cross_attention", g, memory, slice(0, g.shape[2]))
        self.first = first
        self.memory = g if self.memory is None else self.memory.add_(g)

    def total_scores(self) -> Tensor:
        """``[b, m, k]``, the tokens' own and what the rule gave them."""
        given = self._steps.cumsum(-1)[..., :-1]
        if self._rule == "equal" and self.beyond is not None:
            # All that was added has been subtracted again there, but for its rounding.
            given = given.masked_fill(self.beyond, 0)
        return self.scores + given.to(self.scores.dtype)

    def shares(self) -> list[SiteShare]:
        """By place, in forward order: they were met in reverse."""
        sites = self._sites or {}
        return [SiteShare(layer, place, value) for (layer, place), value in reversed(sites.items())]
