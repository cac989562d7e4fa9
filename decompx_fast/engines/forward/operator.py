"""Everything between two mixings as one matrix per position, with the biases' updates of low rank.

For post-norm layers, attention then a plain feed-forward network, and rules that need dots only (or no vectors). What
lies between two mixings is one affine map for all sources of a position, through these spaces:

    r   after the residual of the attention      y = C1 r, plus beta1
    a = y W_1, plus b_1                          h = theta * a, plus the intercept of a tangent
    f = h W_2, plus b_2                          x = C2 (y + f), plus beta2

so ``X'[i,k] = R[i,k] T[i] + sum_m omega_m[i,k] u_m[i]`` with ``T = C1 (I + W_1 diag(theta) W_2) C2``. A bias ``m`` is
pushed forward to ``u_m``. What its sharing looks at, ``v_m . (vectors where it is added)``, is pulled back to a
functional of ``R[i,k]``, and what earlier biases add to it is their share times one number for each position: so all
shares are known before anything large is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...activations import get_activation, linear_piece
from ...config import DecompXConfig
from ...linearize.layer import FeedForward, Norm, Sublayer
from ...ops import FrozenNorm, functional_dots, position_apply, position_operator
from ..blocks import Workspace, wide
from .direct import at_rows
from .sharing import PendingBias, Sharing


@dataclass(frozen=True)
class Segment:
    """A post-norm layer after its attention, at some positions ``p``: what :func:`finish_by_operator_` folds.

    Attributes:
        norm1, norm2: with ``std`` ``[1, p]``, or ``None``.
        network: plain.
        theta: ``[p, f]``, the slopes of the activation.
        sites: ``(space, vector)`` of each bias in order; vectors are ``[1, .]`` or ``[p, .]``.
        dtype: of all that is computed for single positions, float32 at least.
    """

    norm1: Norm | None
    norm2: Norm | None
    network: FeedForward
    theta: Tensor
    sites: list[tuple[str, Tensor]]
    dtype: torch.dtype

    def push(self, space: str, v: Tensor) -> Tensor:
        """What a vector added in a space adds to the output, ``[p, d]``."""
        if space == "x":
            return v
        if space == "r":
            space, v = "y", _row(self.norm1, v)
        skip = v if space == "y" else 0
        if space == "y":
            space, v = "a", v @ self._w_in
        if space == "a":
            space, v = "h", self.theta * v
        if space == "h":
            v = v @ self._w_out
        return _row(self.norm2, skip + v)

    def pull(self, space: str, v: Tensor) -> dict[str, Tensor]:
        """The functional ``v`` of a space as a functional of every space before it, ``[p, .]``."""
        pulled = {space: v}
        skip: Tensor | float = 0
        if space == "x":
            space, v = "f", _column(self.norm2, v)
            pulled["f"] = skip = v
        if space == "f":
            space, v = "h", v @ self._w_out.T
            pulled["h"] = v
        if space == "h":
            space, v = "a", self.theta * v
            pulled["a"] = v
        if space == "a":
            space, v = "y", skip + v @ self._w_in.T
            pulled["y"] = v
        if space == "y":
            pulled["r"] = _column(self.norm1, v)
        return pulled

    @property
    def _w_in(self) -> Tensor:
        return self.network.w_in.to(self.dtype)

    @property
    def _w_out(self) -> Tensor:
        return self.network.w_out.to(self.dtype)


def finish_by_operator_(
    x: Tensor,
    sublayers: Sequence[Sublayer],
    constants: slice | Tensor,
    config: DecompXConfig,
    sharing: Sharing,
    workspace: Workspace,
    *,
    pending: PendingBias | None,
    precision: str,
    known: Sequence[Tensor] | None = None,
) -> bool:
    """The position-wise part of a post-norm layer, in place.

    Args:
        x: ``[1, p, k, d]``: the state after the residual of the attention.
        sublayers: the two of the layer.
        constants: these positions on the joined axis of batch and positions.
        config, sharing: the options.
        workspace: for ``T`` ``[1, p, d, d]`` and the result ``[1, p, k, d]``. The result is copied back: one pass over
            the block, little beside ``2 p k d^2`` operations, and the state stays where it is.
        pending: the bias of the attention, ``shares`` ``[1, p, k]``.
        precision: of float32 products in Triton.
        known: the shares of each bias, as :func:`shares_of_layer` finds them.

    Returns:
        False, and ``x`` untouched, where a bias meets vectors whose dots are all zero: who shares it then depends on
        which vectors are zero, and only the direct path forms them all.
    """
    first, second = (at_rows(sublayer, constants) for sublayer in sublayers)
    segment = _segment(first, second, config, pending, wide(x.dtype))
    updates = _updates(x, segment, sharing, pending, known)
    if updates is None:
        return False
    shares, u, constant = updates
    _, p, k, d = x.shape
    t, out = workspace.take((1, p, d, d), (1, p, k, d))
    position_operator(
        segment.theta.unsqueeze(0),
        segment.network.w_in.to(x.dtype),
        segment.network.w_out.to(x.dtype),
        norm_in=_frozen(segment.norm1),
        norm_out=_frozen(segment.norm2),
        out=t,
        precision=precision,  # type: ignore[arg-type]
        backend=sharing.backend,
    )
    position_apply(x, t, shares, u, out=out, precision=precision, backend=sharing.backend)  # type: ignore[arg-type]
    x.copy_(out)
    if constant is not None:
        if sharing.receiver is not None:
            x[:, :, sharing.receiver] += constant
    return True


def _segment(
    first: Sublayer, second: Sublayer, config: DecompXConfig, pending: PendingBias | None, dtype: torch.dtype
) -> Segment:
    network = second.ops[0]
    assert isinstance(network, FeedForward)
    slope, intercept = linear_piece(get_activation(network.activation), network.preactivation, config.activation)
    norm1, norm2 = first.post_norm if config.ln1 else None, second.post_norm if config.ln2 else None
    found = [
        ("r", None if pending is None else pending.vector),
        ("y", None if norm1 is None else norm1.bias),
        ("a", network.b_in),
        ("h", intercept),
        ("f", network.b_out),
        ("x", None if norm2 is None else norm2.bias),
    ]
    sites = [
        (space, vector.to(dtype).view(-1, vector.shape[-1]))
        for space, vector in found
        if vector is not None and config.bias != "none"
    ]
    return Segment(norm1, norm2, network, slope[0].to(dtype), sites, dtype)


def _updates(
    x: Tensor, segment: Segment, sharing: Sharing, pending: PendingBias | None, shares: Sequence[Tensor] | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None] | None:
    """What the biases add: ``(shares [1, p, k, m], u [1, p, m, d], None)``, or ``(None, None, u [1, p, d])`` where one
    source takes all; ``None`` where only the direct path can tell."""
    _, p, k, d = x.shape
    if not segment.sites:
        return None, None, None
    pushed = [segment.push(space, vector).expand(p, d) for space, vector in segment.sites]
    if sharing.takes_all:
        return None, None, torch.stack(pushed).sum(0).to(x.dtype).unsqueeze(0)
    if sharing.known is not None:
        shares = [sharing.known.to(segment.dtype)] * len(segment.sites)
    elif shares is None:
        shares = _Weighed.of(x, segment, sharing).shares(sharing, None if pending is None else pending.shares)
    if shares is None:
        return None
    return torch.stack([*shares], dim=-1), torch.stack(pushed, dim=1).unsqueeze(0), None


def shares_of_layer(
    x: Tensor,
    sublayers: Sequence[Sublayer],
    config: DecompXConfig,
    sharing: Sharing,
    pending: PendingBias | None,
    rows: Iterable[slice],
) -> list[Tensor] | None:
    """How the biases of a layer after its attention are shared, of all positions: so that what is summed over the
    sources of other processes is summed once for each bias.

    Args:
        x: ``[1, p, k, d]``, all positions, after the residual of the attention.
        sublayers, config, sharing, pending: as for :func:`finish_by_operator_`; the rule weighs by dots.
        rows: blocks of positions.

    Returns:
        ``[1, p, k]`` for each bias in order; ``None`` where dots are all zero, as there.
    """
    parts = []
    for some in rows:
        first, second = (at_rows(sublayer, some) for sublayer in sublayers)
        own = None if pending is None else pending.at(some)
        parts.append(_Weighed.of(x[:, some], _segment(first, second, config, own, wide(x.dtype)), sharing))
    return _Weighed.joined(parts).shares(sharing, None if pending is None else pending.shares)


@dataclass(frozen=True)
class _Weighed:
    """What the shares of a layer's biases follow from, at some positions.

    Attributes:
        spaces: where each bias is added.
        dots: ``[1, p, k, m]``, of the vectors before any bias, with each bias pulled back to them.
        added: ``[p, m, m]``, what the earlier bias (second axis), all of it, adds to the dots of the later one (first).
        there: ``[p, m]``, whether a bias is other than zero.
    """

    spaces: tuple[str, ...]
    dots: Tensor
    added: Tensor
    there: Tensor

    @classmethod
    def of(cls, x: Tensor, segment: Segment, sharing: Sharing) -> _Weighed:
        """For ``x`` ``[1, p, k, d]``."""
        p, sites = x.shape[1], segment.sites
        pulled = [segment.pull(space, vector) for space, vector in sites]
        functionals = torch.stack([functional["r"].expand(p, -1) for functional in pulled], dim=1).unsqueeze(0)
        dots = functional_dots(x, functionals.contiguous(), backend=sharing.backend)
        added = dots.new_zeros(p, len(sites), len(sites))
        for m, functional in enumerate(pulled):
            for earlier, (space, vector) in enumerate(sites[:m]):
                added[:, m, earlier] = (vector * functional[space]).sum(-1)
        there = torch.stack([(vector != 0).any(-1).expand(p) for _, vector in sites], dim=1)
        return cls(tuple(space for space, _ in sites), dots, added, there)

    @classmethod
    def joined(cls, parts: Sequence[_Weighed]) -> _Weighed:
        """Of the positions of all parts."""
        dots = torch.cat([part.dots for part in parts], dim=1)
        added, there = (torch.cat([getattr(part, name) for part in parts]) for name in ("added", "there"))
        return cls(parts[0].spaces, dots, added, there)

    def shares(self, sharing: Sharing, known: Tensor | None) -> list[Tensor] | None:
        """The triangular recursion: ``s_m = R . g_m + sum_(l<m) omega_l (v_l . v_m pulled back to where l is added)``;
        ``known`` are the shares of the attention's bias, if they are."""
        shares: list[Tensor] = []
        undecided = torch.zeros((), dtype=torch.bool, device=self.dots.device)
        for m, space in enumerate(self.spaces):
            if space == "r" and known is not None:
                shares.append(known)
                continue
            s = self.dots[..., m]
            for earlier, share in enumerate(shares):
                s = s + share * self.added[:, m, earlier].view(1, -1, 1)
            found, empty = sharing.shares_by_dots(s)
            shares.append(found)
            undecided |= (empty & self.there[:, m]).any()
        return None if sharing.doubts.raised(undecided) else shares


def _row(norm: Norm | None, v: Tensor) -> Tensor:
    """The linear part of a norm on row vectors, ``v C``."""
    if norm is None:
        return v
    v = v - v.mean(-1, keepdim=True) if norm.centre else v
    v = v if norm.weight is None else v * norm.weight.to(v.dtype)
    return v / norm.std[0, :, None].to(v.dtype)


def _column(norm: Norm | None, v: Tensor) -> Tensor:
    """The same map on functionals, ``C v``."""
    if norm is None:
        return v
    v = v if norm.weight is None else v * norm.weight.to(v.dtype)
    v = v - v.mean(-1, keepdim=True) if norm.centre else v
    return v / norm.std[0, :, None].to(v.dtype)


def _frozen(norm: Norm | None) -> FrozenNorm | None:
    return None if norm is None else FrozenNorm(norm.std, norm.weight, norm.centre)
