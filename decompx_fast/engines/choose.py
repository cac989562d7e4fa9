"""Which engine answers, and asking it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from ..config import LINEAR_BIAS_RULES, DecompXConfig
from ..errors import OptionError, PlanError
from ..linearize.layer import Linearization
from ..ops import registry
from . import reference
from .accuracy import score_error
from .adjoint import run as adjoint
from .adjoint.plan import AdjointPlan
from .attribution import Attribution
from .exchange import Exchange
from .forward import run as forward
from .forward.checks import check_options
from .forward.plan import PATHS, ModelShape, plan
from .storage import check_storage
from .terms import Terms

EngineChoice = Literal["auto", "reference", "forward", "adjoint"]
ENGINES: tuple[EngineChoice, ...] = ("auto", "reference", "forward", "adjoint")
CHECKS = ("standard", "thorough")


#: For inputs of up to so many tokens the forward engine's linearisation is recorded too: to compute each layer a second
#: time from its weights is then a good part of the whole, and what is held instead is little.
RECORDED_TOKENS = 64


#: Where the adjoint engine can answer too, the forward engine is not chosen for a state of more than so many bytes.
STATE_BYTES = 1 << 30


def records(engine: str, tokens: int) -> bool:
    """Whether the linearisation is made of what the model multiplies (:mod:`..linearize.record`)."""
    return engine == "adjoint" or (engine == "forward" and tokens <= RECORDED_TOKENS)


@dataclass(frozen=True)
class Execution:
    """How the forward engine computes.

    Attributes:
        path: ``direct``, ``operator`` or ``auto``, as for :func:`decompx_fast.engines.forward.run.attribute`.
        backend: of the ops: ``auto``, or a backend's name.
        workspace_bytes: memory it may take besides the state; ``None`` for its default.
        exchange: with the processes among which the sources are divided; ``None``: this one has all.
        storage: of the state, ``memory`` or ``disk``.
        folder: of the state on disk; ``None``: the system's for temporary files.
    """

    path: str = "auto"
    backend: str = "auto"
    workspace_bytes: int | None = None
    exchange: Exchange | None = None
    storage: str = "memory"
    folder: str | None = None

    def __post_init__(self) -> None:
        check_storage(self.storage, self.folder)
        if self.path not in PATHS:
            raise OptionError(f"path={self.path!r} is not a path: use one of {', '.join(map(repr, PATHS))}")
        names = registry.backend_names()
        if self.backend not in names:
            raise OptionError(f"backend={self.backend!r} is not a backend: use one of {', '.join(map(repr, names))}")
        size = self.workspace_bytes
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise OptionError(f"workspace_bytes={size!r}: use a whole number of bytes from 1, or None")


def choose_engine(engine: str, config: DecompXConfig, *, grouped: bool, rows: bool = False, biased: bool = True) -> str:
    """The engine that will compute: the named one, or the fastest that can answer; see also :func:`cheaper_engine`.

    Args:
        engine: one of :data:`ENGINES`.
        config: what is asked.
        grouped: whether sources are groups of tokens.
        rows: whether target positions are asked for.
        biased: whether the model has biases to share.

    Raises:
        OptionError: if there is no such engine, or the named one cannot answer, with the reason.
    """
    if engine not in ENGINES:
        raise OptionError(f"engine={engine!r} is not an engine: use one of {', '.join(map(repr, ENGINES))}")
    if rows and engine == "reference":
        raise OptionError("positions needs the forward engine: leave engine out, or use stages='encoder' instead")
    refusal = adjoint_refusal(without_shares(config, biased=biased), grouped=grouped, rows=rows)
    if engine == "adjoint" and refusal is not None:
        raise OptionError(f"engine='adjoint' cannot answer: {refusal}")
    if engine == "forward" or rows:
        check_options(config)
    if rows:
        return "forward"
    if engine != "auto":
        return engine
    if refusal is None:
        return "adjoint"
    try:
        check_options(config)
    except OptionError:
        return "reference"
    return "forward"


#: The adjoint engine tells more, so ``auto`` leaves it only where the forward engine needs so many times fewer
#: operations.
CLEARLY_CHEAPER = 2

#: Up to so many directions cost little in any case, and ``auto`` stays with the engine that tells more.
FEW_DIRECTIONS = 16


@functools.lru_cache(maxsize=512)
def cheaper_engine(
    shape: ModelShape, config: DecompXConfig, *, tokens: int, sources: int | None, directions: int
) -> str:
    """``adjoint`` or ``forward``, for a question that both answer: one pull-back for each direction, or one vector for
    each source at every position.

    Args:
        shape, config: the model and the options.
        tokens: of an input.
        sources: how many groups they form; ``None``: each is its own.
        directions: how many are explained.
    """
    if directions <= max(FEW_DIRECTIONS, tokens if sources is None else sources):
        return "adjoint"
    cpu = torch.device("cpu")  # operations are the same everywhere
    carried = plan(shape, tokens, sources, config=config, device=cpu)
    pulled = AdjointPlan(shape, tokens, 1, directions, torch.float32, config, cpu)
    by_adjoint = pulled.total_flops - pulled.flops["forward pass"]
    clearly = CLEARLY_CHEAPER * carried.total_flops < by_adjoint
    return "forward" if clearly and carried.state_bytes <= STATE_BYTES else "adjoint"


def measure_error(
    result: Attribution,
    engine: str,
    linearization: Remade,
    config: DecompXConfig,
    *,
    sources: Tensor | None,
    terms: Terms | None,
    execution: Execution,
) -> Tensor:
    """What the scores of :func:`attribute` are wrong by, ``[b]``; arguments as there.

    Raises:
        PlanError: if the decomposition does not fit in float64.
    """
    plain = config.replace(stages=[])

    def again(wider: Linearization) -> Attribution:
        return attribute(
            engine,
            wider,
            plain,
            dtype=torch.float64,
            sources=sources,
            terms=terms,
            execution=replace(execution, backend="auto"),
        )

    try:
        return score_error(result, linearization.again, again, linearization.embedding, linearization.model_dtype)
    except PlanError as error:
        raise PlanError(f"check='thorough' computes once more in float64: {error}") from error


class Remade(Linearization, Protocol):
    """A linearisation that can be made once more from another embedding."""

    @property
    def model_dtype(self) -> torch.dtype: ...

    def again(self, embedding: Tensor) -> Linearization: ...


def without_shares(config: DecompXConfig, *, biased: bool) -> DecompXConfig:
    """What the adjoint engine is asked instead, where a model adds nothing that could be shared: every rule gives the
    same scores then, and that of ``none`` is linear in the inputs.

    Args:
        config: the options.
        biased: whether the model has biases. Tangents of activations have intercepts, which are shared like them.
    """
    if biased or "linear" in (config.activation, config.tanh) or config.bias == "bias_token":
        return config
    return config.replace(bias="none")


def adjoint_refusal(config: DecompXConfig, *, grouped: bool, rows: bool = False) -> str | None:
    """Why the adjoint engine cannot answer, or ``None``: it needs scores that are linear in the inputs."""
    if config.bias not in LINEAR_BIAS_RULES:
        return (
            f"bias={config.bias!r} weighs biases by the vectors; it answers {', '.join(map(repr, LINEAR_BIAS_RULES))}"
        )
    if not config.head or config.aggregation != "vector":
        return "it explains logits, so it needs head=True and aggregation='vector'"
    if rows:
        return "it forms no vectors of target positions; leave positions out"
    if config.stages:
        return "it forms no intermediate stages; leave stages out"
    if grouped and (config.bias == "equal" or config.bias_token_split is not None):
        return "shares among groups are not sums of shares among tokens; use tokens as sources, or another bias rule"
    return None


def attribute(
    engine: str,
    linearization: Linearization,
    config: DecompXConfig,
    *,
    dtype: torch.dtype | None,
    sources: Tensor | None,
    terms: Terms | None,
    execution: Execution,
    positions: Sequence[int] = (),
) -> Attribution:
    """Ask one engine for the scores of some columns.

    Args:
        engine: from :func:`choose_engine`.
        linearization: a model on a batch.
        config: the options.
        dtype: of the decomposed state, where the engine has one.
        sources: ``[b, i]`` group of each token, or ``None``.
        terms: what is asked for; ``None``: all outputs of the head's own reading.
        execution: how the forward engine computes.
        positions: target positions whose vectors are wanted, of the forward engine.

    Returns:
        Scores ``[b, k, m]``; without a head, norms ``[b, k, 1]``.
    """
    if engine == "adjoint":
        result = adjoint.attribute(linearization, config, terms=terms)
        return result if sources is None else _grouped(result, sources)
    if engine == "forward":
        return forward.attribute(
            linearization,
            config,
            dtype=dtype,
            sources=sources,
            terms=terms,
            positions=positions,
            path=execution.path,
            backend=execution.backend,
            workspace_bytes=execution.workspace_bytes,
            exchange=execution.exchange,
            storage=execution.storage,
            folder=execution.folder,
        )
    if execution.storage != "memory":
        raise OptionError(
            f"storage={execution.storage!r} is not in the reference engine, whose state is in memory: use "
            "engine='forward', or leave storage out"
        )
    return reference.attribute(linearization, config, dtype=dtype, sources=sources, terms=terms)


def _grouped(result: Attribution, sources: Tensor) -> Attribution:
    """Scores of groups: where they are linear in the inputs, the sums of those of their tokens."""
    shape = (result.scores.shape[0], int(sources.max()) + 1, result.scores.shape[2])
    index = sources.unsqueeze(-1).expand_as(result.scores)

    def group(values: Tensor) -> Tensor:
        return values.new_zeros(shape).scatter_add_(1, index, values)

    components = {name: group(value) for name, value in result.components.items()}
    return replace(result, scores=group(result.scores), components=components)
