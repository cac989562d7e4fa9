"""From a Hugging Face model and its inputs to a stream of linearised layers, checked against the model itself.

The user's model runs once, in eval mode, and is left as it was. Its hidden states are what every layer, computed a
second time from its weights, is compared with: a layer that computes anything else than its specification says is
refused, with the gap. Where a record is asked for (:mod:`.record`), a layer that is proved right while the model runs
is not computed a second time.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import InputError, NumericalError, UnsupportedModelError
from .architectures import describe, find_family, unwrap
from .copies import Copies
from .encoder import Encoder
from .evaluate_head import Read
from .layer import Head, LinearizedLayer
from .model_run import ModelRun, check_embedding_mode, plain_mode, run_model, undisturbed
from .private_copy import modules_of
from .recomputed import Recomputed
from .record import Record
from .spec import InputLimits, ModelSpec
from .terms import Terms
from .values import ModelValues, check_weights

#: Largest accepted gap between a recomputed state and the model's own, per position, relative to the norm of the state.
#: The recomputation runs from the embeddings on, so it collects the rounding of all layers: about 1e-6 is usual in
#: float32 and 2e-2 in bfloat16 for 12 layers; a wrong activation or a missing bias shows as 1e-4 at the least.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}

#: The same where float32 products run in TF32, which keeps 10 bits.
TF32_TOLERANCE = 1e-2


#: What a decoder reads, where there is an encoder too.
DECODER_IDS = "decoder_input_ids"

#: A layer that was recorded, and the largest gap of its steps.
_Recorded = tuple[LinearizedLayer, float]


class HuggingFaceLinearization(Recomputed):
    """A model on one batch of equally long inputs without padding, as a stream of linearised layers.

    Satisfies :class:`decompx_fast.linearize.layer.ReadsTerms`.

    Attributes:
        embedding: ``[b, i, d]``, the output of the embedding block, in the dtype of the computation; of an
            encoder-decoder those of both, the encoder's first.
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
        embedding, encoder = run.states[0], None
        if run.decoder_embedding is not None:
            encoder = Encoder(spec.encoder_layers, embedding.shape[1])
            embedding = torch.cat((embedding, run.decoder_embedding), dim=1)
        super().__init__(spec, run.contexts, embedding.to(dtype), values, read, encoder)
        self._record = record
        self._run = run
        self._dtype = dtype
        self.max_gap = 0.0
        self._gaps: list[tuple[str, Tensor]] = []  # not yet looked at

    def layers(self) -> Iterator[LinearizedLayer]:
        """Yield the layers in order; each is checked against the model's own hidden state.

        Raises:
            UnsupportedModelError: names the layer and the gap.
        """
        record = self._record
        for layer in self._stream({} if record is None else record.known()):
            yield layer if layer.complete else self.restore(layer)

    def take_layers(self) -> Iterator[LinearizedLayer]:
        """The same once more at most, as far as they were recorded: then they may be without their constants."""
        record, self._record = self._record, None
        held = {} if record is None else record.take()
        yield from self._stream(held)

    def _stream(self, held: dict[int, _Recorded]) -> Iterator[LinearizedLayer]:
        """The layers, of which those that were recorded are taken from what is held, and held no longer."""
        x = self._start(0)
        for index in range(self.num_layers):
            x, recorded = self._before(index, x), held.pop(index, None)
            if recorded is None:
                layer = self._layer(index, x)
                self._check(layer.output, self._run.states[index + 1], f"layer {index}", self._size_of_rows(index + 1))
            else:
                layer, recorded_gap = recorded
                self.max_gap = max(self.max_gap, recorded_gap)
            yield layer
            x = layer.output
        self._settle()

    @property
    def recorded_layers(self) -> tuple[int, ...]:
        """The layers that were made of what the model multiplied, are still held, and were not modified since."""
        record = self._record
        return () if record is None else tuple(sorted(record.known()))

    @property
    def model_dtype(self) -> torch.dtype:
        """In which the model computed its states."""
        return self._run.states[0].dtype

    def again(self, embedding: Tensor) -> Recomputed:
        """The same model on another embedding ``[b, i, d]``, in its dtype, unchecked."""
        return Recomputed(self._spec, self.contexts, embedding, self._values, self._read, self.encoder)

    def outputs(self, positions: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The model's own outputs at positions ``[b, p]``, in blocks of positions ``[b, ., C]``: a vocabulary's are
        never held for all of them. For models that have outputs at each position."""
        return self._values.blocks(positions if self.encoder is None else self.encoder.in_decoder(positions))

    def head(self, x: Tensor, terms: Terms | None = None) -> Head:
        """The head where it is read for these terms, on the last layer's output ``x`` ``[b, i, d]``, checked against
        the model's own values of all outputs that are formed."""
        weights = self.layer_weights
        if weights is not None:
            earlier = zip(weights[:-1], self._run.states[:-1], strict=True)
            x = sum((weight * state.to(x.dtype) for weight, state in earlier), weights[-1] * x)
        head = super().head(x, terms)
        # Logits can cancel to nearly nothing, so their gap is measured against the vector they are read from.
        before = head.read(x) if len(head.steps) == 1 else head.steps[-2].output
        weight = head.steps[-1].weight
        size = before.norm(dim=-1) * (1 if weight is None else weight.norm(dim=-2).amax(-1))  # [b, r]
        if head.is_narrow or head.reading.outputs is None:
            ours, reading = head.table, head.reading
        else:
            ours, reading = head.steps[-1].output, replace(head.reading, outputs=None)
        ours, size = reading.together(ours), reading.together(size)
        self._check(ours, self._values.at(reading, ours.dtype), "the head", size)
        self._settle()
        return head

    def _size_of_rows(self, number: int) -> Tensor | None:
        """What the rounding of a state's rows is relative to, ``[b, i]``; ``None``: the rows themselves.

        In a half precision the state may be smaller than it was by what layers took away again, and the rounding of the
        larger one is still in it: language models have such a state at a text's first tokens. So there it is the
        largest that a row was so far in its stack.
        """
        if self.model_dtype not in (torch.bfloat16, torch.float16):
            return None
        first = 0 if self.encoder is None or number <= self.encoder.layers else self.encoder.layers + 1
        rows = [state.float().norm(dim=-1) for state in self._run.states[first : number + 1]]
        return torch.stack([size for size in rows if size.shape == rows[-1].shape]).amax(0)

    def _check(self, ours: Tensor, theirs: Tensor, where: str, size: Tensor | None = None) -> None:
        theirs = theirs.to(ours.dtype)
        size = theirs.norm(dim=-1) if size is None else size
        gap = ((ours - theirs).norm(dim=-1) / size.clamp_min(torch.finfo(ours.dtype).tiny)).max()
        self._gaps.append((where, gap))
        if gap.device.type == "cpu":
            self._settle()

    def _settle(self) -> None:
        """Look at the gaps that have not been looked at: on a CPU at once, elsewhere all in the end, so that no layer
        waits for the device."""
        waiting, self._gaps = self._gaps, []
        if not waiting:
            return
        tolerance = self._tolerance()
        for (where, _), gap in zip(waiting, torch.stack([gap.double() for _, gap in waiting]).tolist(), strict=True):
            if not gap <= tolerance:
                raise UnsupportedModelError(
                    f"{where} does not compute what its architecture says: recomputed from its weights it differs by "
                    f"{gap:.1e} of its size (accepted: {tolerance:.0e} in {self.model_dtype}). A module was probably "
                    "replaced, hooked or patched, or trained meanwhile; this model cannot be explained exactly, so it "
                    "is refused"
                )
            self.max_gap = max(self.max_gap, gap)

    def _tolerance(self) -> float:
        dtypes = (self._run.states[0].dtype, self._dtype, *([torch.float32] if self._spec.in_float32 else []))
        tolerance = max(TOLERANCE[dtype] for dtype in dtypes)
        tf32 = self.embedding.is_cuda and torch.get_float32_matmul_precision() != "highest"
        return max(tolerance, TF32_TOLERANCE) if tf32 and torch.float32 in dtypes else tolerance


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
            ``position_ids``; equally long, no padding, on the model's device. Of an encoder-decoder
            ``decoder_input_ids`` too, unless the model itself makes them of the others.
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
        renewed = _has_pre_hooks(model)
        spec = describe(model) if copies is None or renewed else copies.read(model, describe)
        hooked: set[int] = set()
        if renewed:  # hooks before a module may renew its weights: what was noted would be of this call alone
            hooked = {n for n, layer in enumerate(spec.layer_modules) if _has_pre_hooks(layer)}
        inputs = with_decoder_inputs(spec, inputs)
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


def with_decoder_inputs(spec: ModelSpec, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The inputs with what the decoder reads, where there is one and the model makes that of the encoder's.

    Raises:
        InputError: if it is to be given, and is not.
    """
    if not spec.encoder_layers or DECODER_IDS in inputs:
        return inputs
    if spec.shifted is None:
        raise InputError(
            f"this model has a decoder, and the inputs hold {', '.join(inputs)}: give {DECODER_IDS} too, which begin "
            "with the token that the decoder starts with"
        )
    return {**inputs, DECODER_IDS: spec.shifted(inputs["input_ids"])}


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


def taken_inputs(model: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    """Of these names of inputs those that a model's ``forward`` has; all, of one that does not name its token ids.

    Args:
        model: of texts; a module around an encoder takes what that does.
        names: such as ``input_ids`` and ``token_type_ids``.
    """
    model = unwrap(model)
    known = inspect.signature(type(model).forward).parameters
    encoder = getattr(model, "encoder", None)
    if "input_ids" not in known:
        return taken_inputs(encoder, names) if isinstance(encoder, nn.Module) else tuple(names)
    return tuple(name for name in names if name in known)


def specification(model: nn.Module, copies: Copies | None = None) -> ModelSpec:
    """A supported model as data, without running it; ``copies`` as for :func:`linearize`.

    Raises:
        UnsupportedModelError: if the model is not what its architecture says.
    """
    model = unwrap(model)
    with plain_mode(only_device(model)), undisturbed(model, copies) as model:
        return describe(model) if copies is None else copies.read(model, describe)
