"""The adjoint engine: exact scores without the decomposition, for biases whose shares do not depend on it.

The rules ``none``, ``bias_token``, ``equal`` and ``cls`` share a bias by numbers that are known beforehand. Then every
component is affine in the decomposed vectors, and so is a logit, or any direction over the classes:

    y = sum_k score[k] + sum_(sites, i) g[i] . b,      score[k] = x[k] . dy/dx[k],      g[i] = dy/d(site)[i]

One forward pass gives the constants. One pass back through the transposes (:mod:`.pullback`), all directions together,
gives ``dy/dx``, and ``g`` at every site, that is, wherever a bias ``b`` is added. To rounding that is what carrying the
``X[i,k]`` forward gives, without their ``N x N x d`` numbers. The rules then say whose ``g[i] . b`` is:

    none    nobody's            bias_token    one more source's
    cls     the first token's   equal         the sources' that reach i, in equal parts

Which sources reach a position follows from who attends whom: a range of them (:class:`.reach.Reach`).

Memory: the inputs of the sublayers, one layer's constants, the gradients of as many directions as fit in a bounded
workspace, and that; linear in ``N``.
Time: the forward pass, the queries, keys and pre-activations once more where they were not kept, and the transposes.
With a recorded linearisation (:mod:`...linearize.record`) the forward pass is the user's own; with another one there is
a second, which computes every layer from its weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...config import LINEAR_BIAS_RULES, DecompXConfig
from ...errors import OptionError
from ...linearize.layer import (
    Attention,
    Convolution,
    FeedForward,
    Linearization,
    LinearizedLayer,
    Norm,
    Routed,
    StateMap,
    Sublayer,
)
from ..accuracy import Conditioning, model_dtype_of
from ..attribution import Attribution, SiteShare
from ..blocks import blocks
from ..dtype_range import finite
from ..memory import return_freed
from ..reach import Reach, active_ops, reach_after, reach_of_convolution
from ..terms import Terms, largest_gap
from .ledger import Ledger
from .narrow import Beside, pull_state_map, pull_wide_attention
from .pullback import pull_attention, pull_convolution, pull_feed_forward, pull_head_step, pull_norm, pull_routed
from .tape import Tape
from .wanted import Wanted


@torch.no_grad()
def attribute(
    linearization: Linearization,
    config: DecompXConfig,
    *,
    terms: Terms | None = None,
    sites: bool = True,
) -> Attribution:
    """Scores by one pull-back of each direction: ``score[k] = x[k] . dy/dx[k]``, and shares of ``g . b``.

    Args:
        linearization: a model on one batch of equally long inputs.
        config: a rule of ``none``, ``bias_token`` (perhaps with a split), ``equal``, ``cls``; ``head=True``,
            ``aggregation="vector"`` and no stages. All else is free.
        directions: ``[m, c]``, what to explain: ``y = sum_c direction[c] logit[c]``, such as the difference
            of two classes. ``None``: every class.
        sites: whether to tell what the biases of each place add, and what each component carries. With the rules
            ``none`` and ``bias_token`` the scores and the sites sum to ``y``; with the others the sites are part of
            the scores already.

    Returns:
        ``scores`` ``[b, k, m]``, ``bias_token`` ``[b, m]``, ``gap`` ``[b]``, and ``sites`` in forward order,
        each with its ``value`` ``[b, m]``; in the dtype of the linearisation.

    Raises:
        OptionError: for an option that needs the decomposed vectors; names the engine that has it.
        InputError: for directions of a wrong shape, or not finite.
        NumericalError: if the numbers leave the range of the dtype; names a wider one.

    Source: DecompX (ACL 2023), section 3, where its biases are shared by known numbers.
    """
    _check_options(config)
    x = linearization.embedding
    tape = Tape(linearization, config, terms)
    wanted = Wanted.of(tape.head, terms, config.bias_token_split, x)
    b, n, d = x.shape
    parts = list(blocks(wanted.count, directions_at_once(b, n, d, x.element_size(), linearization.num_layers)))
    conditioning = Conditioning(x.dtype, model_dtype=model_dtype_of(linearization))
    found = (
        _pull(tape, wanted.pulled(part), x, config, conditioning, sites=sites, first=n == 0, last=n == len(parts) - 1)
        for n, part in enumerate(parts)
    )
    scores, bias_token, shares, components = _side_by_side(found, parts)
    if config.bias_token_split is not None:
        shares_at_head = tape.equal_shares_at_head() if config.bias_token_split == "equal" else None
        scores, bias_token = wanted.split(scores, bias_token, config.bias_token_split, shares_at_head), None
    scores, bias_token = wanted.combine(scores), None if bias_token is None else wanted.combine(bias_token)
    components = {name: wanted.combine(value) for name, value in components.items()}
    shares = [SiteShare(share.layer, share.place, wanted.combine(share.value)) for share in shares]
    result = Attribution(
        scores.contiguous(),
        bias_token,
        largest_gap(scores, bias_token, linearization, terms),
        sites=tuple(shares) if sites else None,
        components=components,
        expected_error=conditioning.estimate,
    )
    return finite(result, x.dtype)


#: Gradients of so many bytes are pulled back at once, with what is made of them; further directions wait. What is
#: gained by more of them, attention weights and layers made anew that serve them all, is small by then.
GRADIENT_BYTES = 256 << 20

#: Tensors of the size of the gradient that are held at once: itself, its branch, the steps of an
#: attention, and its product with the state.
GRADIENTS_HELD = 7


def directions_at_once(b: int, n: int, d: int, item: int, layers: int) -> int:
    """How many directions are pulled back together through ``b`` inputs of ``n`` positions: so many that they take
    :data:`GRADIENT_BYTES`, or as much as the states of all sublayers, which are held in any case."""
    return max(GRADIENT_BYTES // (GRADIENTS_HELD * b * n * d * item), 2 * layers // GRADIENTS_HELD, 1)


#: Scores ``[b, k, m]``, the bias token ``[b, m]``, the sites, and the components of some directions.
_Pulled = tuple[Tensor, Tensor | None, list[SiteShare], dict[str, Tensor]]


def _pull(
    tape: Tape,
    directions: Tensor,
    x: Tensor,
    config: DecompXConfig,
    conditioning: Conditioning,
    *,
    sites: bool,
    first: bool,
    last: bool,
) -> _Pulled:
    """Some directions ``[b, m, r, c]`` back through the whole model; whether that reads the tape first, or last."""
    ledger = Ledger(x.shape[0], directions.shape[1], x.shape[1], config, like=x, keep_sites=sites)
    encoder = tape.encoder
    ledger.first = 0 if encoder is None else encoder.tokens
    g, rows = _pull_head(tape, directions, config, ledger)
    read = g  # of the mean of all positions, where the head reads the sum over layers
    g = g if tape.weights is None else tape.weights[-1] * read
    for layer, reach in tape.backwards(keep=not last):
        if encoder is not None and layer.index == encoder.layers - 1:
            ledger.credit((g * x[:, encoder.tokens :][:, None, rows]).sum(-1), rows)
            ledger.first, (g, rows) = 0, _pulled_to_memory(ledger)
        if first:
            conditioning.note(layer)
        g, rows = _pull_layer(layer, reach, g, rows, config, ledger)
        g = g if tape.weights is None else g + tape.weights[layer.index] * read
        if not (first and last):  # there are more directions than fit, so their gradients are large
            return_freed(x.device)
    ledger.credit((g * x[:, None, rows]).sum(-1), rows)
    return ledger.total_scores().transpose(1, 2), ledger.bias_token, ledger.shares(), ledger.components


def _pulled_to_memory(ledger: Ledger) -> tuple[Tensor, slice]:
    """``dy/d(memory)`` ``[b, m, j, d]``, the sum over the decoder's layers, and its positions."""
    g, ledger.memory = ledger.memory, None
    if g is None:
        raise ValueError("no layer of the decoder attends its encoder")
    return g, slice(0, g.shape[2])


