"""Layers with a narrower state beside the residual stream, in the forward engine (:mod:`...linearize.narrow`)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...linearize.layer import LinearizedLayer, StateMap
from ..blocks import blocks, matmul
from .attention import attend_
from .direct import at_rows, finish_sublayer_
from .segments import attention_of


def has_narrow(layer: LinearizedLayer) -> bool:
    """Whether a layer has such a state."""
    return any(isinstance(sublayer.ops[0], StateMap) for sublayer in layer.sublayers)


def apply_narrow(run: Any, layer: LinearizedLayer, *, first: bool) -> None:
    """Move the state through a layer of this form: narrow, sublayers, and perhaps widen.

    Args:
        run: the engine's run, whose state is moved in place.
        layer: whose first sublayer is the way in and whose last is the way out; without one the state goes on as the
            narrower one.
        first: whether the state is still the embedding.
    """
    if first:
        run._put_embedding()
    steps = [run._step(sublayer) for sublayer in layer.sublayers]
    ride = layer.index == 0 and run.config.variant == "released"
    h, pending = _narrowed(run, steps[0]), None
    widens = isinstance(steps[-1].sublayer.ops[0], StateMap)
    for step in steps[1:-1] if widens else steps[1:]:
        if step.sublayer.has_attention:
            source = run.x if step.sublayer.reads_wide else h
            pending = attend_(source, attention_of(step.sublayer), run.mixing, ride=ride, out=h)
        _finish(run, step, h, pending)
        pending = None
    if widens:
        _widen_(run, steps[-1], h)
    else:
        run.x = h


def _rows(run: Any) -> Any:
    return blocks(run.x.shape[0] * run.x.shape[1], run.plan.blocks.direct_rows)


def _narrowed(run: Any, step: Any) -> Tensor:
    """``H <- norm(X W + b)``, ``[b, i, k, t]``."""
    op, x = step.sublayer.ops[0], run.x.flatten(0, 1)[None]  # [1, p, k, d]
    h: Tensor = run.x.new_empty(*run.x.shape[:3], op.weight.shape[1])
    flat = h.flatten(0, 1)[None]
    for rows in _rows(run):
        matmul(x[:, rows], op.weight, out=flat[:, rows])
        sharing = step.after.at(rows)
        sharing.add_(flat[:, rows], op.bias)
        sharing.norm_(flat[:, rows], at_rows(step.sublayer, rows).post_norm if run.config.ln2 else None)
    return h


def _finish(run: Any, step: Any, h: Tensor, pending: Any) -> None:
    """All that is position-wise of a sublayer on the narrower state."""
    for rows in _rows(run):
        finish_sublayer_(
            h.flatten(0, 1)[None, rows],
            at_rows(step.sublayer, rows),
            run.config,
            step.after.at(rows),
            run.workspace,
            before=step.before.at(rows),
            pending=None if pending is None else pending.at(rows),
        )


def _widen_(run: Any, step: Any, h: Tensor) -> None:
    """``X <- norm(X + H W + b)``, in place."""
    op, x, flat = step.sublayer.ops[0], run.x.flatten(0, 1)[None], h.flatten(0, 1)[None]
    for rows in _rows(run):
        (branch,) = run.workspace.take((1, rows.stop - rows.start, x.shape[2], x.shape[3]))
        matmul(flat[:, rows], op.weight, out=branch)
        norm = at_rows(step.sublayer, rows).post_norm if run.config.ln2 else None
        step.after.at(rows).add_norm_(x[:, rows], branch, op.bias, norm)
