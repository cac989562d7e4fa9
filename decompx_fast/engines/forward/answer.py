"""What the forward engine answers when the state has gone through all layers: scores, by the head, at what it reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...ops.shares import safe_norm
from ..attribution import Attribution
from ..bias import Rule
from ..blocks import wide
from ..head import through_head
from ..reach import equal_shares_at_head
from ..terms import close

if TYPE_CHECKING:
    from .propagation import Propagation


def answer(run: Propagation) -> Attribution:
    """The scores at the rows that the head reads, in float32 at least."""
    rows = _read(run)  # [b, r, k, d]
    if not run.config.head:
        rows = run.head.reading.together(rows.to(wide(run.dtype)))
        true = run.output if run.held is None else run.output[:, list(run.held)]
        parts, norms = run.x.sum(2, dtype=rows.dtype), safe_norm(rows)
        if run.shard is not None:
            parts, norms = run.shard.exchange.sum(parts), run.shard.gather(norms, 2)
        gap = (parts - true).abs().amax((1, 2)).double()
        return Attribution(run.head.reading.pick_rows(norms.transpose(1, 2)), None, gap, run.stages)
    scores, bias_token = through_head(
        rows, run.head, run.config, partial(_rule_at_head, run), partial(_keep_pooled, run)
    )
    if run.shard is not None:
        scores = run.shard.gather(scores, 1)[:, : run.total - run.sharing.collects]
    return close(scores, bias_token, run.linearization, run.terms, run.stages)


def _read(run: Propagation) -> Tensor:
    """What the head reads, ``[b, r, k, d]``."""
    return read_state(run) if run.sum is None else run.sum.total


def read_state(run: Propagation) -> Tensor:
    """What the head reads of the state."""
    dtype = None if run.head.reading.averaged else wide(run.dtype)  # of all, row after row is made wider
    return of_sources(run, lambda x: run.head.read(x, run.held, dtype))


def of_sources(run: Propagation, read: Callable[[Tensor], Tensor]) -> Tensor:
    """What is read of the state ``[b, i, k, d]``, source by source, ``[b, r, k, d]``."""
    if not run.storage.in_blocks or run.held is not None:
        return read(run.x)
    most = run.plan.blocks.sources
    return torch.cat([read(run.x[:, :, some]) for some in run.storage.by_sources(most, run.x)], dim=2)


def _rule_at_head(run: Propagation, name: str) -> Rule:
    """How a rule shares biases among the sources of what the head reads."""
    shard = run.shard
    if shard is not None and run.sharing.collects and name != "bias_token":
        shard = dataclasses.replace(shard, total=run.total - 1)  # what was collected is shared by the tokens alone
    if name != "equal":
        return Rule(name, shard=shard)
    n_sources, rows = run.total - run.sharing.collects, run.head.reading.rows
    shares = equal_shares_at_head(run.reach, rows, run.member, n_sources, wide(run.dtype))
    return Rule(name, shares if shard is None else shard.columns(shares), shard)


def _keep_pooled(run: Propagation, pooled: Tensor) -> None:
    if "pooler" in run.config.stages:
        alone, stage = run.terms is None or run.terms.positions is None, run.as_stage(pooled)
        run.stages[f"pooler.{run.linearization.num_layers - 1}"] = stage.squeeze(1) if alone else stage
