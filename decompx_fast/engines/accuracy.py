"""How wrong scores may be: what completeness does not say.

That the scores add up to the logit says little of each of them: errors that move a score from one token to another, or
that the model's own forward pass made as well, cancel in the sum. Two things magnify rounding. A norm whose standard
deviation is small beside what enters it divides by that. And an error ``e`` of an attention logit is a relative error
``e`` of the weight, where logits of a thousand have an error of a thousand roundings.

:class:`Conditioning` foretells the error from such numbers, for next to nothing. :func:`score_error` measures it, by
computing a second and a third time in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..linearize.layer import (
    Attention,
    AttentionPattern,
    FeedForward,
    Linearization,
    LinearizedLayer,
    Norm,
    Op,
    Routed,
    StateMap,
    Sublayer,
)
from .attribution import Attribution

#: An estimate of this share of the largest score is worth a warning. Half precisions are chosen by who can do with an
#: error of some percent; elsewhere the bound leaves room for models that magnify ten times as much as is estimated.
NOTEWORTHY, NOTEWORTHY_OF_HALF = 0.005, 0.05

#: At so many target positions, at the most, attention weights are looked at.
SAMPLED_ROWS = 16

#: Attentions of several layers whose queries and keys have no more bytes than this together are looked at as one.
TOGETHER_BYTES = 2 << 20

#: And that have no more positions than this: it is short texts whose operations take longer than their numbers.
TOGETHER_POSITIONS = 64

#: What an estimate is multiplied by. Of random models with saturated attention and norms of tiny variance, most then
#: have a smaller error, and the worst one of ten times the estimate: what a layer magnifies is not carried on.
SAFETY = 2.0

#: Embeddings are perturbed by one unit in the last place of the model's dtype, relative to the size of the vector. A
#: computation that is in float64 already has roundings everywhere, of which this stands for all.
FLOAT64_PERTURBATION = 64.0


class Conditioning:
    """Sums up what magnifies rounding, layer by layer, in any order.

    The estimate is ``2 (sum over norms of (u k)^2 + sum over attentions of (w a)^2)^(1/2)``, with ``u`` the rounding of
    the state or of the model, whichever is coarser, ``w`` that of the constants or of the model, ``k`` the size of what
    enters a norm over its standard deviation, and ``a`` the mean over some rows of
    ``sum_j alpha[j] (1 - alpha[j]) |q| |k[j]| scale / sqrt(v)``: a weight that is nearly 1 or 0 does not move.

    Where biases are shared by the cosine, which does not fall with the size of a vector, the share of weights that
    are rounded to zero is added as it is: such a source loses a whole share. And in float16, whose smallest numbers are
    not that small, half of the smallest over the size of the largest vectors, and of what is made of them, is too.

    Args:
        dtype: of the decomposed state.
        rule: by which biases are shared.
        model_dtype: in which the model computed the states that the constants are read from; ``None``: like those.
    """

    def __init__(self, dtype: torch.dtype, rule: str | None = None, model_dtype: torch.dtype | None = None) -> None:
        self._model = 0.0 if model_dtype is None else _rounding(model_dtype)
        self._state = max(_rounding(dtype), self._model)
        numbers = torch.finfo(dtype)  # the smallest are subnormal: multiples of tiny * eps
        self._lost_below = 8 * numbers.tiny * numbers.eps if rule == "abssim" else None
        self._half_smallest = numbers.tiny * numbers.eps / 2 if dtype is torch.float16 else None
        self._terms: list[Tensor] = []
        self._factors: list[float] = []
        self._quotients: dict[tuple[int, int], list[Tensor]] = {}  # of norms, [b, i] each, by i and d
        self._constants = 0.0
        self._waiting: dict[
            tuple[object, ...], list[AttentionPattern]
        ] = {}  # of short texts: alike, and looked at together

    def note(
        self,
        layer: LinearizedLayer,
        state: Tensor | None = None,
        largest: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """A layer, complete, and the decomposed state ``[b, i, k, d]`` before it, if there is one; ``largest`` gives
        :func:`largest_vectors` of it."""
        self._constants = max(_rounding(layer.input.dtype), self._model)
        quotients = self._quotients.setdefault((layer.input.shape[1], layer.input.shape[2]), [])
        for sublayer in layer.sublayers:
            quotients += (size / norm.std for norm, size in _norms(sublayer))
            for op in sublayer.ops:
                for part in op.parts if isinstance(op, Attention) else ():
                    self._wait(part.pattern)
        if self._half_smallest is not None and state is not None:
            for size in _sizes(layer, (largest or largest_vectors)(state), state.shape[-1]):
                self._add(1 / size, self._half_smallest)

    # Numbers are few here, so it is operations that take time: all that can wait is done at once in the end.

    def _add(self, term: Tensor, factor: float) -> None:
        self._terms.append(term)
        self._factors.append(factor)

    def _wait(self, pattern: AttentionPattern) -> None:
        """Look at an attention, or keep it for a look at several layers' at once."""
        own = (pattern.scale, pattern.causal, pattern.window, pattern.softcap)
        of_items = (pattern.bias, pattern.sink, pattern.hubs)
        nbytes = pattern.query.nbytes + pattern.key.nbytes
        is_long = pattern.query.shape[2] > TOGETHER_POSITIONS or 2 * nbytes > TOGETHER_BYTES
        if is_long or any(value is not None for value in of_items):
            self._look([pattern])
            return
        key = (pattern.query.shape, pattern.key.shape, own)
        waiting = self._waiting.setdefault(key, [])
        waiting.append(pattern)
        if (len(waiting) + 1) * nbytes > TOGETHER_BYTES:
            self._look(self._waiting.pop(key))

    def _look(self, patterns: Sequence[AttentionPattern]) -> None:
        """Attentions that differ in nothing but queries and keys."""
        pattern = patterns[0]
        if len(patterns) > 1:
            query, key = (torch.cat(found) for found in zip(*((one.query, one.key) for one in patterns), strict=True))
            pattern = replace(pattern, query=query, key=key)
        rows, alpha = _sampled_weights(pattern)
        gain, factor = _attention_gain(pattern, rows, alpha, self._constants)
        for term in gain.chunk(len(patterns)):
            self._add(term, factor)
        if self._lost_below is not None:
            for term in _share_below(self._lost_below, pattern, rows, alpha).chunk(len(patterns)):
                self._add(term, 1.0)

    @property
    def estimate(self) -> Tensor | None:
        """``[b]``, the estimated error of the scores relative to the largest; ``None`` before the first layer."""
        for patterns in self._waiting.values():
            self._look(patterns)
        self._waiting.clear()
        for (n, d), quotients in self._quotients.items():
            for term in torch.stack(quotients).sum(-1) if quotients else ():
                self._add(term, self._state / (n * math.sqrt(d)))
        self._quotients.clear()
        if not self._terms:
            return None
        terms = torch.stack(self._terms).double()
        factors = torch.tensor(self._factors, dtype=torch.float64, device=terms.device)
        return SAFETY * torch.linalg.vector_norm(terms * factors[:, None], dim=0)


