"""A layer made of what the user's model multiplied, checked, so that nothing large is multiplied a second time.

While the model runs, the outputs of the modules that hold a layer's linear maps are noted. At the end of the layer all
but these products is computed from the layer's input (:func:`.evaluate.linearize_layer`), as the specification says,
and each product is taken from the notes once it has been checked (Freivalds): with a random matrix ``R`` ``[d_out, s]``
of independent normal numbers, ``y R`` must be ``x (W R) + b R``, for ``s / d_out`` of the price of ``x W``.

What the check proves: let ``e`` be the error of one row ``y`` of a product. ``e R`` has ``s`` independent normal
components of variance ``|e|^2``, and so has ``y R``, of ``|y|^2``. Every row must have ``|e R| <= t |y R|``. For an
error ``|e| = r t |y|`` that does not depend on ``R`` this has a probability of about ``35 r^-8`` (``s = 8``; the
F distribution of 8 and 8 degrees of freedom, near zero): 4e-7 for 10 times the tolerance, 4e-15 for 100 times, that is
1e-3 in float32. The tolerance has to leave room for rounding. A column of ``x (W R)`` sums ``x_k (W R)_k``, where
``(W R)_k`` is of the size of the row ``W_k``, so its rounding is to ``|y|`` what that of ``x W`` is: 1e-6 to 4e-6 is
the largest of a BERT's layer in float32, more where ``x W`` cancels. As every product is checked on the input that it
should have had, no rounding is collected from layer to layer.

A record can only accept. Whatever is missing, was run twice, has another shape or dtype, does not match or was modified
later is as if it had not been noted: that layer is computed from its weights, and that decides. So the seed of ``R``
can be fixed without harm, and results do not change from run to run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .evaluate import linearize_layer
from .layer import KEEP_BYTES, LinearizedLayer, Norm, Shelf
from .private_copy import original
from .spec import (
    Affine,
    AttentionSpec,
    Context,
    ConvolutionSpec,
    FeedForwardSpec,
    LayerSpec,
    NormSpec,
    RoutedSpec,
    ScaleSpec,
    StateMapSpec,
    networks_of,
)
from .steps import Steps

#: Random directions of the check.
DIRECTIONS = 8

#: Largest accepted gap of one step, relative to the norm of its output. Stricter than what is accepted of a layer
#: computed from its weights, since no rounding is collected; a step that misses it costs time and nothing else.
STEP_TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}


#: ``(W R)^T`` ``[s, d_in]`` and ``b R`` ``[s]`` of a map.
Projection = tuple[Tensor, Tensor | None]


class NotRecorded(Exception):
    """A product that the model ran in another way, or not at all."""


#: Activations by the formula that torch computes in one pass.
_FUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu": torch.relu,
    "tanh": torch.tanh,
}


class _Recorded(Steps):
    """Products as the model computed them; all else is computed, in as few passes as torch can."""

    def __init__(self, outputs: Mapping[nn.Module, Sequence[Tensor | None]]) -> None:
        self.sketches: list[tuple[Tensor, Tensor]] = []  # of each product, what it should be and what it is
        self._outputs = outputs

    def multiply(self, map_: Affine, x: Tensor) -> Tensor:
        if map_.module is None:  # no module gives its output
            return super().multiply(map_, x)
        gain = map_.gain
        if gain is not None:
            map_ = replace(map_, gain=None)  # what the module gives is looked at without it
        y, weight = self._output(map_, x.shape[:-1]), map_.weight
        if x.shape[-1] != weight.shape[0] or y.shape[-1] != weight.shape[1:].numel():
            raise NotRecorded
        if not x.dtype == y.dtype == weight.dtype or not x.device == y.device == weight.device:
            raise NotRecorded
        self.sketches.append(product_sketches(map_, x, y))
        return y if gain is None else y * gain

    def _output(self, map_: Affine, shape: torch.Size) -> Tensor:
        """What the map's module gave in its one call on states of this shape (DeBERTa's also sees distances)."""
        found = () if map_.module is None else self._outputs.get(map_.module, ())
        if any(y is None for y in found):
            raise NotRecorded
        fitting = [placed for y in found if y is not None and (placed := _placed(y, shape)) is not None]
        if len(fitting) != 1:
            raise NotRecorded
        return map_.of_output(fitting[0])

    def normalize(self, spec: NormSpec | ScaleSpec, x: Tensor) -> tuple[Norm, Tensor]:
        if isinstance(spec, ScaleSpec) or not spec.centre or spec.fixed:
            return super().normalize(spec, x)
        weight = None if spec.weight is None else spec.weight.to(x.dtype)
        bias = None if spec.bias is None else spec.bias.to(x.dtype)
        y, _, inverse_std = torch.native_layer_norm(x, x.shape[-1:], weight, bias, spec.eps)
        return Norm(inverse_std.squeeze(-1).reciprocal(), weight, bias), y

    def activate(self, name: str, z: Tensor) -> Tensor:
        return _FUSED[name](z) if name in _FUSED else super().activate(name, z)


@dataclass(frozen=True)
class _Mark:
    """A state as it was when its layer ended, to tell modifications in place: those that torch counts, and others."""

    state: Tensor
    version: int
    sketch: Tensor


@dataclass(frozen=True)
class _Held:
    """A layer, and what must not have changed since: two states; constants and weights as ``(tensor, version)``."""

    layer: LinearizedLayer
    marks: tuple[_Mark, _Mark]
    versions: tuple[tuple[Tensor, int], ...]
    gap: Tensor  # a number on the device

    @property
    def versions_hold(self) -> bool:
        return all(tensor._version == version for tensor, version in self.versions)


class Record:
    """Listens to a model while it runs, and makes its layers of what it hears.

    Args:
        layers: the layers of the model.
        dtype: of the computation; ``None`` for that of the model. Where the model has another, nothing is recorded.
        skip: layers that are not recorded.
    """

    def __init__(self, layers: tuple[LayerSpec, ...], dtype: torch.dtype | None, skip: Container[int] = ()) -> None:
        self._layers = layers
        self._skip = skip
        self._dtype = dtype
        self._outputs: dict[nn.Module, list[Tensor | None]] = {}
        self._held: dict[int, _Held] = {}
        self._last_mark: _Mark | None = None
        self._shelf = Shelf(KEEP_BYTES)

    def modules(self) -> Iterator[nn.Module]:
        """The modules to listen to, each once."""
        found = (map_.module for layer in self._layers for map_ in _maps(layer))
        yield from dict.fromkeys(module for module in found if module is not None)

    def note(self, module: nn.Module, output: object) -> None:
        """The output of one call of a module. One called twice on the states of a layer is not recorded."""
        usable = type(output) is Tensor and not output.is_inference()
        kept = output.detach() if usable and isinstance(output, Tensor) else None
        self._outputs.setdefault(module, []).append(kept)

    def end_layer(self, index: int, x: Tensor, state: Tensor, context: Context) -> None:
        """Make the layer ``index`` between the states ``x`` and ``state`` ``[b, i, d]``, if that can be proved.

        ``context`` is what the model called the layer with besides.

        To be called without autograd and autocast.
        """
        mark, self._last_mark = self._last_mark, None  # of the state before
        try:
            wanted = index < len(self._layers) and index not in self._skip
            if wanted and self._recordable(x) and self._recordable(state) and x.shape == state.shape:
                self._make_layer(index, x, state, mark, context)
        except NotRecorded:
            pass
        finally:
            self._outputs.clear()

    def _recordable(self, state: object) -> bool:
        if type(state) is not Tensor or state.is_inference() or state.ndim != 3:
            return False
        exact = not state.is_cuda or state.dtype != torch.float32 or torch.get_float32_matmul_precision() == "highest"
        return exact and state.dtype in STEP_TOLERANCE and self._dtype in (None, state.dtype)

    def _make_layer(self, index: int, x: Tensor, state: Tensor, mark: _Mark | None, context: Context) -> None:
        steps = _Recorded(self._outputs)
        layer = linearize_layer(self._layers[index], index, x.detach(), context, steps)
        if layer.output.shape != state.shape:
            return
        if not steps.sketches:  # it multiplies nothing, so that nothing of it is known already
            return
        # All products of the layer at once: what takes time here is the number of operations, not their size.
        gap = torch.maximum(_product_gap(steps.sketches), row_gap(layer.output, state))
        self._last_mark = _Mark(state, state._version, _sketch(state))
        if gap.device.type == "cpu" and not self._accepts(index, gap.item(), x.dtype):
            return  # elsewhere it is looked at when the layers are asked for, and no layer waits for the device
        if mark is None or mark.state is not x:
            mark = _Mark(x, x._version, _sketch(x))
        # The state is the model's own, so that the next layer is checked on what it was given.
        layer = self._shelf.keep(replace(layer, output=state.detach()), always=index == len(self._layers) - 1)
        counted = (tensor for tensor in (*layer.constants, *_weights(self._layers[index])) if not tensor.is_inference())
        versions = tuple((tensor, tensor._version) for tensor in counted if not tensor.is_meta)
        self._held[index] = _Held(layer, (mark, self._last_mark), versions, gap)

    def _accepts(self, index: int, gap: float, dtype: torch.dtype) -> bool:
        """Whether the steps of a layer are close enough to what they should be."""
        if gap <= STEP_TOLERANCE[dtype]:
            return True
        _forget(self._layers[index])
        return False

    def known(self) -> dict[int, tuple[LinearizedLayer, float]]:
        """The layers that were recorded and not modified since, by their numbers, and the largest gap of the steps of
        each; all are looked at together."""
        if not self._held:
            return {}
        good = _holding([*{id(mark): mark for one in self._held.values() for mark in one.marks}.values()])
        gaps = torch.stack([one.gap.double() for one in self._held.values()]).tolist()
        return {
            index: (one.layer, gap)
            for (index, one), gap in zip(self._held.items(), gaps, strict=True)
            if one.versions_hold
            and all(id(mark) in good for mark in one.marks)
            and self._accepts(index, gap, one.layer.input.dtype)
        }

    def take(self) -> dict[int, tuple[LinearizedLayer, float]]:
        """The same; they are held here no longer."""
        known, self._held = self.known(), {}
        return known


def _placed(y: Tensor, shape: torch.Size) -> Tensor | None:
    """An output as that of states ``[b, i]`` of this shape; ``None`` if it is of others.

    It may have all positions on one axis, or positions first, with padding at their end, as Longformer's.
    """
    if y.shape[:-1] in (shape, (shape.numel(),)):
        return y.reshape(*shape, -1)
    if y.ndim == 3 and len(shape) == 2 and y.shape[1] == shape[0] and y.shape[0] >= shape[1]:
        return y[: shape[1]].transpose(0, 1)
    return None


def _holding(marks: Sequence[_Mark]) -> set[int]:
    """Of these marks, those whose states were not modified since, by their ``id``."""
    alike: dict[object, list[_Mark]] = {}
    for mark in marks:
        if mark.state._version == mark.version:
            alike.setdefault((mark.state.shape, mark.state.dtype, mark.state.device), []).append(mark)
    good: set[int] = set()
    for same in alike.values():
        found, known = torch.stack([_sketch(mark.state) for mark in same]), torch.stack([mark.sketch for mark in same])
        gaps = _row_gaps(found, known).flatten(1).amax(1).tolist()
        most = STEP_TOLERANCE[same[0].state.dtype]
        good |= {id(mark) for mark, gap in zip(same, gaps, strict=True) if gap <= most}
    return good


def product_sketches(map_: Affine, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What ``y R`` should be if ``y`` is ``x W + b``, which is ``x (W R) + b R``, and what it is; ``[..., s]`` each.

    Args:
        map_: with its module.
        x, y: ``[..., d_in]`` and ``[..., d_out]``, of the dtype of the weight.

    Source: Freivalds, Probabilistic machines can use less running time (1977); the module's docstring has the odds.
    """
    expected = F.linear(x, *_projected(map_))
    return expected, _sketch(y)


