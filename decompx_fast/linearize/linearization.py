"""From a Hugging Face model and its inputs to a stream of linearised layers, checked against the model itself.

The user's model runs once, in eval mode, and is left as it was. Its hidden states are what every layer, computed a
second time from its weights, is compared with: a layer that computes anything else than its specification says is
refused, with the gap. Where a record is asked for (:mod:`.record`), a layer that is proved right while the model runs
is not computed a second time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import InputError, NumericalError, UnsupportedModelError
from .copies import Copies
from .evaluate import Read, linearize_head, linearize_layer, read_terms, restore_layer
from .families import FAMILIES
from .families.sentence import SENTENCE_ENCODERS
from .families.unsupported import UNSUPPORTED
from .layer import Head, LinearizedLayer
from .model_run import ModelRun, check_embedding_mode, plain_mode, run_model, undisturbed
from .private_copy import modules_of
from .record import Record
from .spec import Context, InputLimits, ModelSpec
from .terms import Terms
from .values import ModelValues, check_weights

#: Largest accepted gap between a recomputed state and the model's own, per position, relative to the norm of the state.
#: The recomputation runs from the embeddings on, so it collects the rounding of all layers: about 1e-6 is usual in
#: float32 and 2e-2 in bfloat16 for 12 layers; a wrong activation or a missing bias shows as 1e-4 at the least.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}

#: The same where float32 products run in TF32, which keeps 10 bits.
TF32_TOLERANCE = 1e-2


#: A layer that was recorded, and the largest gap of its steps.
_Recorded = tuple[LinearizedLayer, float]


def supported_architectures() -> list[str]:
    """The class names that can be explained."""
    return sorted(FAMILIES)


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside ``torch.compile``, data parallel and low-rank-adapter wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(inner, nn.Module):
            model = inner
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif callable(base := getattr(model, "get_base_model", None)):
            refuse_prompts(model)
            model = base()
        else:
            return model


def refuse_prompts(model: nn.Module) -> None:
    """Learned prompts are outside the base model: it would be explained without them."""
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise UnsupportedModelError(
            "this model is adapted by learned prompts, which are no tokens of the text: only adapters that change "
            "weights, such as LoRA, can be explained"
        )


def find_family(model: nn.Module) -> Callable[[nn.Module], ModelSpec]:
    """The function that describes this architecture.

    Raises:
        UnsupportedModelError: says why it is not, where that is known, and lists what is supported.
    """
    for cls in type(model).__mro__:
        for register in (FAMILIES, SENTENCE_ENCODERS):
            if cls.__name__ in register:
                return register[cls.__name__]
    supported = f"supported are {', '.join(_of_the_same_kind(type(model).__name__))}"
    for cls in type(model).__mro__:
        if cls.__name__ in UNSUPPORTED:
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be explained exactly: {UNSUPPORTED[cls.__name__]}; {supported}"
            )
    raise UnsupportedModelError(f"{type(model).__name__} cannot be explained yet: {supported}")


def _of_the_same_kind(name: str) -> list[str]:
    """The supported classes with the head of the one that is named so; all of them if there are none."""
    _, found, head = name.rpartition("For")
    alike = [one for one in supported_architectures() if found and one.endswith(f"For{head}")]
    return alike or supported_architectures()


def describe(model: nn.Module) -> ModelSpec:
    """The model's parts as data: views on its weights, read anew at each call, so that nothing goes stale.

    Args:
        model: an unwrapped model in eval mode.

    Raises:
        UnsupportedModelError: if the architecture or one of its modules is not supported.
    """
    family = find_family(model)
    try:
        spec = family(model)
    except AttributeError as error:
        raise UnsupportedModelError(
            f"this {type(model).__name__} has not the parts of its architecture ({error}): it cannot be explained "
            "exactly"
        ) from error
    if not spec.layers:
        raise UnsupportedModelError(f"this {type(model).__name__} has no layers: there is nothing to decompose")
    return spec


class Recomputed:
    """The layers of a model on some embedding, in its dtype, computed from the weights and compared with nothing.

    To measure what a computation in one precision is wrong by; satisfies
    :class:`decompx_fast.linearize.layer.ReadsTerms`, but for ``logits`` and ``values``, which are those of the model
    itself.
    """

    def __init__(
        self, spec: ModelSpec, contexts: Sequence[Context], embedding: Tensor, values: ModelValues, read: Read
    ) -> None:
        self._spec = spec
        self._values = values
        self._read = read
        self.contexts = contexts
        self.embedding = embedding
        self.num_layers = len(spec.layers)
        self.reads_all = spec.reads_all

    @property
    def logits(self) -> Tensor:
        """``[b, c]``, the model's own, of the head's own reading.

        Raises:
            InputError: if the head reads each position by itself.
        """
        if self._values.own is None:
            raise InputError(
                "this model has outputs at each position, and no logits of the whole input: ask for values(terms)"
            )
        return self._values.own.to(self.embedding.dtype)

    def values(self, terms: Terms) -> Tensor:
        """The model's own values of the terms, ``[b, t]``, in the dtype of the computation.

        Raises:
            InputError: for positions or outputs that do not exist.
        """
        reading = read_terms(self._spec.head, self._read, self.embedding, terms)
        return reading.pick(self._values.at(reading, self.embedding.dtype))

    def layers(self) -> Iterator[LinearizedLayer]:
        """Yield the layers in order."""
        x = self.embedding
        for index in range(self.num_layers):
            layer = self.layer(index, x)
            yield layer
            x = layer.output

    def layer(self, index: int, x: Tensor) -> LinearizedLayer:
        """The layer ``index`` on the state ``x`` ``[b, i, d]``, unchecked."""
        return linearize_layer(self._spec.layers[index], index, x, self.contexts[index])

    def restore(self, layer: LinearizedLayer) -> LinearizedLayer:
        """A layer again of which only :meth:`LinearizedLayer.without_constants` was kept."""
        return restore_layer(self._spec.layers[layer.index], layer, self.contexts[layer.index])

    def head(self, x: Tensor, terms: Terms | None = None) -> Head:
        """The head where it is read for these terms, on the last layer's output ``x`` ``[b, i, d]``."""
        return linearize_head(self._spec.head, self._read, x, terms)


