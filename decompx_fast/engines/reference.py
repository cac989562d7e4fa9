"""The reference engine: the method equation by equation, in plain PyTorch. Slow and obvious; all else is tested on it.

Every function takes the decomposed state ``X`` ``[b, i, k, d]``, where ``sum_k X[i,k]`` is the hidden state of position
``i``, and returns the decomposed state after one component. Names follow DecompX (ACL 2023), equations 4 to 11.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..activations import get_activation, linear_piece
from ..config import DecompXConfig
from ..errors import OptionError
from ..linearize.layer import (
    Attention,
    Convolution,
    FeedForward,
    Head,
    Linearization,
    LinearizedLayer,
    Norm,
    Routed,
    StateMap,
    Sublayer,
)
from .accuracy import Conditioning, model_dtype_of
from .attribution import Attribution
from .bias import Rule, safe_norm
from .dtype_range import RangeWatch, check_embedding, finite
from .head import through_head
from .reach import active_ops
from .terms import Terms, close, head_for, layer_weights_of
from .walk import Walk

#: The stages of each kind of sublayer: what it adds, after the residual, after the norm.
STAGES_OF: dict[str, tuple[str | None, str | None, str | None]] = {
    "attention": ("attention", "res1", "ln1"),
    "cross_attention": (None, None, None),
    "ffn": ("ffn", "res2", None),
    "convolution": (None, None, None),
    "narrow": (None, None, None),
    "widen": (None, None, None),
}

#: Numbers of the FFN hidden that may exist at once; positions are taken in blocks, since they do not mix there.
FFN_BLOCK = 2**27


def attribute(
    linearization: Linearization,
    config: DecompXConfig,
    *,
    dtype: torch.dtype | None = None,
    sources: Tensor | None = None,
    terms: Terms | None = None,
) -> Attribution:
    """Decompose what a model gives for a batch, component by component.

    Args:
        linearization: a model on one batch of equally long inputs.
        config: every option is supported.
        dtype: of the decomposed state; ``None`` for that of the linearisation. The constants (attention weights, norm
            statistics, activation slopes) stay in the dtype of the linearisation.
        sources: ``[b, i]`` int64, the source that each token belongs to, numbered from 0; ``None``: each is its own.
        terms: what is asked for; ``None``: all outputs of the head's own reading.

    Returns:
        Scores of every column (without a head, norms of the row of each term), and the stages that were asked for.

    Raises:
        NumericalError: if the numbers leave the range of the dtype; names a wider one.
        OptionError: for an encoder-decoder with another aggregation than ``vector``.

    Source: DecompX (ACL 2023), section 3; the authors' code for ``variant="released"``.
    """
    trace = _Trace(config)
    dtype = dtype or linearization.embedding.dtype
    watch = RangeWatch(dtype)
    check_embedding(linearization.embedding, dtype)
    conditioning = Conditioning(dtype, config.bias, model_dtype_of(linearization))
    vectors = config.aggregation == "vector"
    start, walk = _start(linearization, config, dtype, sources)
    encoder = linearization.encoder
    x = start if encoder is None else start[:, encoder.part(0)]
    weights = _layer_weights(linearization, config)
    mixed = None if weights is None else weights[0].to(dtype) * x
    rollout: Tensor | None = None
    gap = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    for layer in linearization.layers():
        if encoder is not None and layer.index == encoder.layers:
            walk.start_decoder(x)
            x = start[:, encoder.part(layer.index)]
        watch.layer(layer)
        conditioning.note(layer, x)
        first = layer.starts or not vectors
        if not vectors:
            x = _one_vector_per_source(layer.input.to(dtype), sources)
            walk.start()
        x = _layer(x, layer, config, trace, walk, first=first)
        watch.state(x, layer.index)
        if mixed is not None and weights is not None:
            mixed = mixed + weights[layer.index + 1].to(dtype) * x
        trace.keep("encoder", layer.index, x)
        if config.aggregation == "rollout":
            norms = safe_norm(x)
            norms = norms / norms.sum(-1, keepdim=True) if config.normalizes_rows else norms
            rollout = norms if rollout is None else norms @ rollout
            trace.keep("aggregated", layer.index, rollout, is_norm=True)
        elif vectors:
            trace.keep("aggregated", layer.index, x)
        if not vectors or layer.index == linearization.num_layers - 1:
            gap = torch.maximum(gap, (x.sum(2) - layer.output).abs().amax((1, 2)).double())
        last = layer
    watch.settle()
    head = head_for(linearization, last.output, terms)
    if config.head:
        result = _attribute_head(x if mixed is None else mixed, head, linearization, config, terms, trace, walk)
    else:
        result = Attribution(_norms_at_head(x, rollout, head), None, gap, trace.stages)
    return finite(replace(result, expected_error=conditioning.estimate), dtype)


def _layer_weights(linearization: Linearization, config: DecompXConfig) -> Tensor | None:
    """By which a head that reads a sum over the layers weighs them."""
    weights = layer_weights_of(linearization)
    if weights is not None and config.aggregation != "vector":
        raise OptionError(
            f"aggregation={config.aggregation!r} tells of the last layer, and the head of this model reads a sum over "
            "all layers: use aggregation='vector'"
        )
    return weights


def _norms_at_head(x: Tensor, rollout: Tensor | None, head: Head) -> Tensor:
    """The norms of what each term's row is made of, ``[b, k, t]``."""
    if rollout is not None and head.reading.rows is None and len(head.reading.ranges) > 1:
        raise OptionError(
            "aggregation='rollout' tells of one row of norms, and the head of this model reads "
            f"{len(head.reading.ranges)} together: use aggregation='vector'"
        )
    read = head.reading.together(head.read(x if rollout is None else rollout))
    norms = safe_norm(read) if rollout is None else read  # [b, r, k]
    return head.reading.pick_rows(norms.transpose(1, 2))


