"""The range of a dtype: numbers that leave it are an error, and those that are about to are told before."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import NumericalError, PrecisionWarning, warn_user
from ..linearize.layer import Attention, Convolution, FeedForward, LinearizedLayer, StateMap, networks_of
from .attribution import Attribution

#: What to compute in where a dtype's range does not suffice. bfloat16 has that of float32, in two bytes.
WIDER = {
    torch.float16: "dtype='bfloat16' (in the same memory) or dtype='float32'",
    torch.bfloat16: "dtype='float32' or dtype='float64'",
    torch.float32: "dtype='float64'",
}


#: So many numbers at the most are copied together to be looked at.
SMALL = 1 << 20


def is_finite(x: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity; in one pass, without a copy."""
    return not x.numel() or all(math.isfinite(end.item()) for end in x.aminmax())


def finite(result: Attribution, dtype: torch.dtype) -> Attribution:
    """The result itself, if all that it holds is finite.

    Args:
        result: of an engine.
        dtype: in which it was computed.

    Raises:
        NumericalError: names what is not finite, and a wider dtype.
    """
    alike: dict[object, list[tuple[str, Tensor]]] = {}
    for name, values in _parts(result):
        alike.setdefault((values.shape[1:], values.dtype, values.device), []).append((name, values))
    for parts in alike.values():
        # Sites and components are many and small: looked at together, and apart only to tell which of them it is.
        many = len(parts) > 1 and sum(values.numel() for _, values in parts) <= SMALL
        if many and is_finite(torch.cat([values for _, values in parts])):
            continue
        for name, values in parts:
            if not is_finite(values):
                raise NumericalError(_beyond(name, dtype))
    return result


def finite_state(x: Tensor, index: int) -> None:
    """Look at the decomposed state after a layer where overflow is likely, so that no time is spent on what is lost.

    Raises:
        NumericalError: names the layer, and a wider dtype.
    """
    if x.dtype == torch.float16 and not is_finite(x):
        raise NumericalError(_beyond(f"the vectors after layer {index}", x.dtype))


def check_embedding(embedding: Tensor, dtype: torch.dtype) -> None:
    """Before anything large is computed in a narrower dtype than that of the linearisation.

    Raises:
        NumericalError: if the embedding is beyond the range of the dtype.
    """
    if _largest(embedding) > torch.finfo(dtype).max:
        raise NumericalError(_beyond("the output of the embedding", dtype))


def check_layer(layer: LinearizedLayer, dtype: torch.dtype) -> None:
    """Whether the decomposition of a layer will leave the range of a dtype, from the true values of the model.

    The vectors of the sources add up to the true value, so where that is beyond the range they probably are, though
    they need not be: a warning. A weight beyond the range is infinite from the start: an error.

    Args:
        layer: in a wider dtype.
        dtype: of the decomposed state.

    Raises:
        NumericalError: for a weight beyond the range.
    """
    limit = torch.finfo(dtype).max
    # bfloat16 ends half a per cent below float32: what lies between shows in the results, and every weight need not be
    # read for it.
    if limit >= 0.99 * torch.finfo(layer.input.dtype).max:
        return
    for name, weight in _weights(layer):
        if _largest(weight) > limit:
            raise NumericalError(_beyond(f"{name} in layer {layer.index}", dtype))
    name, size = max(((name, _largest(value)) for name, value in _true_values(layer)), key=lambda pair: pair[1])
    if size > limit:
        warn_user(
            f"{name} of layer {layer.index} reaches {size:.1e}, and {_name(dtype)} ends at {limit:.1e}: the "
            f"explanation will probably overflow. Use {WIDER[dtype]}",
            PrecisionWarning,
        )


def _parts(result: Attribution) -> Iterator[tuple[str, Tensor]]:
    yield "the scores", result.scores
    yield "the sum of the scores", result.gap
    if result.bias_token is not None:
        yield "the score of the bias token", result.bias_token
    for name, value in result.stages.items():
        yield f"the stage {name!r}", value
    for site in result.sites or ():
        yield f"the bias site {site.place!r} of layer {site.layer}", site.value
    for name, value in result.components.items():
        yield f"the component {name!r}", value


def _beyond(name: str, dtype: torch.dtype) -> str:
    limit = torch.finfo(dtype).max
    way = f"use {WIDER[dtype]}" if dtype in WIDER else "no wider dtype is supported, so this cannot be explained"
    return f"{name} left the range of {_name(dtype)} (NaN, infinity or beyond {limit:.1e}): {way}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _largest(x: Tensor) -> float:
    low, high = x.aminmax()
    return max(-low.item(), high.item())


def _weights(layer: LinearizedLayer) -> Iterator[tuple[str, Tensor]]:
    for op in (op for sublayer in layer.sublayers for op in sublayer.ops):
        if isinstance(op, Attention):
            yield from (("a value weight", part.w_value) for part in op.parts)
            yield "an attention output weight", op.w_out
        elif isinstance(op, Convolution):
            yield "a weight of the convolution", op.weight
        elif isinstance(op, StateMap):
            yield "a weight of a bottleneck", op.weight
        for network in networks_of(op):
            yield from (("a feed-forward weight", network.w_in), ("a feed-forward output weight", network.w_out))
            if network.w_gate is not None:
                yield "a gate weight", network.w_gate


def _true_values(layer: LinearizedLayer) -> Iterator[tuple[str, Tensor]]:
    yield "the output", layer.output
    for sublayer in layer.sublayers:
        if sublayer.input is not None:
            yield "the state", sublayer.input
            if sublayer.pre_norm is not None:
                yield "a norm", sublayer.pre_norm.linear(sublayer.input)
        for op in sublayer.ops:
            if isinstance(op, Convolution):
                yield "the convolution", op.preactivation
            if isinstance(op, FeedForward) and op.norm is not None and sublayer.input is not None:
                yield "a norm", op.norm.linear(sublayer.input)
            for network in networks_of(op):
                yield "the feed-forward network", network.preactivation
                yield "the feed-forward network", network.hidden()
