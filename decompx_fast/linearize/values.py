"""The model's own numbers at the rows that its head reads: what every column is measured against."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..errors import InputError, NumericalError
from .evaluate_head import Read
from .model_run import ModelRun, plain_mode, undisturbed
from .spec import ModelSpec
from .terms import Pooled, Reading

#: Outputs of so many bytes are in memory at once: a vocabulary's at a few positions.
OUTPUT_BYTES = 64 << 20


class ModelValues:
    """What the model itself gives for one batch, by its own head modules where it was run without them.

    Attributes:
        own: ``[b, C]``, the outputs of the head's own reading; ``None`` where it reads each position by itself.

    Args:
        model: the user's, unwrapped; only for models whose description has ``outputs_of``.
        spec: its description.
        run: what it computed.
        read: what the head reads by itself.
        copy: the model as it is being run, if it still is.
    """

    def __init__(
        self, model: nn.Module | None, spec: ModelSpec, run: ModelRun, read: Read, copy: nn.Module | None = None
    ) -> None:
        self._model, self._spec = model, spec
        self._state = run.states[-1] if run.final is None else run.final
        self.own: Tensor | None = None
        self._last: tuple[Reading, Tensor] | None = None  # asked for by the head's check, the engine and its caller
        if spec.outputs_of is None:
            self.own = run.logits
        elif not (isinstance(read, str) and read == "each"):
            if copy is None:
                raise ValueError("the outputs of the head's own reading are computed while the model is there")
            self.own = spec.outputs_of(copy, _read_row(self._state, read))

    def at(self, reading: Reading, dtype: torch.dtype) -> Tensor:
        """The outputs wanted of each row, ``[b, r, q]``."""
        if self.own is not None:
            return reading.select(self.own.to(dtype).unsqueeze(1))
        rows = reading.rows
        if rows is None:
            raise InputError("this model has outputs at each position, and none at their mean")
        few = self._spec.classes <= self._spec.width  # all are kept, which others may ask for
        kept = Reading(rows) if few else reading
        if self._last is None or not _same(self._last[0], kept):
            parts = []
            for block, outputs in self.blocks(rows):
                some = Reading(None, None if kept.outputs is None else kept.outputs[:, block])
                parts.append(some.select(outputs))
            self._last = kept, torch.cat(parts, dim=1)
        found = self._last[1].to(dtype)
        return reading.select(found) if few else found

    def blocks(self, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """All outputs at positions ``[b, r]``, in blocks of rows ``[b, ., C]``, in the dtype of the model."""
        b, count = rows.shape
        step = max(OUTPUT_BYTES // (b * self._spec.classes * self._state.element_size()), 1)
        items = torch.arange(b, device=self._state.device)[:, None]
        for start in range(0, count, step):
            block = slice(start, min(start + step, count))
            yield block, self._call(self._state[items, rows[:, block].to(self._state.device)])

    def _call(self, states: Tensor) -> Tensor:
        """The model's own head on states ``[b, r, d]``, ``[b, r, C]``."""
        outputs_of = self._spec.outputs_of
        if outputs_of is None or self._model is None:
            raise InputError("the head of this model reads by itself: it has no outputs at other positions")
        with plain_mode(states.device), undisturbed(self._model) as model:
            found = outputs_of(model, states.flatten(0, 1)).unflatten(0, states.shape[:2])
        if not torch.isfinite(found).all():
            check_weights(self._model)
            raise NumericalError(f"the outputs hold NaN or infinity in {found.dtype}: load the model in a wider dtype")
        return found


def _same(one: Reading, other: Reading) -> bool:
    """Whether two readings want the same outputs of the same rows."""

    def same(a: Tensor | None, b: Tensor | None) -> bool:
        return a is b or (a is not None and b is not None and torch.equal(a, b))

    return same(one.rows, other.rows) and same(one.outputs, other.outputs)


def _read_row(state: Tensor, read: Read) -> Tensor:
    """What a head reads by itself of the states ``[b, i, d]``: ``[b, d]``."""
    if isinstance(read, Tensor):
        return state[torch.arange(len(state), device=state.device), read.to(state.device)]
    if isinstance(read, Pooled):
        raise ValueError("a head that reads means of ranges is run with the model, not by itself")
    return state.mean(1) if isinstance(read, str) else state[:, read]


def check_weights(model: nn.Module) -> None:
    """Name the weight that is not finite, if one is.

    Raises:
        NumericalError: if there is one.
    """
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise NumericalError(f"the weight {name!r} holds NaN or infinity: reload or repair the model")