def noteworthy(*dtypes: torch.dtype) -> float:
    """From which estimate on a warning is due, by the dtypes of the decomposed state and of the model."""
    return NOTEWORTHY_OF_HALF if any(dtype.itemsize < 4 for dtype in dtypes) else NOTEWORTHY


def model_dtype_of(linearization: Linearization) -> torch.dtype | None:
    """In which dtype the model computed, where there is a model that did."""
    return getattr(linearization, "model_dtype", None)


def _rounding(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def _norms(sublayer: Sublayer) -> list[tuple[Norm, Tensor]]:
    """Each norm whose input is known, at least in part, and the length of that ``[b, i]``."""
    if sublayer.input is None or isinstance(sublayer.ops[0], StateMap):
        return []
    if sublayer.post_norm is not None and sublayer.post_norm.fixed:  # which divides by nothing
        return []
    size = torch.linalg.vector_norm(sublayer.input, dim=-1)
    before = [sublayer.pre_norm, *(op.norm for op in sublayer.ops if isinstance(op, FeedForward))]
    found = [(norm, size) for norm in before if norm is not None]
    if sublayer.post_norm is not None:
        for op in sublayer.ops:
            if isinstance(op, (Attention, FeedForward)) and op.b_out is not None and sublayer.out_norm is None:
                size = size + torch.linalg.vector_norm(op.b_out)
        found.append((sublayer.post_norm, size))
    return found


def largest_vectors(state: Tensor) -> Tensor:
    """The length of the largest vector of each item of a state ``[b, ..., d]``, ``[b]``, float32."""
    return torch.linalg.vector_norm(state, dim=-1, dtype=torch.float32).flatten(1).amax(1)


def _sizes(layer: LinearizedLayer, norm: Tensor, d: int) -> Iterator[Tensor]:
    """``[b]`` each, float32: the root mean square of the largest vector before a layer, of length ``norm`` ``[b]``, and
    of what each operation makes of it first, roughly: norms divide by the true state's deviation, however small the
    vectors are."""
    root = math.sqrt(d)
    yield norm / root
    for sublayer in layer.sublayers:
        entering = norm if sublayer.pre_norm is None else norm * _gain(sublayer.pre_norm)
        for op in sublayer.ops:
            for weight in _first_maps(op):
                size = weight.float().square().mean().sqrt()
                yield torch.where(size == 0, math.inf, entering * size)  # of which nothing is lost
        if sublayer.post_norm is not None:
            norm = norm * _gain(sublayer.post_norm)
            yield norm / root


def _first_maps(op: Op) -> list[Tensor]:
    """The maps that an operation begins with."""
    if isinstance(op, Attention):
        return [op.w_value]
    if isinstance(op, FeedForward):
        return [op.w_in]
    if isinstance(op, StateMap):
        return [op.weight]
    return [part.network.w_in for part in op.parts] if isinstance(op, Routed) else []


def _gain(norm: Norm) -> Tensor:
    """``[b]``, what a norm multiplies a vector's size by, at the position where that is most."""
    gain = norm.std.float().amin(-1).reciprocal()
    return gain if norm.weight is None else gain * norm.weight.float().square().mean().sqrt()


def _sampled_weights(pattern: AttentionPattern) -> tuple[slice, Tensor]:
    """Some target positions, and their attention weights ``[b, h, i, j]``."""
    n = pattern.query.shape[2]
    rows = slice(0, n, -(-n // SAMPLED_ROWS))
    return rows, pattern.weights(rows)


def _attention_gain(pattern: AttentionPattern, rows: slice, alpha: Tensor, error: float) -> tuple[Tensor, float]:
    """``[b]`` times a factor: the relative error of the mixed values for such an error of queries and keys."""
    size = torch.linalg.vector_norm(pattern.query[:, :, rows], dim=-1)  # [b, h, i]
    keys = torch.linalg.vector_norm(pattern.key, dim=-1)  # [b, g, j]
    group = pattern.query.shape[1] // pattern.key.shape[1]
    keys = keys if group == 1 else keys.repeat_interleave(group, dim=1)
    moved = (torch.addcmul(alpha, alpha, alpha, value=-1) * keys.unsqueeze(2)).sum(-1)  # [b, h, i]
    scale = abs(pattern.scale) / (math.sqrt(pattern.query.shape[-1]) * size[0].numel())
    return (moved * size).sum((1, 2)), error * scale


def _share_below(least: float, pattern: AttentionPattern, rows: slice, alpha: Tensor) -> Tensor:
    """``[b]``, the share of positions that may be attended and whose weights are below ``least`` in all heads."""
    lost = (alpha < least).all(1)  # [b, i, j]
    allowed = pattern.allowed(rows)
    if pattern.hubs is not None:
        live = pattern.hubs.live(rows).unsqueeze(-1).expand_as(lost)
        allowed = live if allowed is None else live & allowed
    if allowed is None:
        return lost.double().mean((1, 2))
    return (lost & allowed).sum((-2, -1)).double() / allowed.sum((-2, -1)).clamp_min(1)


def score_error(
    result: Attribution,
    again: Callable[[Tensor], Linearization],
    attribute: Callable[[Linearization], Attribution],
    embedding: Tensor,
    model_dtype: torch.dtype,
) -> Tensor:
    """What the scores are wrong by, measured: ``|s - s64| + 2 |s64' - s64| + eps |s|``, each the largest of all scores.

    ``s64`` are the scores in float64 from the same embedding, ``s64'`` those from one that is perturbed by rounding:
    the error that the model's own embedding block has made, which nothing computed here can undo.

    Args:
        result: the scores ``s``.
        again: the model on another embedding, in its dtype, unchecked.
        attribute: the same question in float64.
        embedding: ``[b, i, d]``, as the model gave it.
        model_dtype: in which it gave it.

    Returns:
        ``[b]`` float64, in the units of the scores.
    """
    exact = embedding.double()
    generator = torch.Generator("cpu").manual_seed(exact[0].numel())
    noise = torch.randn(exact.shape[1:], generator=generator, dtype=torch.float64).to(exact.device)  # as if alone
    times = FLOAT64_PERTURBATION if model_dtype == torch.float64 else 1.0
    size = exact.square().mean(-1, keepdim=True).sqrt()
    perturbed = exact + times * torch.finfo(model_dtype).eps * size * noise
    first, second = (attribute(again(start)) for start in (exact, perturbed))
    last_place = torch.finfo(result.scores.dtype).eps * largest_share(result)
    return _gap(result, first) + 2 * _gap(second, first) + last_place


def largest_share(result: Attribution) -> Tensor:
    """``[b]``, the size of the largest score, or of the bias token's if that is larger; float64."""
    largest = result.scores.double().abs().amax((1, 2))
    return largest if result.bias_token is None else largest.maximum(result.bias_token.double().abs().amax(-1))


def _gap(one: Attribution, other: Attribution) -> Tensor:
    gap = (one.scores.double() - other.scores.double()).abs().amax((1, 2))
    if one.bias_token is None or other.bias_token is None:
        return gap
    return torch.maximum(gap, (one.bias_token.double() - other.bias_token.double()).abs().amax(-1))