def _start(
    linearization: Linearization, config: DecompXConfig, dtype: torch.dtype, sources: Tensor | None
) -> tuple[Tensor, Walk]:
    """The decomposed embedding ``[b, i, k, d]``, of an encoder-decoder that of both, and the way through the model."""
    if linearization.encoder is not None and config.aggregation != "vector":
        raise OptionError(
            f"aggregation={config.aggregation!r} takes each layer by itself, and a decoder's layers read two states: "
            "use aggregation='vector'"
        )
    start = _one_vector_per_source(linearization.embedding.to(dtype), sources)
    walk = Walk(config, linearization, _own(start) if sources is None else sources, start.shape[2])
    if config.bias == "bias_token":
        start = torch.cat([start, torch.zeros_like(start[:, :, :1])], dim=2)
    return start, walk


class _Trace:
    """Keeps the stages that were asked for, in the form that was asked for."""

    def __init__(self, config: DecompXConfig) -> None:
        self.config = config
        self.stages: dict[str, Tensor] = {}

    def keep(self, stage: str | None, layer: int, x: Tensor, *, is_norm: bool = False) -> None:
        if stage is None or stage not in self.config.stages:
            return
        if is_norm or self.config.stage_output == "vector":
            value = x.clone()
        elif self.config.stage_output == "norm":
            value = safe_norm(x)
        else:
            value = _proximity(x, over="target" if self.config.variant == "released" and x.ndim == 4 else "source")
        self.stages[f"{stage}.{layer}"] = value


def _proximity(x: Tensor, over: str) -> Tensor:
    """``max(0, |y|_1 - |y - x[k]|_1)`` with ``y = sum_k x[k]``, normalised over the sources.

    The released code normalises over the target positions instead. Source: ALTI (EMNLP 2022), equations 7 and 8.
    """
    y = x.sum(-2, keepdim=True)
    near = (y.norm(p=1, dim=-1) - (y - x).norm(p=1, dim=-1)).clamp_min(0)  # [b, i, k]
    total = near.sum(-2 if over == "target" else -1, keepdim=True)
    return near / torch.where(total == 0, torch.ones_like(total), total)


def _own(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)


def _membership(sources: Tensor, n_sources: int, dtype: torch.dtype) -> Tensor:
    """``[b, j, k]``, 1 where token ``j`` belongs to source ``k``."""
    return torch.nn.functional.one_hot(sources, n_sources).to(dtype)


def _one_vector_per_source(x: Tensor, sources: Tensor | None) -> Tensor:
    """``X[i,k] = x[i]`` where token ``i`` belongs to source ``k``, else 0; ``[b, i, d]`` to ``[b, i, k, d]``."""
    n_sources = x.shape[1] if sources is None else int(sources.max()) + 1
    member = _membership(_own(x) if sources is None else sources, n_sources, x.dtype)
    return member.unsqueeze(-1) * x.unsqueeze(2)