def _side_by_side(found: Iterator[_Pulled], parts: Sequence[slice]) -> _Pulled:
    """What is found for each block of directions, as if they had been one.

    Each is copied to its place and let go before the next is pulled: many small tensors that stay would lie between
    the large ones that come and go, and the allocator could not give a block's memory to the next.
    """
    first = next(found)
    if len(parts) == 1:
        return first
    scores, bias_token, shares, components = first
    m = parts[-1].stop
    whole: _Pulled = (
        scores.new_empty(*scores.shape[:-1], m),
        None if bias_token is None else bias_token.new_empty(*bias_token.shape[:-1], m),
        [replace(share, value=share.value.new_empty(*share.value.shape[:-1], m)) for share in shares],
        {name: value.new_empty(*value.shape[:-1], m) for name, value in components.items()},
    )
    _put(first, whole, parts[0])
    del first, scores, bias_token, shares, components
    for part in parts[1:]:
        _put(next(found), whole, part)
    return whole


def _put(pulled: _Pulled, whole: _Pulled, part: slice) -> None:
    """Copy some directions to their place among all."""
    for value, target in zip(_tensors(pulled), _tensors(whole), strict=True):
        target[..., part] = value


def _tensors(pulled: _Pulled) -> list[Tensor]:
    """All of them, each with directions as its last axis."""
    scores, bias_token, shares, components = pulled
    own = [scores] if bias_token is None else [scores, bias_token]
    return [*own, *(share.value for share in shares), *components.values()]


