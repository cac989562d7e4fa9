"""From a head as data (:mod:`.spec`) and a state to a linearised head (:mod:`.head`), read where it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..errors import InputError
from .layer import (
    Head,
    HeadStep,
    WholeMap,
)
from .spec import (
    Affine,
    HeadStepSpec,
)
from .steps import COMPUTED
from .terms import MEAN_OUTPUT, Pooled, Reading, Terms, arrange

#: What a head reads by itself: a position (negative ones count from the end), one for each item of the batch ``[b]``,
#: the mean of all or means of some; each of them, of whose outputs the mean is taken; or nothing: then each position by
#: itself, and terms say which.
Read = int | Tensor | Literal["mean", "averaged", "each"] | Pooled


def linearize_head(steps: Sequence[HeadStepSpec], read: Read, x: Tensor, terms: Terms | None = None) -> Head:
    """The head on the last layer's output ``x`` ``[b, i, d]``, where it is read for ``terms``.

    Args:
        steps: of the head.
        read: what it reads where the terms do not say.
        x: the state.
        terms: ``None``: all outputs of the head's own reading.

    Raises:
        InputError: for positions or outputs that do not exist.
    """
    n = x.shape[1]
    reading = read_terms(steps, read, x, terms)
    head = Head(reading, n, ())
    state, done = head.read(x), []
    for step in steps:
        narrow = step is steps[-1] and _is_narrow(step, reading)
        done.append(_linearize_step(step, state, reading.outputs if narrow else None))
        state = done[-1].output
    return replace(head, steps=tuple(done))


def read_terms(steps: Sequence[HeadStepSpec], read: Read, x: Tensor, terms: Terms | None) -> Reading:
    """Where a head is read for terms, of a state ``x`` ``[b, i, d]``."""
    b, n, d = x.shape
    if isinstance(read, str) and read == "each" and (terms is None or terms.positions is None):
        raise InputError(
            "this model has outputs at each position: say which positions are asked for, by terms with positions"
        )
    if terms is not None and terms.positions is not None and not (isinstance(read, str) and read == "each"):
        raise InputError("positions are given, but the head of this model reads by itself: use positions=None")
    own: Tensor | None
    if isinstance(read, Tensor):
        own = read.to(x.device).unsqueeze(1)
    else:
        own = None if isinstance(read, (str, Pooled)) else torch.full((b, 1), read % n, device=x.device)
    maps = [step.map for step in steps if step.map is not None]
    count = maps[-1].weight.shape[1] if maps else d
    if terms is not None:
        terms = terms.to(x.device)
        if bool((terms.outputs == MEAN_OUTPUT).any()) and steps[-1].activation is not None:
            raise InputError(
                f"outputs holds {MEAN_OUTPUT}, the mean over all outputs, but this head ends with an activation: name "
                "outputs themselves"
            )
    reading = arrange(terms, own, n, count)
    if isinstance(read, Pooled):
        return replace(reading, ranges=read.ranges)
    if isinstance(read, str) and read == "averaged":
        return replace(reading, rows=torch.arange(n, device=x.device).expand(b, -1), averaged=True)
    return reading


def _is_narrow(step: HeadStepSpec, reading: Reading) -> bool:
    """Whether only the outputs that are asked for are formed: where they are more than what they are made of."""
    if reading.outputs is None or step.map is None or step.norm is not None:
        return False
    d, count = step.map.weight.shape
    return count > d


def _linearize_step(spec: HeadStepSpec, x: Tensor, outputs: Tensor | None) -> HeadStep:
    """One step of a head on ``x`` ``[b, r, d]``; of the outputs only ``[b, r, q]``, if given."""
    if outputs is not None and spec.map is not None:
        return _narrow_step(spec.map, spec.activation, x, outputs)
    map_ = None if spec.map is None else spec.map.to(x.dtype)
    zeta = x if map_ is None else map_(x)
    weight, bias = (None, None) if map_ is None else (map_.weight, map_.bias)
    step = HeadStep(weight, bias, spec.activation, zeta)
    if spec.norm is None:
        return step
    norm, _ = COMPUTED.normalize(spec.norm, step.output)
    return replace(step, norm=norm)


def _narrow_step(map_: Affine, activation: str | None, x: Tensor, outputs: Tensor) -> HeadStep:
    """The same of some outputs of a map, whose weights are copied for these alone."""
    if bool((outputs == outputs[:1, :1]).all()):
        outputs = outputs[0, 0]  # [q], alike for all rows
    whole = WholeMap(map_)
    rows = map_.rows_of(outputs.clamp_min(0)).to(x.dtype)  # [..., q, d]
    bias = None if map_.bias is None else map_.bias[outputs.clamp_min(0)].to(x.dtype)
    is_mean = outputs == MEAN_OUTPUT
    if bool(is_mean.any()):
        mean, mean_bias = whole.mean(x.dtype)
        rows[is_mean] = mean
        if bias is not None and mean_bias is not None:
            bias[is_mean] = mean_bias
    weight = rows.transpose(-1, -2)
    zeta = x @ weight if weight.ndim == 2 else (x.unsqueeze(-2) @ weight).squeeze(-2)
    zeta = zeta if bias is None else zeta + bias
    return HeadStep(weight, bias, activation, zeta, narrow=True, whole=whole)
