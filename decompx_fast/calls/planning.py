"""What a call would need: the plan of the engine that would answer it."""

from __future__ import annotations

from typing import Any

import torch

from ..config import DecompXConfig
from ..engines.adjoint.plan import AdjointPlan
from ..engines.choose import Execution, cheaper_engine, choose_engine, records
from ..engines.forward.plan import Plan, plan
from ..engines.memory import available_bytes
from ..engines.shape import ModelShape
from ..errors import OptionError
from ..linearize.linearization import specification
from ..linearize.spec import ModelSpec
from ..request.targets import resolve_targets
from .explained_model import ExplainedModel
from .job import COLUMNS_RECKONED


def plan_call(
    explainer: ExplainedModel,
    tokens: int,
    *,
    sources: int | None,
    batch: int,
    engine: str,
    targets: Any,
    dtype: torch.dtype | None,
    execution: Execution,
    ranks: int,
    config: DecompXConfig,
) -> Plan | AdjointPlan:
    """As :meth:`decompx_fast.DecompX.plan` says."""
    _check_sizes(tokens, batch, sources, ranks)
    spec = specification(explainer.model, explainer.copies)
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