class HuggingFaceLinearization(Recomputed):
    """A model on one batch of equally long inputs without padding, as a stream of linearised layers.

    Satisfies :class:`decompx_fast.linearize.layer.ReadsTerms`.

    Attributes:
        embedding: ``[b, i, d]``, the output of the embedding block, in the dtype of the computation.
        num_layers: number of layers.
        max_gap: the largest gap seen so far between a recomputed state, or the checked step of a recorded layer, and
            the model's own, relative.
    """

    def __init__(
        self,
        spec: ModelSpec,
        run: ModelRun,
        dtype: torch.dtype,
        record: Record | None = None,
        *,
        read: Read | None = None,
        values: ModelValues | None = None,
    ) -> None:
        read = own_read(spec, {}) if read is None else read
        values = ModelValues(None, spec, run, read) if values is None else values
        super().__init__(spec, run.contexts, run.states[0].to(dtype), values, read)
        self._record = record
        self._run = run
        self._dtype = dtype
        self.max_gap = 0.0

    def layers(self) -> Iterator[LinearizedLayer]:
        """Yield the layers in order; each is checked against the model's own hidden state.

        Raises:
            UnsupportedModelError: names the layer and the gap.
        """
        record = self._record
        for layer in self._stream(_nothing if record is None else record.layer):
            yield layer if layer.complete else self.restore(layer)

    def take_layers(self) -> Iterator[LinearizedLayer]:
        """The same once more at most, as far as they were recorded: then they may be without their constants."""
        record, self._record = self._record, None
        held = {} if record is None else record.take()
        yield from self._stream(lambda index: held.pop(index, None))

    def _stream(self, recorded_layer: Callable[[int], _Recorded | None]) -> Iterator[LinearizedLayer]:
        x = self.embedding
        for index in range(self.num_layers):
            recorded = recorded_layer(index)
            if recorded is None:
                layer = self.layer(index, x)
                self._check(layer.output, self._run.states[index + 1], f"layer {index}")
            else:
                layer, gap = recorded
                self.max_gap = max(self.max_gap, gap)
            yield layer
            x = layer.output

    @property
    def recorded_layers(self) -> tuple[int, ...]:
        """The layers that were made of what the model multiplied, are still held, and were not modified since."""
        record = self._record
        return () if record is None else tuple(n for n in range(self.num_layers) if record.layer(n) is not None)

    @property
    def model_dtype(self) -> torch.dtype:
        """In which the model computed its states."""
        return self._run.states[0].dtype

    def again(self, embedding: Tensor) -> Recomputed:
        """The same model on another embedding ``[b, i, d]``, in its dtype, unchecked."""
        return Recomputed(self._spec, self.contexts, embedding, self._values, self._read)

    def outputs(self, positions: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The model's own outputs at positions ``[b, p]``, in blocks of positions ``[b, ., C]``: a vocabulary's are
        never held for all of them. For models that have outputs at each position."""
        return self._values.blocks(positions)

    def head(self, x: Tensor, terms: Terms | None = None) -> Head:
        """The head where it is read for these terms, on the last layer's output ``x`` ``[b, i, d]``, checked against
        the model's own values of all outputs that are formed."""
        head = super().head(x, terms)
        # Logits can cancel to nearly nothing, so their gap is measured against the vector they are read from.
        before = head.read(x) if len(head.steps) == 1 else head.steps[-2].output
        weight = head.steps[-1].weight
        size = before.norm(dim=-1) * (1 if weight is None else weight.norm(dim=-2).amax(-1))  # [b, r]
        if head.is_narrow or head.reading.outputs is None:
            ours, reading = head.table, head.reading
        else:
            ours, reading = head.steps[-1].output, replace(head.reading, outputs=None)
        self._check(ours, self._values.at(reading, ours.dtype), "the head", size)
        return head

    def _check(self, ours: Tensor, theirs: Tensor, where: str, size: Tensor | None = None) -> None:
        theirs = theirs.to(ours.dtype)
        size = theirs.norm(dim=-1) if size is None else size
        gap = ((ours - theirs).norm(dim=-1) / size.clamp_min(torch.finfo(ours.dtype).tiny)).max().item()
        tolerance = self._tolerance()
        if not gap <= tolerance:
            raise UnsupportedModelError(
                f"{where} does not compute what its architecture says: recomputed from its weights it differs by "
                f"{gap:.1e} of its size (accepted: {tolerance:.0e} in {self.model_dtype}). A module was probably "
                "replaced, hooked or patched, or trained meanwhile; this model cannot be explained exactly, so it is "
                "refused"
            )
        self.max_gap = max(self.max_gap, gap)

    def _tolerance(self) -> float:
        dtypes = (self._run.states[0].dtype, self._dtype, *([torch.float32] if self._spec.in_float32 else []))
        tolerance = max(TOLERANCE[dtype] for dtype in dtypes)
        tf32 = self.embedding.is_cuda and torch.get_float32_matmul_precision() != "highest"
        return max(tolerance, TF32_TOLERANCE) if tf32 and torch.float32 in dtypes else tolerance


def _nothing(_index: int) -> None:
    """No layer was recorded."""


def own_read(spec: ModelSpec, inputs: Mapping[str, Tensor]) -> Read:
    """What the head of a model reads by itself of these inputs."""
    if not callable(spec.read):
        return spec.read
    found = spec.read(inputs)
    if found.ndim != 1 or found.dtype != torch.int64:
        raise ValueError(f"the positions that the head reads must be int64 [b], got {found.dtype} {list(found.shape)}")
    return found


def linearize(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    *,
    dtype: torch.dtype | None = None,
    record: bool = False,
    read: int | Literal["mean", "each"] | None = None,
    copies: Copies | None = None,
) -> HuggingFaceLinearization:
    """Run the model on a batch without padding and describe it as linearised layers.

    The model may be in train or eval mode, on any device, in any floating dtype, compiled or wrapped; it is run in
    eval mode and left as it was.

    Args:
        model: a supported Hugging Face classifier (see :func:`supported_architectures`).
        inputs: what its ``forward`` takes: ``input_ids`` ``[b, i]`` and perhaps ``token_type_ids``,
            ``position_ids``; equally long, no padding, on the model's device.
        dtype: in which the constants are computed: float64 or float32. ``None``: float64 for a float64 model, float32
            for all others.
        record: make the layers of what the model multiplies while it runs (:mod:`.record`), instead of computing
            each a second time from its weights. Sooner done, but the constants of several layers are held, up to
            :data:`.layer.KEEP_BYTES`, and the states within each layer; for the adjoint engine, which needs them all,
            and for short inputs. Of no effect where the model computes in another dtype than ``dtype``.
        read: what is read of a model without a head: a position, ``"mean"`` or ``"each"``.
        copies: where the copy of the modules that is run is kept for the next call.

    Returns:
        The linearisation; its layers are computed and checked as they are iterated.

    Raises:
        UnsupportedModelError: for an architecture, a module or a layer that is not what it should be.
        NumericalError: for NaN or infinity in the weights or in the outputs.
        InputError: if the inputs are on another device than the model.
    """
    users = model = unwrap(model)
    find_family(model)
    _refuse_paged(model)
    device = only_device(model)
    for name, tensor in inputs.items():
        if tensor.device != device:
            raise InputError(
                f"{name} is on {tensor.device} and the model on {device}: move one of them, for example "
                f"{name}.to({str(device)!r})"
            )
    with plain_mode(device), undisturbed(model, copies) as model:
        spec = describe(model)
        hooked: set[int] = set()
        renewed = _has_pre_hooks(model)
        if renewed:  # hooks before a module may renew its weights: what was noted would be of this call alone
            hooked = {n for n, layer in enumerate(spec.layer_modules) if _has_pre_hooks(layer)}
        listener = Record(spec.layers, dtype, hooked) if record else None
        run = run_model(model, spec, inputs, listener)
        if renewed:  # such hooks may have made other weights than those that were there before the run
            spec = describe(model)
        spec = _reading(spec, read)
        positions = own_read(spec, inputs)
        values = ModelValues(users, spec, run, positions, model)
        check_embedding_mode(model, spec.layer_modules)
        if run.states[0].dtype not in TOLERANCE:
            raise UnsupportedModelError(f"the model computes in {run.states[0].dtype}: use one of {list(TOLERANCE)}")
        _check_finite(model, run, values.own)
    if dtype is None:
        dtype = torch.float64 if run.states[0].dtype == torch.float64 else torch.float32
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"dtype={dtype}: the linearisation is computed in torch.float32 or torch.float64")
    return HuggingFaceLinearization(spec, run, dtype, listener, read=positions, values=values)