def _layer(
    x: Tensor, layer: LinearizedLayer, config: DecompXConfig, trace: _Trace, walk: Walk, *, first: bool
) -> Tensor:
    wide = x
    for sublayer in layer.sublayers:
        op = sublayer.ops[0]
        if isinstance(op, StateMap):
            rule = walk.rule()
            mapped = rule.add(x @ op.weight.to(x.dtype), op.bias)
            wide, x = (x, mapped) if op.kind == "narrow" else (wide, wide + mapped)
            x = _norm(x, sublayer.post_norm, rule) if config.ln2 else x
        else:
            stages = STAGES_OF[sublayer.kind]
            x = _sublayer(x, sublayer, config, trace, walk, layer.index, stages, first=first, wide=wide)
    return x


def _sublayer(
    x: Tensor,
    sublayer: Sublayer,
    config: DecompXConfig,
    trace: _Trace,
    walk: Walk,
    index: int,
    stages: tuple[str | None, str | None, str | None],
    *,
    first: bool,
    wide: Tensor,
) -> Tensor:
    """``X <- post_norm(X + out_norm(op(pre_norm(X))))``, equations 5 to 11; ``wide`` is the residual stream."""
    with_norm = config.ln1 if sublayer.has_attention else config.ln2
    ops = active_ops(sublayer, config)
    before, after = walk.step(sublayer)
    u = wide if sublayer.reads_wide else x
    u = _norm(u, sublayer.pre_norm, before) if with_norm else u
    branch, late_bias = torch.zeros_like(x), None
    for op in ops:
        if isinstance(op, FeedForward):
            branch = branch + _feed_forward(_network_input(x, u, op, config, before), op, config, before)
            continue
        if isinstance(op, Routed):
            branch = branch + _routed(u, op, config, before)
            continue
        if isinstance(op, Convolution):
            branch = branch + _convolution(u, op, config, walk)
            continue
        assert isinstance(op, Attention)
        read = u if op.memory is None else walk.memory
        assert read is not None
        z, bias = _attention(read, op, config, walk.sources, first=first)
        if config.variant == "paper":
            z = (after if op.memory is None else walk.rule_within(op)).add(z, bias)
        else:
            late_bias = bias
        branch = branch + z
    if ops:
        trace.keep(stages[0], index, branch)
    if sublayer.out_norm is not None and with_norm:
        branch, late_bias = _norm(after.add(branch, late_bias), sublayer.out_norm, after), None
    r = after.add(x + branch, late_bias)
    trace.keep(stages[1], index, r)
    y = _norm(r, sublayer.post_norm, after) if with_norm else r
    trace.keep(stages[2], index, y)
    return y


def _attention(
    x: Tensor, op: Attention, config: DecompXConfig, sources: Tensor, *, first: bool
) -> tuple[Tensor, Tensor | None]:
    """Equation 4: ``Z[i,k] = sum_h sum_j alpha[h,i,j] X[j,k] W_V^h W_O^h``, and the bias that is still to be shared; of
    a cross attention ``X[j,k]`` is the memory.

    In the first layer of the released code the value bias rides inside the value vectors of its own token.
    """
    rides = config.variant == "released" and first
    mixed = torch.zeros((), dtype=x.dtype, device=x.device)
    for part in op.parts:
        values = x @ part.w_value.to(x.dtype)  # [b, j, k, (g v)]
        if rides and part.b_value is not None:
            member = _membership(sources, x.shape[2], x.dtype)
            values = values + member.unsqueeze(-1) * part.b_value.to(x.dtype)
        values = op.expand_heads(values.unflatten(-1, (op.kv_heads, -1)))  # [b, j, k, h, v]
        alpha = part.pattern.weights().to(x.dtype)
        mixed = mixed + torch.einsum("bhij,bjkhv->bikhv", alpha, values).flatten(-2)
    bias = op.b_out if rides and op.has_value_bias else op.bias()
    return mixed @ op.w_out.to(x.dtype), bias


def _convolution(like: Tensor, op: Convolution, config: DecompXConfig, walk: Walk) -> Tensor:
    """``slope * (sum_t E[i+t-r,k] W_t + share of b)``, where ``E`` is the embedding: each token its own source's."""
    vectors, tokens = op.terms()
    a = torch.zeros_like(like)  # [b, i, k, d]
    items, i = torch.arange(len(a), device=a.device)[:, None], torch.arange(a.shape[1], device=a.device)
    for tap in range(op.taps):
        a[items, i, walk.sources[:, tokens[:, tap]]] += vectors[:, :, tap].to(a.dtype)
    rule = walk.rule_within(op)
    slope, intercept = linear_piece(get_activation(op.activation), op.preactivation, config.activation)
    return _apply_line(rule.add(a, op.bias), slope, intercept, rule)


