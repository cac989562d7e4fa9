"""The range of a dtype: numbers that leave it are an error, and those that are about to are told before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

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


def is_finite(*tensors: Tensor) -> bool:
    """Whether tensors on one device hold neither NaN nor infinity; in one pass, without a copy, and in one look."""
    ends = [_ends(x) for x in tensors if x.numel()]
    return not ends or all(map(math.isfinite, torch.cat(ends).tolist()))


def finite(result: Attribution, dtype: torch.dtype) -> Attribution:
    """The result itself, if all that it holds is finite.

    Args:
        result: of an engine.
        dtype: in which it was computed.

    Raises:
        NumericalError: names what is not finite, and a wider dtype.
    """
    alike: dict[object, list[Tensor]] = {}
    for _, values in _parts(result):
        alike.setdefault((values.shape[1:], values.dtype, values.device), []).append(values)
    looked_at: dict[torch.device, list[Tensor]] = {}
    for parts in alike.values():
        # Sites and components are many and small: looked at together, and apart only to tell which of them it is.
        many = len(parts) > 1 and sum(values.numel() for values in parts) <= SMALL
        looked_at.setdefault(parts[0].device, []).extend([torch.cat(parts)] if many else parts)
    if not all(is_finite(*parts) for parts in looked_at.values()):
        for name, values in _parts(result):
            if not is_finite(values):
                raise NumericalError(_beyond(name, dtype))
    return result


def check_embedding(embedding: Tensor, dtype: torch.dtype) -> None:
    """Before anything large is computed in a narrower dtype than that of the linearisation.

    Raises:
        NumericalError: if the embedding is beyond the range of the dtype.
    """
    if _size(_ends(embedding).tolist()) > torch.finfo(dtype).max:
        raise NumericalError(_beyond("the output of the embedding", dtype))


class RangeWatch:
    """Whether the decomposition leaves the range of a dtype, layer by layer.

    On a CPU that is told at once, so that no time is spent on what is lost; elsewhere :meth:`settle` tells it in the
    end, so that no layer waits for the device.

    Args:
        dtype: of the decomposed state.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._limit = torch.finfo(dtype).max
        self._waiting: list[tuple[Tensor, Callable[[list[float]], None]]] = []

    def layer(self, layer: LinearizedLayer) -> None:
        """What the true values of the model say of a layer, which is in a wider dtype.

        The vectors of the sources add up to the true value, so where that is beyond the range they probably are, though
        they need not be: a warning. A weight beyond the range is infinite from the start: an error.

        Raises:
            NumericalError: for a weight beyond the range.
        """
        # bfloat16 ends half a per cent below float32: what lies between shows in the results, and every weight need not
        # be read for it.
        if self._limit >= 0.99 * torch.finfo(layer.input.dtype).max:
            return
        weights, values = list(_weights(layer)), list(_true_values(layer))
        names = [name for name, _ in (*weights, *values)]
        ends = torch.cat([_ends(x) for _, x in (*weights, *values)])
        self._look(ends, partial(self._judge_layer, layer.index, names, len(weights)))

    def state(self, x: Tensor, index: int) -> None:
        """The decomposed state after a layer, where overflow is likely.

        Raises:
            NumericalError: names the layer, and a wider dtype.
        """
        if x.dtype == torch.float16 and x.numel():
            self._look(_ends(x), partial(self._judge_state, index))

    def settle(self) -> None:
        """Tell what has not been told.

        Raises:
            NumericalError: as above.
        """
        waiting, self._waiting = self._waiting, []
        if waiting:
            found = iter(torch.cat([ends for ends, _ in waiting]).tolist())
            for ends, judge in waiting:
                judge([next(found) for _ in range(len(ends))])

    def _look(self, ends: Tensor, judge: Callable[[list[float]], None]) -> None:
        if ends.device.type == "cpu":
            judge(ends.tolist())
        else:
            self._waiting.append((ends, judge))

    def _judge_layer(self, index: int, names: list[str], n_weights: int, ends: list[float]) -> None:
        sizes = [_size(ends[2 * n : 2 * n + 2]) for n in range(len(names))]
        for name, size in zip(names[:n_weights], sizes[:n_weights], strict=True):
            if size > self._limit:
                raise NumericalError(_beyond(f"{name} in layer {index}", self._dtype))
        values = zip(names[n_weights:], sizes[n_weights:], strict=True)
        name, size = max(values, key=lambda pair: pair[1])
        if size > self._limit:
            warn_user(
                f"{name} of layer {index} reaches {size:.1e}, and {_name(self._dtype)} ends at {self._limit:.1e}: the "
                f"explanation will probably overflow. Use {WIDER[self._dtype]}",
                PrecisionWarning,
            )

    def _judge_state(self, index: int, ends: list[float]) -> None:
        if not all(map(math.isfinite, ends)):
            raise NumericalError(_beyond(f"the vectors after layer {index}", self._dtype))


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


def _ends(x: Tensor) -> Tensor:
    """``[2]`` float64, the least and the largest number."""
    return torch.stack(x.aminmax()).double()


def _size(ends: list[float]) -> float:
    low, high = ends
    return max(-low, high)


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