def _refuse_paged(model: nn.Module) -> None:
    """Attention over pages of a cache knows no mask where there is no cache: it then attends to what comes after."""
    if getattr(getattr(model, "config", None), "_attn_implementation", None) == "paged|eager":
        raise UnsupportedModelError(
            "this model has the attention implementation 'paged|eager', which without a cache of pages attends to what "
            "comes after a token: call model.set_attn_implementation('eager') first"
        )


def _reading(spec: ModelSpec, read: int | Literal["mean", "each"] | None) -> ModelSpec:
    """The description with what the caller wants to be read, where that is for the caller to say."""
    if read is None:
        return spec
    if any(step.map is not None for step in spec.head):
        raise InputError(f"read={read!r}: this model has a head, which says what is read; leave it out")
    return replace(spec, read=read)


def _has_pre_hooks(model: nn.Module) -> bool:
    return any(module._forward_pre_hooks for module in modules_of(model))


def only_device(model: nn.Module) -> torch.device:
    """The device that holds all of the model.

    Raises:
        InputError: if it is spread over several, or its weights are not loaded.
    """
    parameters = (module._parameters.values() for module in modules_of(model))
    devices = {parameter.device for parameter in chain.from_iterable(parameters) if parameter is not None}
    if len(devices) != 1 or next(iter(devices)).type == "meta":
        found = ", ".join(sorted(map(str, devices))) or "no parameters"
        raise InputError(
            f"the model must be whole on one device, but its parameters are on: {found}. Load it without device_map"
        )
    return next(iter(devices))