def _norm(x: Tensor, norm: Norm | None, rule: Rule) -> Tensor:
    """Equation 7: the linear part of a norm, then its bias shared."""
    if norm is None:
        return x
    return rule.add(norm.linear(x).to(x.dtype), norm.bias)


def _network_input(x: Tensor, u: Tensor, op: FeedForward, config: DecompXConfig, rule: Rule) -> Tensor:
    """``u``, what all operations of the sublayer read; or ``x`` by the network's own norm."""
    if op.norm is None:
        return u
    return _norm(x, op.norm, rule) if config.ln2 else x


def _feed_forward(x: Tensor, op: FeedForward, config: DecompXConfig, rule: Rule) -> Tensor:
    """Equations 8 to 10, in blocks of positions."""
    rows = max(1, FFN_BLOCK // (x.shape[0] * x.shape[2] * op.w_in.shape[1]))
    blocks = [slice(start, start + rows) for start in range(0, x.shape[1], rows)]
    return torch.cat([_feed_forward_rows(x[:, at], op, config, rule.at(at), at) for at in blocks], dim=1)


def _routed(x: Tensor, op: Routed, config: DecompXConfig, rule: Rule) -> Tensor:
    """Each network on the positions that are sent to it, times its weight; its biases are shared there."""
    out = torch.zeros_like(x)
    for part in op.parts:
        found = _feed_forward(x.flatten(0, 1)[None, part.at], part.network, config, rule.among(part.at))
        out.flatten(0, 1).index_add_(0, part.at, found[0] * part.weight[:, None, None].to(x.dtype))
    return out


def _feed_forward_rows(x: Tensor, op: FeedForward, config: DecompXConfig, rule: Rule, rows: slice) -> Tensor:
    zeta = op.preactivation[:, rows]
    slope, intercept = linear_piece(get_activation(op.activation), zeta, config.activation)
    a = rule.add(x @ op.w_in.to(x.dtype), op.b_in)  # [b, i, k, f]
    if op.value is None:
        a = _apply_line(a, slope, intercept, rule)
    else:
        a = _gated(x, a, op, config, rule, rows, slope, intercept)
    return rule.add(a @ op.w_out.to(x.dtype), op.b_out)


def _gated(
    x: Tensor,
    value: Tensor,
    op: FeedForward,
    config: DecompXConfig,
    rule: Rule,
    rows: slice,
    slope: Tensor,
    intercept: Tensor | None,
) -> Tensor:
    """``act(g) * u`` with ``act(g)`` frozen (``gate="value"``), or half of the product through each factor.

    Where a number is added to ``u``, that many times ``act(g)`` is a plain activation, under either rule.
    """
    half = config.gate == "half"
    through_value = _apply_line(value, op.frozen_gate(rows), None, rule) * (0.5 if half else 1)
    factor = op.gate_factor(half, rows)
    if factor is None or op.w_gate is None:
        return through_value
    g = rule.add(x @ op.w_gate.to(x.dtype), op.b_gate)
    return through_value + _apply_line(g, slope * factor, None if intercept is None else intercept * factor, rule)


def _apply_line(a: Tensor, slope: Tensor, intercept: Tensor | None, rule: Rule) -> Tensor:
    """``slope * a[k]`` plus the intercept shared like a bias; ``slope`` and ``intercept`` lack the source axis."""
    return rule.add(a * slope.unsqueeze(-2).to(a.dtype), intercept)


def _attribute_head(
    x: Tensor,
    head: Head,
    linearization: Linearization,
    config: DecompXConfig,
    terms: Terms | None,
    trace: _Trace,
    walk: Walk,
) -> Attribution:
    """The vectors that the head reads through its steps, in float32 at least: ``[b, r, k, d]`` to ``[b, k, m]``."""
    rows = head.read(x.to(torch.promote_types(x.dtype, torch.float32)))

    def keep(pooled: Tensor) -> None:
        alone = terms is None or terms.positions is None
        trace.keep("pooler", linearization.num_layers - 1, pooled.squeeze(1) if alone else pooled)

    scores, bias_token = through_head(rows, head, config, partial(walk.rule_at_head, head), keep)
    return close(scores, bias_token, linearization, terms, trace.stages)