def _product_gap(sketches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The :func:`row_gap` of products together, each as it should be and as it is; a memory has its own positions."""
    alike: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
    for pair in sketches:
        alike.setdefault(pair[0].shape, []).append(pair)
    gaps = [row_gap(*map(torch.stack, zip(*same, strict=True))) for same in alike.values()]
    return gaps[0] if len(gaps) == 1 else torch.stack(gaps).amax()


def row_gap(ours: Tensor, theirs: Tensor) -> Tensor:
    """The largest difference of two rows, relative to the norm of the second, as a number on the device."""
    return _row_gaps(ours, theirs).amax()


def _row_gaps(ours: Tensor, theirs: Tensor) -> Tensor:
    size = torch.linalg.vector_norm(theirs, dim=-1).clamp_min_(torch.finfo(theirs.dtype).tiny)
    return torch.linalg.vector_norm(ours - theirs, dim=-1).div_(size)


def _maps(layer: LayerSpec) -> Iterator[Affine]:
    for sublayer in layer:
        for op in sublayer.ops:
            if isinstance(op, AttentionSpec):
                yield from (op.query, op.key, op.value, op.out)
                yield from () if op.hubs is None else (op.hubs.query, op.hubs.key, op.hubs.value)
                yield from () if op.before is None else op.before[:1]
            elif isinstance(op, StateMapSpec):
                yield op.map
            elif isinstance(op, RoutedSpec):
                yield op.router
            for network in networks_of(op):
                yield from (map_ for map_ in (network.into, network.out, network.gate) if map_ is not None)


def _weights(layer: LayerSpec) -> Iterator[Tensor]:
    every = [norm for part in layer for norm in (part.pre_norm, part.out_norm, part.post_norm)]
    every += [op.norm for part in layer for op in part.ops if isinstance(op, FeedForwardSpec)]
    norms = [norm for norm in every if isinstance(norm, NormSpec)]
    sinks = [op.sink for part in layer for op in part.ops if isinstance(op, AttentionSpec)]
    found: list[tuple[Tensor | None, Tensor | None]] = [(map_.weight, map_.bias) for map_ in _maps(layer)]
    found += [(map_.gain, None) for map_ in _maps(layer)]
    found += [(norm.weight, norm.bias) for norm in norms]
    found += [(op.weight, op.bias) for part in layer for op in part.ops if isinstance(op, ConvolutionSpec)]
    yield from (tensor for tensor in (*sinks, *chain.from_iterable(found)) if tensor is not None)


def _sketch(state: Tensor) -> Tensor:
    return F.linear(state.detach(), _directions(state.shape[-1], state.dtype, state.device))


@functools.lru_cache(maxsize=64)
def _directions(n_out: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``R^T`` ``[s, d_out]``; from a generator of its own."""
    generator = torch.Generator("cpu").manual_seed(n_out)
    directions = torch.randn(DIRECTIONS, n_out, generator=generator, device="cpu", dtype=torch.float64)
    return directions.to(device, dtype)


#: ``(W R)^T`` and ``b R`` by module of the user's and columns of it, with what tells that weight and bias are still the
#: same. To read all weights for these few numbers takes a third of a forward pass of a short text, so they are kept for
#: the next one. A weight that is changed behind torch's back makes its check fail; then they are forgotten.
_projections: WeakKeyDictionary[nn.Module, dict[object, tuple[tuple[object, ...], Projection]]] = WeakKeyDictionary()


def _projected(map_: Affine) -> Projection:
    """``(W R)^T`` ``[s, d_in]`` and ``b R`` ``[s]``."""
    assert map_.module is not None
    module = original(map_.module)
    parts = [map_.weight] if map_.bias is None else [map_.weight, map_.bias]
    if any(part.is_inference() for part in parts):
        return _project(map_)
    state = (map_.weight.dtype, *((part.data_ptr(), part._version, *part.shape) for part in parts))
    parts_known = _projections.setdefault(module, {})
    key = (map_.columns.start, map_.columns.stop, map_.groups)
    known = parts_known.get(key)
    if known is None or known[0] != state:
        known = parts_known[key] = (state, _project(map_))
    return known[1]


def _project(map_: Affine) -> Projection:
    # R^T W^T, with the weight as a linear layer stores it, is many times faster than W R.
    matrix, vector = map_.matrix, map_.vector
    directions = _directions(matrix.shape[1], matrix.dtype, matrix.device)
    return directions @ matrix.T, None if vector is None else directions @ vector


def _forget(layer: LayerSpec) -> None:
    for map_ in _maps(layer):
        if map_.module is not None:
            _projections.pop(original(map_.module), None)