def _check_finite(model: nn.Module, run: ModelRun, logits: Tensor | None) -> None:
    # What is not finite at one position stays so there, and the head may read another.
    ends = run.states[-1].double().abs().sum()
    if logits is not None:
        ends = logits.double().abs().sum() + ends
    if math.isfinite(ends.item()):
        return
    check_weights(model)
    names = ["the embedding", *(f"layer {n}" for n in range(len(run.states) - 1))]
    for name, state in zip(names, run.states, strict=True):
        if not torch.isfinite(state).all():
            raise NumericalError(
                f"the output of {name} holds NaN or infinity in {state.dtype}: load the model in a wider dtype, "
                "for example torch.float32"
            )
    raise NumericalError(f"the logits hold NaN or infinity in {run.states[-1].dtype}: load the model in a wider dtype")


def input_limits(model: nn.Module) -> InputLimits:
    """What inputs a supported model has embeddings for.

    Raises:
        UnsupportedModelError: if the model is not what its architecture says.
    """
    return specification(model).limits


def specification(model: nn.Module, copies: Copies | None = None) -> ModelSpec:
    """A supported model as data, without running it; ``copies`` as for :func:`linearize`.

    Raises:
        UnsupportedModelError: if the model is not what its architecture says.
    """
    model = unwrap(model)
    with plain_mode(only_device(model)), undisturbed(model, copies) as model:
        return describe(model)
