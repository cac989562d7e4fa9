"""What a call would need: the plan of the engine that would answer it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..config import DecompXConfig
from ..engines.adjoint.plan import AdjointPlan
from ..engines.choose import Execution, cheaper_engine, choose_engine, records
from ..engines.forward.plan import Plan, plan
from ..engines.memory import available_bytes
from ..engines.path_plan import PathPlan
from ..engines.shape import ModelShape
from ..errors import OptionError
from ..linearize.linearization import specification
from ..linearize.spec import ModelSpec
from ..request.batching import inputs_at_once
from ..request.targets import resolve_targets
from .call import Call
from .checks import check_dtype
from .explained_model import ExplainedModel
from .job import COLUMNS_RECKONED, Job
from .path_job import PathJob


@dataclass(frozen=True)
class _Sizes:
    """Of what is planned: tokens of an input, groups of them, inputs at once, directions that would be pulled back, and
    processes."""

    tokens: int
    sources: int | None
    batch: int
    directions: int
    ranks: int


def plan_call(
    explainer: ExplainedModel,
    tokens: int,
    *,
    sources: int | None,
    batch: int,
    ranks: int,
    config: DecompXConfig,
    call: Call,
) -> Plan | AdjointPlan | PathPlan:
    """As :meth:`decompx_fast.DecompX.plan` says."""
    _check_sizes(tokens, batch, sources, ranks)
    execution = call.execution()
    spec = specification(explainer.model, explainer.copies)
    if call.steps is not None:
        return _along_paths(explainer, spec, config, call, tokens, sources or tokens, batch, ranks)
    engine = explainer.engine if call.engine is None else call.engine
    chosen = choose_engine(engine, config, grouped=sources is not None, biased=spec.has_bias)
    _refuse_reference(chosen)
    shape, directions = _columns(explainer, spec, config, call.targets, tokens, batch)
    if engine == "auto" and chosen == "adjoint":
        chosen = cheaper_engine(shape, config, tokens=tokens, sources=sources, directions=directions)
    sizes = _Sizes(tokens, sources, batch, directions, ranks)
    dtype = check_dtype(call.dtype) or explainer.dtype
    return _plan(explainer, spec, shape, chosen, config, dtype, execution, sizes)


def _along_paths(
    explainer: ExplainedModel,
    spec: ModelSpec,
    config: DecompXConfig,
    call: Call,
    tokens: int,
    sources: int,
    batch: int,
    ranks: int,
) -> PathPlan:
    """The plan of all that :class:`PathJob` runs."""
    job = call.job(explainer, config, spec)[0]
    assert isinstance(job, PathJob)
    if ranks > 1:
        raise OptionError(f"ranks={ranks} and steps={call.steps}: versions of a text are explained in one process")

    def of(one: Job, count: int) -> Plan | AdjointPlan:
        engine, dtype = one.engine_for(tokens, None), one.dtype
        _refuse_reference(engine)
        sizes = _Sizes(tokens, None, count, one.columns, 1)
        return _plan(explainer, spec, one.shape, engine, one.config, dtype, one.execution, sizes)

    along, sets = job.versions.of_column(0), job.versions
    columns, steps = len(job.whole.targets.names), min(job.steps, sources)
    together = [inputs_at_once(one.bytes_of_size(tokens, None)) for one in (along, sets)]
    return PathPlan(
        whole=of(job.whole, batch),
        along=of(along, min(batch, together[0])),
        sets=of(sets, min(batch * job.steps, together[1])),
        versions_along=batch * columns * steps,
        versions_of_sets=batch * job.steps,
    )


def _plan(
    explainer: ExplainedModel,
    spec: ModelSpec,
    shape: ModelShape,
    engine: str,
    config: DecompXConfig,
    dtype: torch.dtype | None,
    execution: Execution,
    sizes: _Sizes,
) -> Plan | AdjointPlan:
    """Of one engine."""
    model_dtype = next(explainer.model.parameters()).dtype
    wanted = dtype or (torch.float64 if model_dtype == torch.float64 else torch.float32)
    limit = spec.limits.positions
    if engine == "adjoint":
        constants = wanted if wanted.itemsize >= 4 else torch.float32
        free = available_bytes(explainer.device)
        return AdjointPlan(
            shape, sizes.tokens, sizes.batch, sizes.directions, constants, config, explainer.device, free, limit
        )
    return plan(
        shape,
        sizes.tokens,
        sizes.sources,
        sizes.batch,
        dtype=wanted,
        config=config,
        path=execution.path,
        backend=execution.backend,
        recorded=records("forward", sizes.tokens),
        workspace_bytes=execution.workspace_bytes,
        device=explainer.device,
        limit=limit,
        ranks=sizes.ranks,
        storage=execution.storage,
        folder=execution.folder,
    )


def _refuse_reference(engine: str) -> None:
    if engine == "reference":
        raise OptionError("the reference engine has no plan: use engine='forward' for the plan of the forward engine")


def _check_sizes(tokens: int, batch: int, sources: int | None, ranks: int) -> None:
    sizes = {"tokens": tokens, "batch": batch, "sources": 1 if sources is None else sources, "ranks": ranks}
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{name}={value!r}: use a whole number from 1")
    if sources is not None and sources > tokens:
        raise OptionError(f"sources={sources} groups cannot be made of tokens={tokens}: use at most as many")


def _columns(
    explainer: ExplainedModel, spec: ModelSpec, config: DecompXConfig, targets: Any, tokens: int, batch: int
) -> tuple[ModelShape, int]:
    """The model's shape with the rows that are read, and how many directions would be pulled back."""
    if explainer.compares:
        shape = ModelShape.from_spec(spec)
        return shape, shape.classes
    if explainer.problem_type == "positions":
        directions = COLUMNS_RECKONED if targets is None else len(targets) if isinstance(targets, list) else 1
        return ModelShape.from_spec(spec, rows=min(directions * batch, tokens), columns=directions), directions
    return ModelShape.from_spec(spec), resolve_targets(targets, explainer.labels).pulled(config)
