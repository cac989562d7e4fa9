"""The decomposed state on its way through the layers: what the forward engine moves on in place.

A layer is taken segment by segment (:mod:`.segments`): an attention, and what is position-wise after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...bias_rules import DOT_RULES
from ...config import DecompXConfig
from ...linearize.layer import Attention, Convolution, Linearization, LinearizedLayer, Norm, Sublayer
from ...ops.shares import safe_norm
from ..accuracy import Conditioning, largest_vectors, model_dtype_of
from ..blocks import Workspace, blocks, wide
from ..dtype_range import RangeWatch
from ..reach import Reach, equal_shares, reach_after, reach_of_convolution
from ..shape import form_refusal
from ..terms import Terms, head_for, layer_weights_of
from .answer import of_sources, read_state
from .attention import attend_, attend_row
from .columns import beginning, sources_of_encoder, widen_
from .convolution import Convolved
from .direct import at_rows, does_nothing
from .first import attend_first, first_input
from .layer_sum import LayerSum
from .live import Leak, Live, Seen, extent_after
from .mixing import Mixing
from .narrow import apply_narrow, has_narrow
from .operator import shares_of_layer
from .plan import Plan
from .position_wise import PositionWise
from .segments import attention_of, keeps_branch, rows_are_cheaper, segments
from .sharing import PendingBias, Sharing
from .step import Step


@dataclass
class Propagation:
    """One explanation under way: the state, and what every layer needs to move it on.

    Attributes:
        x: ``[b, i, k, d]``, the state; the last layer leaves of it the position that is read, and those asked for. Of
            an encoder it has only the sources that its tokens belong to (:mod:`.columns`).
        memory: ``[b, j, k, d]``, of an encoder-decoder the encoder's last state, once it is there.
        held: the positions of the state that are left; ``None``: all.
        whole: whether vectors that must be zero are computed like all others.
        leak: whether, of those that were not, some would not have been zero: then the answer is wrong.
        range: whether the numbers leave that of the dtype.
    """

    linearization: Linearization
    config: DecompXConfig
    plan: Plan
    workspace: Workspace
    mixing: Mixing
    sharing: Sharing
    dtype: torch.dtype
    positions: tuple[int, ...] = ()
    terms: Terms | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        self.member, self.of_tokens = self.mixing.member, self.mixing.of_tokens  # [b, i], of all tokens
        self.leak, self.range = Leak(), RangeWatch(self.dtype)
        self.memory: Tensor | None = None
        self.held: tuple[int, ...] | None = None
        self.stages: dict[str, Tensor] = {}
        self.conditioning = Conditioning(self.dtype, self.config.bias, model_dtype_of(self.linearization))
        self.shard, self.storage = self.mixing.shard, self.mixing.storage
        self.cuts = self.plan.costs.cuts and not self.whole
        self.seen = Seen.of(self.member, grouped=self.mixing.grouped) if self.cuts else None
        self.k = self.plan.costs.k  # of the sources that are here
        self.total = self.k if self.shard is None else self.shard.total
        self._begin(0)
        weights = layer_weights_of(self.linearization)
        self.sum = None if weights is None else self._start_sum(weights)
        self.keeps_rows = not {"encoder", "aggregated"}.isdisjoint(self.config.stages)

    def _begin(self, layer: int) -> None:
        """A new state, of the tokens that the layers from this one on work on; not yet filled."""
        encoder = self.linearization.encoder
        self.own = slice(None) if encoder is None else encoder.part(layer)
        self.embedding = self.linearization.embedding[:, self.own].to(self.dtype)
        tokens = [sources[self.own] for sources in self.of_tokens]
        self.mixing = dataclasses.replace(self.mixing, member=self.member[:, self.own], of_tokens=tokens)
        self.reach: Reach | None = Reach.at_start(self.linearization, layer)
        self.extent = Reach.at_start(self.linearization, layer, torch.device("cpu")) if self.cuts else None
        b, n, d = self.embedding.shape
        self.x = self._whole = self.storage.empty(self.embedding, b, n, self.k, d)
        alone = self.shard is None and not self.storage.in_blocks  # all sources are here, and in memory
        if encoder is not None and layer < encoder.layers and alone:
            self.x = beginning(self._whole, sources_of_encoder(encoder, self.member, self.embedding, self.config))

    def apply(self, layer: LinearizedLayer) -> None:
        """Move the state through one layer."""
        encoder = self.linearization.encoder
        if encoder is not None and layer.index == encoder.layers:
            self.memory = widen_(self._whole, self.x, collects=self.sharing.collects)
            self.memory_live = self._live(self.memory)
            self._begin(layer.index)
            self._put_embedding()
        self.range.layer(layer)
        if layer.starts:
            self.conditioning.note(layer, self.embedding.unsqueeze(2))
        else:
            self.conditioning.note(layer, self.x, self._largest_vectors)
        last = layer.index == self.linearization.num_layers - 1
        if last:
            self.head = head_for(self.linearization, layer.output, self.terms)
            self.output = layer.output
        by_operator = self.plan.path == "operator" and form_refusal(layer.sublayers) is None
        parts = [] if has_narrow(layer) else segments(layer.sublayers)
        if not parts:
            only = (*self.head.positions, *self.positions) if last and not self.keeps_rows else None
            apply_narrow(self, layer, first=layer.starts, positions=only)
        for number, sublayers in enumerate(parts):
            part = [self._step(sublayer) for sublayer in sublayers]
            first = layer.starts and number == 0
            ride = layer.starts and self.config.variant == "released"
            if last and number == len(parts) - 1 and not self.keeps_rows and self._rows_are_cheaper(part):
                self._segment_at_rows(part, (*self.head.positions, *self.positions), first=first, ride=ride)
            else:
                self._segment(part, first=first, ride=ride, by_operator=by_operator)
        self._check_finite(layer.index)
        if self.sum is not None:
            mean = read_state(self) if last else of_sources(self, lambda x: x.mean(1, True, dtype=wide(self.dtype)))
            self.sum.add(layer.index, mean)
        if last and self.positions:
            rows = slice(len(self.head.positions), None) if self.held is not None else list(self.positions)
            self.stages["rows"] = self.as_stage(self.x[:, rows])
        self._keep("encoder", layer.index, self.x)
        self._keep("aggregated", layer.index, self.x)

    def _largest_vectors(self, x: Tensor) -> Tensor:
        """:func:`..accuracy.largest_vectors` of a state, block by block."""
        flat = x.flatten(0, 1)
        found = flat.new_empty(len(flat), dtype=torch.float32)
        for rows in self.storage.by_rows(self.plan.blocks.direct_rows, x):
            found[rows] = largest_vectors(flat[rows])
        return found.view(len(x), -1).amax(1)

    def _check_finite(self, index: int) -> None:
        """:meth:`..dtype_range.RangeWatch.state` of the state, block by block."""
        if self.dtype is torch.float16:
            flat = self.x.flatten(0, 1)
            for rows in self.storage.by_rows(self.plan.blocks.direct_rows, self.x):
                self.range.state(flat[rows], index)

    def _step(self, sublayer: Sublayer) -> Step:
        """The sublayer as the next one to be gone through."""
        before, live_before = self._sharing_among(self.reach), self._live(self.x)
        self.reach = reach_after(sublayer, self.reach, self.config)
        self.extent = extent_after(sublayer, self.extent, self.config)
        after, live_after = self._sharing_among(self.reach), self._live(self.x)
        step = Step(sublayer, before, after, live_before=live_before, live_after=live_after)
        op = sublayer.ops[0]
        if isinstance(op, Attention) and op.memory is not None and self.config.variant == "paper":
            known = self._sharing_among(None if self.reach is None else self.reach.within(op)).known
            return step if known is None else dataclasses.replace(step, within=known.view(*self.x.shape[:2], -1))
        if not isinstance(op, Convolution):
            return step
        sharing = self._sharing_among(reach_of_convolution(op))
        return dataclasses.replace(step, convolved=Convolved.of(op, self.mixing.member, sharing, self.dtype))

    def _live(self, x: Tensor) -> Live | None:
        """Which sources of a state may have vectors where so much has come to its positions; ``None``: all."""
        if self.seen is None or self.extent is None or self.reach is None:
            return None
        return Live.of(self.extent, self.reach, self.seen, x.shape[2], self.config.bias, self.plan.costs.cut)

    def _sharing_among(self, reach: Reach | None) -> Sharing:
        """How biases reach the sources that have come so far."""
        if self.config.bias != "equal":
            return self.sharing
        shares = equal_shares(reach, self.member, self.total, wide(self.dtype))  # [b, i, k]
        shares = shares if self.shard is None else self.shard.columns(shares)
        return dataclasses.replace(self.sharing, known=shares.flatten(0, 1)[None])

    def _segment(self, part: Sequence[Step], *, first: bool, ride: bool, by_operator: bool) -> None:
        """An attention and everything position-wise after it, for all positions."""
        pending, branch = None, None
        has_attention = part[0].sublayer.has_attention
        at_once = self._shares_at_once(part)
        if has_attention and not first and not by_operator and not at_once and self._joins(part[0]):
            self._attend_and_norm(part[0], ride=ride)
            part = part[1:]
        elif has_attention:
            pending, branch = self._attend(part[0], first=first, ride=ride)
        elif first:
            self._put_embedding()
        if not part:
            return
        most = self.plan.blocks.operator_rows if by_operator else self.plan.blocks.direct_rows
        live, shares = part[-1].live_after, None
        if at_once:
            sublayers, blocks_of_rows = [step.sublayer for step in part], self.storage.by_rows(most, self.x)
            x, sharing = self.x.flatten(0, 1)[None], part[0].after
            whole = None if pending is None else pending.at(slice(None))
            shares = shares_of_layer(x, sublayers, self.config, sharing, whole, blocks_of_rows)
        rest = self._position_wise(part, by_operator=by_operator)
        if live is not None:
            self._finish_live(rest, pending, branch, live, most)
            return
        for rows in self.storage.by_rows(most, *([self.x] if branch is None else [self.x, branch])):
            known = None if shares is None else [share[:, rows] for share in shares]
            x, beside = self.x.flatten(0, 1)[None, rows], None if branch is None else branch.flatten(0, 1)[None, rows]
            own = None if pending is None else pending.at(rows)
            rest.finish_(x, beside, own, rows, self.workspace, shares=known)

    def _position_wise(self, part: Sequence[Step], *, by_operator: bool = False) -> PositionWise:
        options = (self.config, self.mixing.backend, self.mixing.precision, self.plan.blocks.direct_rows)
        return PositionWise(part, *options, by_operator)

    def _finish_live(
        self, rest: PositionWise, pending: PendingBias | None, branch: Tensor | None, live: Live, most: int
    ) -> None:
        """The same of those sources alone that may have vectors, blocks of rows copied and put back."""
        if pending is None and branch is None and all(does_nothing(s.sublayer, self.config) for s in rest.part):
            return
        for block in live.blocks(len(self.x), most):
            shape, constants = (1, *block.shape, self.x.shape[3]), block.constants(self.x.device)
            states, workspace = self.workspace.beside(*([shape] if branch is None else [shape, shape]))
            x, beside = block.take(self.x, states[0]), None if branch is None else block.take(branch, states[1])
            own = None if pending is None else pending.at(constants, block)
            rest.finish_(x, beside, own, constants, workspace, block=block)
            self.leak.watch(x, block)
            block.put(self.x, x)

    def _shares_at_once(self, part: Sequence[Step]) -> bool:
        """Whether all biases of a layer are shared before anything is added: where processes must sum for each."""
        dots = self.shard is not None and self.config.bias in DOT_RULES and self.config.ffn
        return dots and form_refusal([step.sublayer for step in part]) is None

    def _rows_are_cheaper(self, part: Sequence[Step]) -> bool:
        """Whether a last segment costs less row by row, mixed before it is projected, than for all positions."""
        n, d = self.embedding.shape[1:]
        wanted = len(self.head.positions) + len(self.positions)
        if not part[0].sublayer.has_attention:
            return wanted < n or n == 1
        return rows_are_cheaper(wanted, n, d, attention_of(part[0].sublayer).heads)

    def _segment_at_rows(self, part: Sequence[Step], positions: Sequence[int], *, first: bool, ride: bool) -> None:
        """The same for some positions, which are all that remains of the state."""
        if first:
            self._put_embedding()
        sublayer = part[0].sublayer
        pre_norm = self._attended(sublayer)[1] if sublayer.has_attention else None
        shares = self._norm_shares(pre_norm, part[0])
        rows = [self._row_after(part, position, pre_norm, shares, ride=ride) for position in positions]
        self.x = rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
        self.held = tuple(positions)

    def _row_after(
        self, part: Sequence[Step], position: int, pre_norm: Norm | None, shares: Tensor | None, *, ride: bool
    ) -> Tensor:
        """One position after a segment, ``[b, 1, k, d]``; the state stays as it is."""
        b, n = self.x.shape[:2]
        pending, branch = None, None
        if part[0].sublayer.has_attention:
            op = attention_of(part[0].sublayer)
            read, _ = self._attended(part[0].sublayer)
            branch, pending = attend_row(
                read, position, op, self.mixing, pre_norm=pre_norm, pre_shares=shares, ride=ride
            )
            within = part[0].within
            pending = _shared_by(None if within is None else within[:, position : position + 1], pending)
        x, rest = self.x[:, position : position + 1].clone(), self._position_wise(part)
        for items in blocks(b, self.plan.blocks.direct_rows):
            constants = slice(items.start * n + position, (items.stop - 1) * n + position + 1, n)
            beside = None if branch is None else branch.flatten(0, 1)[None, items]
            own = None if pending is None else pending.at(items)
            rest.finish_(x.flatten(0, 1)[None, items], beside, own, constants, self.workspace)
        return x

    def _attend(self, step: Step, *, first: bool, ride: bool) -> tuple[PendingBias | None, Tensor | None]:
        """Add what the attention gives to the state, or return it apart where that is normed or joined by others."""
        sublayer = step.sublayer
        op, (read, pre_norm) = attention_of(sublayer), self._attended(sublayer)
        apart = keeps_branch(sublayer, self.config)
        start = None
        if first and not apart:
            exact = self.linearization.embedding[:, self.own]
            start = first_input(self.embedding, exact, pre_norm, op, self.config, self.mixing.doubts)
        if start is not None:
            u, common = start
            pending = attend_first(self.x, u, op, self.mixing, common=common, ride=ride)
            self._add_embedding()
            return self._watched(pending, step), None
        if first:
            self._put_embedding()
        shares = self._norm_shares(pre_norm, step)
        branch = self.storage.zeros(self.x, *self.x.shape) if apart else None
        out = self.x if branch is None else branch
        pending = attend_(
            *(read, op, self.mixing),
            pre_norm=pre_norm,
            pre_shares=shares,
            ride=ride,
            out=out,
            live=self._live_through(step),
        )
        return self._watched(_shared_by(step.within, pending), step), branch

    def _live_through(self, step: Step) -> tuple[Live, Live] | None:
        """Which sources may have vectors in what an attention reads, and in what it gives."""
        cross = attention_of(step.sublayer).memory is not None
        before = self.memory_live if cross else step.live_before
        return None if before is None or step.live_after is None else (before, step.live_after)

    def _watched(self, pending: PendingBias | None, step: Step) -> PendingBias | None:
        """A bias whose shares were looked at."""
        if step.live_after is not None and pending is not None and pending.shares is not None:
            self.leak.watch_shares(pending.shares, step.live_after, pending.vector)
        return pending

    def _attended(self, sublayer: Sublayer) -> tuple[Tensor, Norm | None]:
        """What the attention of a sublayer reads, ``[b, j, k, d]``, and the norm before it: the state, or the memory as
        it is, of whose norm nothing but queries is made then."""
        if attention_of(sublayer).memory is None:
            return self.x, sublayer.pre_norm if self.config.ln1 else None
        assert self.memory is not None
        return self.memory, None

    def _joins(self, step: Step) -> bool:
        """Whether what the attention gives can be added to the state, its bias shared and the norm taken in one go: all
        of it is there at once, and nothing else stands beside it or comes between."""
        sublayer = step.sublayer
        op, whole = attention_of(sublayer), self.plan.blocks.sources >= self.x.shape[2]
        alone = len(sublayer.ops) == 1 and op.hubs is None and op.pattern.sink is None and step.live_after is None
        return whole and alone and step.within is None and not keeps_branch(sublayer, self.config)

    def _attend_and_norm(self, step: Step, *, ride: bool) -> None:
        """All of a sublayer that is an attention and perhaps norms before it and after the residual."""
        sublayer = step.sublayer
        after_residual = self.config.variant == "released"

        def join(z: Tensor, bias: Tensor | None) -> None:
            x, z = self.x.flatten(0, 1)[None], z.flatten(0, 1)[None]  # [1, p, k, d]
            for rows in self.storage.by_rows(self.plan.blocks.direct_rows, self.x):
                norm = at_rows(sublayer, rows).post_norm if self.config.ln1 else None
                step.after.at(rows).add_norm_(x[:, rows], z[:, rows], bias, norm, after_residual=after_residual)

        read, pre_norm = self._attended(sublayer)
        shares = self._norm_shares(pre_norm, step)
        op = attention_of(sublayer)
        attend_(read, op, self.mixing, pre_norm=pre_norm, pre_shares=shares, ride=ride, out=self.x, join=join)

    def _put_embedding(self) -> None:
        """``X[i,k] = x[i]`` where token ``i`` belongs to source ``k``, else 0."""
        flat = self.x.flatten(0, 1)
        for rows in self.storage.by_rows(self.plan.blocks.direct_rows if self.storage.in_blocks else len(flat), self.x):
            flat[rows] = 0
        self._add_embedding()

    def _add_embedding(self) -> None:
        items, tokens, sources = self.mixing.tokens_here(self.mixing.member, self.k)
        self.x[items, tokens, sources] += self.embedding[items, tokens]

    def _start_sum(self, weights: Tensor) -> LayerSum:
        """The sum over layers of what the head reads, with the embedding in it."""
        here = self.mixing.tokens_here(self.member, self.k)
        return LayerSum.at_start(weights, self.embedding, here, self.k, wide(self.dtype))

    def _norm_shares(self, norm: Norm | None, step: Step) -> Tensor | None:
        """How the bias of a norm before an attention is shared, ``[b, i, k]``; the state stays as it is."""
        if norm is None or norm.bias is None or self.config.bias == "none":
            return None
        b, n, k, d = self.x.shape
        sharing, live, most, bias = step.before, step.live_before, self.plan.blocks.direct_rows, norm.bias
        if sharing.known is not None:
            return sharing.known.view(b, n, k)

        def shares_at(rows: slice | Tensor, u: Tensor) -> Tensor:
            std = norm.std.reshape(1, -1)[:, rows]
            sharing.norm_(u, dataclasses.replace(norm, std=std, bias=None))
            return sharing.shares(u.to(wide(u.dtype)), bias)

        shares = self.x.new_zeros(b, n, k, dtype=wide(self.dtype))
        there = (bias != 0).any()
        for block in () if live is None else live.blocks(b, most):
            (u,) = self.workspace.take((1, *block.shape, d))
            some = shares_at(block.constants(u.device), block.take(self.x, u))
            self.leak.watch(some * there, block)
            block.put(shares, some)
        for rows in self.storage.by_rows(most, self.x) if live is None else ():
            (u,) = self.workspace.take((1, rows.stop - rows.start, k, d))
            shares.flatten(0, 1)[None, rows] = shares_at(rows, u.copy_(self.x.flatten(0, 1)[None, rows]))
        return shares

    def _keep(self, stage: str, layer: int, x: Tensor) -> None:
        if stage in self.config.stages:
            self.stages[f"{stage}.{layer}"] = self.as_stage(x)

    def as_stage(self, x: Tensor) -> Tensor:
        """What is kept of ``x`` ``[b, i, k, d]``, over all sources."""
        stage = safe_norm(x) if self.config.stage_output == "norm" else x.clone()
        return stage if self.shard is None else self.shard.gather(stage, 2)


def _shared_by(shares: Tensor | None, pending: PendingBias | None) -> PendingBias | None:
    """A bias that is still to be added, by shares ``[b, i, k]`` of its own if there are some."""
    return pending if shares is None or pending is None else dataclasses.replace(pending, shares=shares)
