"""Layers with a narrower state beside the residual stream, in the forward engine (:mod:`...linearize.narrow`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...linearize.layer import LinearizedLayer, StateMap
from ..blocks import blocks, matmul
from .attention import attend_, attend_row
from .direct import at_rows, finish_sublayer_
from .segments import attention_of, rows_are_cheaper
from .sharing import PendingBias


def has_narrow(layer: LinearizedLayer) -> bool:
    """Whether a layer has such a state."""
    return any(isinstance(sublayer.ops[0], StateMap) for sublayer in layer.sublayers)


def apply_narrow(run: Any, layer: LinearizedLayer, *, first: bool, positions: Sequence[int] | None = None) -> None:
    """Move the state through a layer of this form: narrow, sublayers, and perhaps widen.

    Args:
        run: the engine's run, whose state is moved in place.
        layer: whose first sublayer is the way in and whose last is the way out; without one the state goes on as the
            narrower one.
        first: whether the state is still the embedding.
        positions: of a last layer, those that are read: where that costs less, nothing else is computed, and they are
            all that remains of the state.
    """
    if first:
        run._put_embedding()
    steps = [run._step(sublayer) for sublayer in layer.sublayers]
    ride = layer.starts and run.config.variant == "released"
    if positions is not None and _rows_are_cheaper(run, steps, len(positions)):
        _to_rows(run, steps, positions, ride=ride)
        return
    h, pending = _narrowed(run, steps[0]), None
    widens = _widens(steps)
    for step in steps[1:-1] if widens else steps[1:]:
        if step.sublayer.has_attention:
            source = run.x if step.sublayer.reads_wide else h
            pending = attend_(source, attention_of(step.sublayer), run.mixing, ride=ride, out=h)
        for rows in _blocks(run, h):
            _finish(run, step, h, rows, rows, pending=pending)
        pending = None
    if not widens:
        run.x = h
        return
    for rows in _blocks(run, run.x, h):
        _widen_(run, steps[-1], run.x, h, rows, rows)


def _widens(steps: Sequence[Any]) -> bool:
    """Whether the last of these is the way out of the narrower state."""
    return isinstance(steps[-1].sublayer.ops[0], StateMap)


def _rows_are_cheaper(run: Any, steps: Sequence[Any], wanted: int) -> bool:
    """Whether so many rows cost less one by one: where one attention is all that looks at other positions."""
    attentions = [attention_of(step.sublayer) for step in steps if step.sublayer.has_attention]
    n, d = run.x.shape[1], run.x.shape[3]
    return len(attentions) == 1 and rows_are_cheaper(wanted, n, d, attentions[0].heads)


def _to_rows(run: Any, steps: Sequence[Any], positions: Sequence[int], *, ride: bool) -> None:
    """The same for some positions, which are all that remains of the state."""
    reads_wide = any(step.sublayer.has_attention and step.sublayer.reads_wide for step in steps)
    whole = None if reads_wide else _narrowed(run, steps[0])
    rows = [_row_after(run, steps, position, whole, ride=ride) for position in positions]
    run.x = rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
    run.held = tuple(positions)


def _row_after(run: Any, steps: Sequence[Any], position: int, whole: Tensor | None, *, ride: bool) -> Tensor:
    """One position after the layer, ``[b, 1, k, d]``; ``whole`` is the narrower state, if an attention reads it."""
    b, n = run.x.shape[:2]
    x = run.x[:, position : position + 1].clone()
    blocks_of_items = [
        (items, slice(items.start * n + position, (items.stop - 1) * n + position + 1, n))
        for items in blocks(b, run.plan.blocks.direct_rows)
    ]
    if whole is None:
        h: Tensor = x.new_empty(*x.shape[:3], steps[0].sublayer.ops[0].weight.shape[1])
        for items, constants in blocks_of_items:
            _narrow_(run, steps[0], x, h, items, constants)
    else:
        h = whole[:, position : position + 1].clone()
    widens = _widens(steps)
    for step in steps[1:-1] if widens else steps[1:]:
        branch, pending = None, None
        if step.sublayer.has_attention:
            source = run.x if whole is None else whole
            branch, pending = attend_row(source, position, attention_of(step.sublayer), run.mixing, ride=ride)
        for items, constants in blocks_of_items:
            _finish(run, step, h, items, constants, pending=pending, branch=branch)
    if not widens:
        return h
    for items, constants in blocks_of_items:
        _widen_(run, steps[-1], x, h, items, constants)
    return x


def _blocks(run: Any, *states: Tensor) -> Iterator[slice]:
    blocks_of_rows: Iterator[slice] = run.storage.by_rows(run.plan.blocks.direct_rows, *states)
    return blocks_of_rows


def _narrowed(run: Any, step: Any) -> Tensor:
    """``H <- norm(X W + b)`` of all positions, ``[b, i, k, t]``."""
    h: Tensor = run.storage.empty(run.x, *run.x.shape[:3], step.sublayer.ops[0].weight.shape[1])
    for rows in _blocks(run, run.x, h):
        _narrow_(run, step, run.x, h, rows, rows)
    return h


# Below, ``rows`` are some of the state that is given, and ``constants`` what these are among all positions.


def _narrow_(run: Any, step: Any, x: Tensor, h: Tensor, rows: slice, constants: slice) -> None:
    """``H <- norm(X W + b)``, into ``h``."""
    op, flat = step.sublayer.ops[0], h.flatten(0, 1)[None]
    matmul(x.flatten(0, 1)[None, rows], op.weight, out=flat[:, rows])
    sharing = step.after.at(constants)
    sharing.add_(flat[:, rows], op.bias)
    sharing.norm_(flat[:, rows], at_rows(step.sublayer, constants).post_norm if run.config.ln2 else None)


def _finish(
    run: Any,
    step: Any,
    h: Tensor,
    rows: slice,
    constants: slice,
    *,
    pending: PendingBias | None = None,
    branch: Tensor | None = None,
) -> None:
    """All that is position-wise of a sublayer on the narrower state."""
    finish_sublayer_(
        h.flatten(0, 1)[None, rows],
        at_rows(step.sublayer, constants),
        run.config,
        step.after.at(constants),
        run.workspace,
        before=step.before.at(constants),
        pending=None if pending is None else pending.at(rows),
        branch=None if branch is None else branch.flatten(0, 1)[None, rows],
    )


def _widen_(run: Any, step: Any, x: Tensor, h: Tensor, rows: slice, constants: slice) -> None:
    """``X <- norm(X + H W + b)``, in place."""
    op, x, flat = step.sublayer.ops[0], x.flatten(0, 1)[None], h.flatten(0, 1)[None]
    (branch,) = run.workspace.take((1, rows.stop - rows.start, x.shape[2], x.shape[3]))
    matmul(flat[:, rows], op.weight, out=branch)
    norm = at_rows(step.sublayer, constants).post_norm if run.config.ln2 else None
    step.after.at(constants).add_norm_(x[:, rows], branch, op.bias, norm)
