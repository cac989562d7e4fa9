"""What a call would need: the plan of the engine that would answer it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..config import DecompXConfig
from ..engines.adjoint.plan import AdjointPlan
from ..engines.choose import Execution, cheaper_engine, choose_engine, records
from ..engines.focus_plan import FocusPlan
from ..engines.forward.plan import Plan, plan
from ..engines.memory import available_bytes
from ..engines.path import TRIED
from ..engines.path_plan import PassPlan, PathPlan
from ..engines.shape import ModelShape
from ..errors import OptionError
from ..linearize.linearization import specification
from ..linearize.spec import ModelSpec
from ..request.batching import inputs_at_once
from ..request.targets import resolve_targets
from .call import Call
from .checks import check_dtype
from .explained_model import ExplainedModel
from .focusing import check_focusing, naming_config
from .job import COLUMNS_RECKONED, LIKELIEST
from .path_job import SEARCH, PathJob

#: Of each source that a search tries, versions as long as the text: of the rest, and of what was taken.
WITH_AND_WITHOUT = 2


def plan_call(
    explainer: ExplainedModel,
    tokens: int,
    *,
    sources: int | None,
    focus: int | None,
    batch: int,
    ranks: int,
    config: DecompXConfig,
    call: Call,
) -> Plan | AdjointPlan | FocusPlan | PathPlan:
    """As :meth:`decompx_fast.DecompX.plan` says; ``call`` has what is asked besides."""
    _check_sizes(tokens, batch, sources, focus, ranks)
    spec, targets = specification(explainer.model, explainer.copies), call.targets
    asked: dict[str, Any] = {
        "engine": explainer.engine if call.engine is None else call.engine,
        "dtype": check_dtype(call.dtype) or explainer.dtype,
        "execution": call.execution(),
    }
    plan_of = partial(_plan_of, explainer, tokens, spec=spec, batch=batch, ranks=ranks, **asked)
    if call.steps is not None:
        if focus is not None or ranks > 1:
            other = f"ranks={ranks}" if focus is None else f"focus={focus}"
            raise OptionError(
                f"{other} and steps={call.steps}: all versions of a text are explained token by token and in one "
                "process: leave one of them out"
            )
        job = call.job(explainer, config)
        assert isinstance(job, PathJob)
        return _along_paths(job, plan_of, targets, tokens, tokens if sources is None else sources, batch)
    if focus is not None:
        check_focusing(spec, config)
    if focus is None or focus >= tokens:
        return plan_of(sources=sources, targets=targets, config=config)
    explaining = plan_of(sources=min(2 * focus, tokens), targets=targets, config=config)
    if targets is None and explainer.problem_type != "positions" and spec.classes > COLUMNS_RECKONED:
        targets = [*range(LIKELIEST)]
    naming = plan_of(sources=None, targets=targets, config=naming_config(config), engine="adjoint")
    assert isinstance(naming, AdjointPlan)
    return FocusPlan(focus, naming, explaining)


def _along_paths(
    job: PathJob,
    plan_of: Callable[..., Plan | AdjointPlan],
    targets: Any,
    tokens: int,
    sources: int,
    batch: int,
) -> PathPlan:
    """The plan of all that a job runs for so many texts of so many sources, with ``plan_of`` for each part of it."""
    rule, columns = job.versions.config, len(job.whole.targets.names)
    of_one, of_all = (
        inputs_at_once(one.bytes_of_size(tokens, None)) for one in (job.versions.of_column(0), job.versions)
    )
    whole = plan_of(sources=None, targets=targets, config=job.whole.config)
    if job.steps == SEARCH:
        together = min(batch * columns * WITH_AND_WITHOUT * TRIED, of_all)
        beginning = plan_of(sources=None, targets=0, config=naming_config(rule), engine="adjoint", batch=together)
        assert isinstance(beginning, AdjointPlan)
        passes = PassPlan.of(beginning)
        return PathPlan(whole, passes, passes, batch * job.versions_along(sources, columns), 0)
    return PathPlan(
        whole=whole,
        along=plan_of(sources=None, targets=0, config=rule, batch=min(batch, of_one)),
        sets=plan_of(sources=None, targets=targets, config=rule, batch=min(batch * max(job.rounds, default=1), of_all)),
        versions_along=batch * job.versions_along(sources, columns),
        versions_of_sets=batch * job.versions_of_sets,
    )


def _plan_of(
    explainer: ExplainedModel,
    tokens: int,
    *,
    spec: ModelSpec,
    sources: int | None,
    batch: int,
    engine: str,
    targets: Any,
    dtype: torch.dtype | None,
    execution: Execution,
    ranks: int,
    config: DecompXConfig,
) -> Plan | AdjointPlan:
    """The plan of one engine."""
    chosen = choose_engine(engine, config, grouped=sources is not None, biased=spec.has_bias)
    if chosen == "reference":
        raise OptionError("the reference engine has no plan: use engine='forward' for the plan of the forward engine")
    shape, directions = _columns(explainer, spec, config, targets, tokens, batch)
    if engine == "auto" and chosen == "adjoint":
        chosen = cheaper_engine(shape, config, tokens=tokens, sources=sources, directions=directions)
    model_dtype = next(explainer.model.parameters()).dtype
    wanted = dtype or (torch.float64 if model_dtype == torch.float64 else torch.float32)
    limit = spec.limits.positions
    if chosen == "adjoint":
        constants = wanted if wanted.itemsize >= 4 else torch.float32
        free = available_bytes(explainer.device)
        return AdjointPlan(shape, tokens, batch, directions, constants, config, explainer.device, free, limit)
    return plan(
        shape,
        tokens,
        sources,
        batch,
        dtype=wanted,
        config=config,
        path=execution.path,
        backend=execution.backend,
        recorded=records("forward", tokens),
        workspace_bytes=execution.workspace_bytes,
        device=explainer.device,
        limit=limit,
        ranks=ranks,
        storage=execution.storage,
        folder=execution.folder,
    )


def _check_sizes(tokens: int, batch: int, sources: int | None, focus: int | None, ranks: int) -> None:
    sizes = {"tokens": tokens, "batch": batch, "sources": sources, "focus": focus, "ranks": ranks}
    for name, value in sizes.items():
        may_miss = name in ("sources", "focus") and value is None
        if not may_miss and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise OptionError(f"{name}={value!r}: use a whole number from 1")
    if sources is not None and focus is not None:
        raise OptionError(f"sources={sources} and focus={focus} both say how many sources there are: give one of them")
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
