"""What an explanation costs, and in which blocks it runs, before anything is allocated.

The engine takes the path and the blocks of a plan as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from ..config import LINEAR_BIAS_RULES, DecompXConfig
from ..errors import OptionError, PlanError
from ..ops import native, products, usable
from .costs import SMALLEST, Blocks, Costs, gib
from .direct_path import is_one_op
from .fitting import choose_blocks
from .memory import available_bytes
from .shape import ModelShape

__all__ = ["PATHS", "Blocks", "ModelShape", "Plan", "plan", "rule_refusal"]

PATHS = ("auto", "direct", "operator")

#: The rules whose shares are known without the norms of the vectors.
OPERATOR_RULES = ("absdot", "dot", "equal", "cls", "bias_token", "none")


def plan(
    shape: ModelShape,
    n_tokens: int,
    n_sources: int | None = None,
    batch: int = 1,
    *,
    dtype: torch.dtype = torch.float32,
    config: DecompXConfig | None = None,
    path: str = "auto",
    backend: str = "auto",
    workspace_bytes: int | None = None,
    device: torch.device | str = "cpu",
    available: int | None = None,
    recorded: bool = False,
) -> Plan:
    """Plan an explanation by the forward engine.

    Args:
        shape: the model's sizes.
        n_tokens: positions of each input.
        n_sources: how many groups the tokens belong to; ``None``: each token is a source.
        batch: inputs at once.
        dtype: of the decomposed state.
        config: the options; ``None`` for the defaults.
        path: ``direct``, ``operator``, or ``auto`` for the one with fewer operations.
        backend: of the ops: plain PyTorch needs room for intermediate results.
        workspace_bytes: what all but the state should fit in; ``None`` for :func:`.memory.default_workspace`. Where
            one source or one row needs more, it takes that.
        device: where it runs.
        available: free bytes there; ``None`` to ask the system.
        recorded: whether the linearisation will hold what the model multiplied, which then counts too.

    Returns:
        The plan; its ``check()`` raises where it does not fit.

    Raises:
        OptionError: for a path that does not exist, or that the model or the rule does not have.
    """
    device = torch.device(device)
    config = DecompXConfig() if config is None else config
    kernels, in_native = _has_kernels(backend, device, dtype), _has_native(backend, device, dtype)
    costs = Costs(
        shape=shape,
        n=n_tokens,
        k=(n_tokens if n_sources is None else n_sources) + (config.bias == "bias_token"),
        batch=batch,
        grouped=n_sources is not None,
        dtype=dtype,
        config=config,
        twins=not (kernels or (in_native and n_tokens <= native.MIXED_POSITIONS)),
        row_twins=not (kernels or in_native),
        one_op=is_one_op(config, device, dtype, backend),
        recorded=recorded,
        widens=device.type == "cpu" and dtype.itemsize < 4 and products.way(dtype, "large") == "widened",
        copies=device.type == "cpu" and dtype is torch.float32 and products.way(dtype, "large") == "onednn",
    )
    chosen = _choose_path(costs, path)
    budget, blocks = choose_blocks(costs, chosen, workspace_bytes, device)
    return Plan(
        costs=costs,
        path=chosen,
        blocks=blocks,
        workspace_bytes=budget,
        device=device,
        available_bytes=available_bytes(device) if available is None else available,
    )


def rule_refusal(config: DecompXConfig) -> str | None:
    """Why the operator path cannot be taken with these options, or ``None``."""
    if config.bias not in OPERATOR_RULES:
        return f"bias={config.bias!r} needs the norms of the vectors"
    return None if config.ffn else "ffn=False leaves no network to fold in"


def _choose_path(costs: Costs, path: str) -> str:
    if path not in PATHS:
        raise OptionError(f"path={path!r} is not a path: use one of {', '.join(map(repr, PATHS))}")
    refusal = rule_refusal(costs.config)
    if refusal is None and not costs.shape.foldable:
        refusal = "its layers are not an attention and a plain network, each with a norm after the residual only"
    if path == "operator" and refusal is not None:
        raise OptionError(f"path='operator' cannot be taken, since {refusal}: use path='auto' or 'direct'")
    if path != "auto":
        return path
    totals = {name: sum(costs.flops(name).values()) for name in ("direct", "operator")}
    return "operator" if refusal is None and totals["operator"] < totals["direct"] else "direct"


def _has_kernels(backend: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the ops will run as kernels, which keep their intermediate results on the chip."""
    if backend == "auto":
        return device.type == "cuda" and dtype is not torch.float64 and usable("triton", device)[0]
    return backend == "triton"