def _check_options(config: DecompXConfig) -> None:
    if config.bias not in LINEAR_BIAS_RULES:
        rules = ", ".join(repr(rule) for rule in LINEAR_BIAS_RULES)
        raise OptionError(
            f"bias={config.bias!r} weighs a bias by the decomposed vectors, which the adjoint engine does "
            f"not form: use the forward engine, or one of the rules {rules}"
        )
    for name, value, needed in (
        ("head", config.head, True),
        ("aggregation", config.aggregation, "vector"),
        ("stages", config.stages, ()),
    ):
        if value != needed:
            raise OptionError(
                f"{name}={value!r} needs the decomposed vectors, which the adjoint engine does not form: use "
                f"the reference engine, or {name}={needed!r}"
            )


def _pull_head(tape: Tape, g: Tensor, config: DecompXConfig, ledger: Ledger) -> tuple[Tensor, slice]:
    """From directions over the head's outputs ``[b, m, r, c]`` to ``dy/d(last state)`` ``[b, m, i, d]``, and the
    positions ``i`` of it."""
    head, n = tape.head, ledger.scores.shape[-1]
    rows = head.reading.rows
    ledger.layer, ledger.reach = -1, None
    if tape.reach_of_head is not None:
        # The mean of all is one row, which any of these positions reaches.
        at = tape.reach_of_head.read(head.positions) if rows is None else tape.reach_of_head.at(rows)
        last = at.last.expand(len(g), -1).unsqueeze(1)  # [b, 1, r]
        read = (g != 0).any(-1)  # [b, m, r]
        ledger.reach = at
        if at.hubs is None:
            ledger.beyond = torch.arange(n, device=g.device) > last.where(read, 0).amax(-1, keepdim=True)
    for number, step in reversed(list(enumerate(head.steps))):
        g = pull_head_step(step, f"head.{number}", g, config, ledger)
    if rows is None:
        first, end = head.positions[0], head.positions[-1] + 1
        return _spread_means(g, head.reading.spans(head.n), first, end), slice(first, end)
    if rows.shape[1] > 1:  # of the rows of all directions, those of these
        asked = (g != 0).any(-1).flatten(0, 1).any(0)  # [r]
        kept = [row for row, is_asked in enumerate(asked.tolist()) if is_asked]
        if 0 < len(kept) < len(asked):
            g, rows = g[:, :, kept], rows[:, kept]
    first, last = torch.stack(rows.aminmax()).tolist()
    end = last + 1
    if end - first == g.shape[2] == 1:
        return g, slice(first, end)
    spread = g.new_zeros(*g.shape[:2], end - first, g.shape[3])
    spread.scatter_add_(2, (rows.to(g.device) - first)[:, None, :, None].expand_as(g), g)
    return spread, slice(first, end)


def _spread_means(g: Tensor, ranges: Sequence[tuple[int, int]], first: int, end: int) -> Tensor:
    """From gradients ``[b, m, 1, (r d)]`` of means of ranges to those of the positions from ``first`` to ``end``."""
    if len(ranges) == 1:
        return g.expand(-1, -1, end - first, -1) / (end - first)
    found = g.new_zeros(*g.shape[:2], end - first, g.shape[3] // len(ranges))
    for (start, stop), part in zip(ranges, g.chunk(len(ranges), dim=-1), strict=True):
        found[:, :, start - first : stop - first] += part / (stop - start)
    return found


def _pull_layer(
    layer: LinearizedLayer,
    reach: Reach | None,
    g: Tensor,
    rows: slice,
    config: DecompXConfig,
    ledger: Ledger,
) -> tuple[Tensor, slice]:
    ledger.layer = layer.index
    before = []
    for sublayer in layer.sublayers:
        before.append(reach)
        reach = reach_after(sublayer, reach, config)
    rides = config.variant == "released" and layer.starts
    beside: Beside | None = None  # what goes back by the residual stream, beside a narrower state
    for sublayer, reach in zip(reversed(layer.sublayers), reversed(before), strict=True):
        op = sublayer.ops[0]
        if isinstance(op, StateMap):
            ledger.reach = reach
            g, rows, beside = pull_state_map(op, sublayer, g, rows, beside, config, ledger)
        elif sublayer.reads_wide:
            ledger.reach = reach_after(sublayer, reach, config)
            g, beside = pull_wide_attention(sublayer, g, rows, beside, layer.input, config, ledger, rides=rides)
        else:
            g, rows = _pull_sublayer(sublayer, reach, g, rows, config, ledger, value_bias_rides=rides)
    return g, rows


#: What the norms of each kind of sublayer are called as places of biases.
NORMS_OF = {"attention": "ln1", "cross_attention": "cross_ln", "ffn": "ln2", "convolution": "convolution.norm"}


def _pull_sublayer(
    sublayer: Sublayer,
    reach: Reach | None,
    g: Tensor,
    rows: slice,
    config: DecompXConfig,
    ledger: Ledger,
    *,
    value_bias_rides: bool,
) -> tuple[Tensor, slice]:
    """Back through ``x <- post_norm(x + out_norm(sum_op op(pre_norm(x))))``; ``reach`` is that of ``x``."""
    kind = sublayer.kind
    name, with_norms = NORMS_OF[kind], config.ln1 if sublayer.has_attention else config.ln2

    def pull(norm: Norm | None, place: str, g: Tensor, rows: slice) -> Tensor:
        if norm is None or not with_norms:
            return g
        ledger.add(place, g, norm.bias, rows)
        return pull_norm(norm, g, rows)

    x = sublayer.input
    ledger.reach = reach_after(sublayer, reach, config)
    g = pull(sublayer.post_norm, name, g, rows)
    branch = pull(sublayer.out_norm, f"out_{name}", g, rows)
    u, u_rows = None, rows
    if x is not None:
        ledger.carry(f"{kind}_residual", g, x[:, rows], rows)
        normed = sublayer.pre_norm.linear(x) if sublayer.pre_norm is not None and with_norms else x
    # Attention first: it reads all positions that the others add to, and more.
    for op in sorted(active_ops(sublayer, config), key=lambda op: op.kind == FeedForward.kind):
        if isinstance(op, Attention):
            within = config.variant == "paper"  # where the bias is shared before the residual
            ledger.reach = None if reach is None else reach.within(op) if within else reach.after(op)
            part, columns = pull_attention(op, branch, rows, ledger, value_bias_rides=value_bias_rides)
            if op.memory is not None:
                ledger.add_memory(part, op.memory)
                continue
            if x is not None:
                ledger.carry("attention", part, normed[:, columns], columns)
            u, u_rows = (part, columns) if u is None else _both(u, u_rows, part, columns)
        elif isinstance(op, Convolution):  # back to the embedding at once, whose vectors are the tokens' own
            ledger.reach = reach_of_convolution(op)
            part, tokens = pull_convolution(op, branch, rows, config, ledger)
            ledger.credit((part * op.embedding[:, None, tokens]).sum(-1), tokens)
            ledger.carry("convolution", part, op.embedding[:, tokens], tokens)
        else:
            assert isinstance(op, (FeedForward, Routed))
            ledger.reach = reach
            if isinstance(op, Routed):
                part = pull_routed(op, branch, rows, config, ledger)
            else:
                part = pull_feed_forward(op, branch, rows, config, ledger)
            own = op.norm if config.ln2 else None
            if x is not None:
                read = normed if op.norm is None else x if own is None else own.linear(x)
                ledger.carry("ffn", part, read[:, rows], rows)
            if op.norm is not None:  # back to the state at once, past the norm of the others
                if own is not None:
                    ledger.add("pre_ln2", part, own.bias, rows)
                    part = pull_norm(own, part, rows)
                g = g + part
                continue
            u = part if u is None else _add_rows(u, part, rows, u_rows)
    if u is None:
        return g, rows
    ledger.reach = reach
    u = pull(sublayer.pre_norm, f"pre_{name}", u, u_rows)
    return _add_rows(u, g, rows, u_rows), u_rows


def _both(u: Tensor, u_rows: slice, part: Tensor, rows: slice) -> tuple[Tensor, slice]:
    """The sum of what is there for two ranges of positions, and the range that holds both."""
    union = slice(min(u_rows.start, rows.start), max(u_rows.stop, rows.stop))
    if union != u_rows:
        wider = u.new_zeros(*u.shape[:2], union.stop - union.start, u.shape[3])
        u = _add_rows(wider, u, u_rows, union)
    return _add_rows(u, part, rows, union), union


def _add_rows(u: Tensor, part: Tensor, rows: slice, u_rows: slice) -> Tensor:
    """Add the positions ``rows`` to the positions ``u_rows`` that hold them, in place."""
    u[:, :, rows.start - u_rows.start : rows.stop - u_rows.start] += part
    return u