def _has_native(backend: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the ops on single vectors, and the mixing of short inputs, will run as kernels of the CPU."""
    return backend in ("auto", "native") and dtype in native.DTYPES and usable("native", device)[0]


@dataclass(frozen=True)
class Plan:
    """What an explanation will cost, and how it runs.

    Attributes:
        costs: the request, as formulas.
        path: ``direct`` or ``operator``.
        blocks: how much is computed at once.
        workspace_bytes: what all but the state was to fit in.
        device: where it runs.
        available_bytes: what is free there, ``None`` if that is unknown.
    """

    costs: Costs
    path: str
    blocks: Blocks
    workspace_bytes: int
    device: torch.device
    available_bytes: int | None

    @property
    def state_bytes(self) -> int:
        """The decomposed state."""
        return self.costs.state_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that is allocated at one time, the model's weights and the linearisation's inputs aside."""
        return self.costs.peak_bytes(self.blocks, self.path)

    @property
    def floor_bytes(self) -> int:
        """The same with the smallest blocks."""
        return self.costs.peak_bytes(SMALLEST, self.path)

    @property
    def buffer_numel(self) -> int:
        """Numbers in the buffer that the blocks are cut from."""
        return self.costs.buffer_numel(self.blocks, self.path)

    @property
    def flops(self) -> Mapping[str, int]:
        """Floating-point operations of each part; a multiplication and an addition are two."""
        return self.costs.flops(self.path)

    @property
    def total_flops(self) -> int:
        return sum(self.flops.values())

    @property
    def fits(self) -> bool:
        """Whether the free memory suffices, as far as it is known."""
        return self.available_bytes is None or self.peak_bytes <= self.available_bytes

    @property
    def ways_out(self) -> tuple[str, ...]:
        """What would need less memory, and how much."""
        return tuple(_ways_out(self))

    def check(self) -> None:
        """Refuse what does not fit.

        Raises:
            PlanError: with the numbers and the ways out.
        """
        if self.fits:
            return
        assert self.available_bytes is not None
        costs, ways = self.costs, "; ".join(self.ways_out)
        raise PlanError(
            f"{costs.batch} x {costs.n} tokens with {costs.k} sources each need {gib(self.peak_bytes)} beside the "
            f"model, {gib(self.state_bytes)} of it for the decomposed state in {_name(costs.dtype)}, and "
            f"{gib(self.available_bytes)} are free on {self.device}. Ways out: {ways}"
        )


def _ways_out(this: Plan) -> Iterator[str]:
    costs = this.costs
    if this.floor_bytes < 0.9 * this.peak_bytes:
        yield f"a smaller workspace, down to {gib(this.floor_bytes)} in all"
    if costs.batch > 1:
        yield f"inputs one at a time, {gib(_changed(this, batch=1))}"
    for dtype in (torch.float32, torch.bfloat16):
        if dtype.itemsize < costs.dtype.itemsize:
            yield f"dtype={_name(dtype)}, {gib(_changed(this, dtype=dtype))}"
    groups = _most_sources(this)
    if groups:
        yield f"sources in groups, at most {groups} of them (words, sentences or segments)"
    if costs.config.bias in LINEAR_BIAS_RULES:
        yield "engine='adjoint', which keeps no decomposed state"
    else:
        rules = ", ".join(repr(rule) for rule in LINEAR_BIAS_RULES)
        yield f"engine='adjoint' with one of the bias rules {rules}, which keeps no decomposed state"


def _changed(this: Plan, **changes: object) -> int:
    """The peak of a changed request with the same workspace."""
    costs = dataclasses.replace(this.costs, **changes)  # type: ignore[arg-type]
    return costs.peak_bytes(choose_blocks(costs, this.path, None, this.device)[1], this.path)


def _most_sources(this: Plan) -> int:
    """With how many sources it would fit: by bisection, since more sources never need less."""
    low, high = 0, this.costs.k
    while this.available_bytes is not None and high - low > 1:
        middle = (low + high) // 2
        fits = _changed(this, k=middle, grouped=True) <= this.available_bytes
        low, high = (middle, high) if fits else (low, middle)
    return low - (this.costs.config.bias == "bias_token")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
