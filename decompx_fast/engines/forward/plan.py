"""What an explanation costs, and in which blocks it runs, before anything is allocated.

The engine takes the path and the blocks of a plan as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ...bias_rules import FUNCTIONAL_RULES
from ...config import LINEAR_BIAS_RULES, DecompXConfig
from ...errors import OptionError
from ...ops import usable
from ...ops.backends import native, product_choices, products
from ..adjoint.plan import AdjointPlan
from ..blocks import wide
from ..memory import available_bytes
from ..plan_text import PlanText, gib
from ..shape import ModelShape
from ..shard import shard_width
from .costs import Blocks, Costs
from .direct import is_one_op
from .fitting import choose_blocks

__all__ = ["PATHS", "Blocks", "ModelShape", "Plan", "plan", "rule_refusal"]

PATHS = ("auto", "direct", "operator")


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
    limit: int | None = None,
    ranks: int = 1,
    ranks_here: int = 1,
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
        workspace_bytes: what all but the state should fit in; ``None`` for what :func:`.fitting.choose_blocks` finds.
            Where linearising a layer needs more, it takes that.
        device: where it runs.
        available: free bytes there; ``None`` to ask the system.
        recorded: whether the linearisation will hold what the model multiplied, which then counts too.
        limit: how many positions the model has; ``None`` for any number.
        ranks: among how many processes the sources are divided.
        ranks_here: how many of these share the free memory.

    Returns:
        The plan; its ``check()`` raises where it does not fit.

    Raises:
        OptionError: for a path that does not exist, or that the model or the rule does not have.
    """
    device = torch.device(device)
    config = DecompXConfig() if config is None else config
    available = available_bytes(device) if available is None else available
    again = functools.partial(
        plan,
        shape=shape,
        n_tokens=n_tokens,
        n_sources=n_sources,
        batch=batch,
        dtype=dtype,
        config=config,
        path=path,
        backend=backend,
        workspace_bytes=workspace_bytes,
        device=device,
        available=available,
        recorded=recorded,
        limit=limit,
        ranks=ranks,
        ranks_here=ranks_here,
    )
    costs = _costs(shape, n_tokens, n_sources, batch, dtype, config, backend, device, recorded=recorded, ranks=ranks)
    chosen = _choose_path(costs, path, _operator_weight(costs, device))
    budget, blocks = choose_blocks(costs, chosen, workspace_bytes, device)
    free = None if available is None else available // ranks_here
    return Plan(costs, chosen, blocks, budget, device, free, again, limit)


def _costs(
    shape: ModelShape,
    n_tokens: int,
    n_sources: int | None,
    batch: int,
    dtype: torch.dtype,
    config: DecompXConfig,
    backend: str,
    device: torch.device,
    *,
    recorded: bool,
    ranks: int,
) -> Costs:
    """The request as formulas, with what this machine has for it."""
    total = (n_tokens if n_sources is None else n_sources) + (config.bias == "bias_token")
    kernels, in_native = _has_kernels(backend, device, dtype), _has_native(backend, device, dtype)
    return Costs(
        shape=shape,
        n=n_tokens,
        k=shard_width(total, ranks),
        ranks=ranks,
        total=total,
        batch=batch,
        grouped=n_sources is not None,
        dtype=dtype,
        config=config,
        twins=not (kernels or (in_native and n_tokens <= native.MIXED_POSITIONS)),
        row_twins=not (kernels or in_native),
        one_op=is_one_op(config, device, dtype, backend),
        recorded=recorded,
        widens=_kinds_by("widened", device, dtype),
        copies=_kinds_by("onednn", device, dtype),
        lays_out=_kinds_by("native", device, dtype),
        wide_copies=_kinds_by("onednn", device, wide(dtype)),
        wide_lays_out=_kinds_by("native", device, wide(dtype)),
    )


def rule_refusal(config: DecompXConfig) -> str | None:
    """Why the operator path cannot be taken with these options, or ``None``."""
    if config.bias not in FUNCTIONAL_RULES:
        return f"bias={config.bias!r} needs the norms of the vectors"
    return None if config.ffn else "ffn=False leaves no network to fold in"


#: How much longer an operation takes on the operator path, which multiplies in float32, a position at a time: where the
#: direct path multiplies half precisions as such, and where its float32 goes through our kernels. For K = 512 and the
#: sizes of BERT-base, a position took a core of a Zen 5 24.8 ms against 10.5, and 26.1 against 21.9.
HALF_OPERATOR, NATIVE_OPERATOR = 2.7, 1.4


def _operator_weight(costs: Costs, device: torch.device) -> float:
    """How much an operation of the operator path counts beside one of the direct path."""
    if device.type != "cpu":
        return 1.0
    if costs.item < costs.wide:
        return 1.0 if "large" in costs.widens else HALF_OPERATOR
    return NATIVE_OPERATOR if "large" in costs.lays_out else 1.0


def _choose_path(costs: Costs, path: str, operator_weight: float) -> str:
    if path not in PATHS:
        raise OptionError(f"path={path!r} is not a path: use one of {', '.join(map(repr, PATHS))}")
    refusal = rule_refusal(costs.config)
    if refusal is None and not costs.shape.foldable:
        refusal = "its layers are not an attention and a plain network, each with a norm after the residual only"
    if path == "operator" and refusal is not None:
        raise OptionError(f"path='operator' cannot be taken, since {refusal}: use path='auto' or 'direct'")
    if path != "auto":
        return path
    direct, operator = (costs.flops(name)["position-wise"] for name in ("direct", "operator"))  # all else is the same
    return "operator" if refusal is None and operator_weight * operator < direct else "direct"


def _has_kernels(backend: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the ops will run as kernels, which keep their intermediate results on the chip."""
    if backend == "auto":
        return device.type == "cuda" and dtype is not torch.float64 and usable("triton", device)[0]
    return backend == "triton"


def _has_native(backend: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the ops on single vectors, and the mixing of short inputs, will run as kernels of the CPU."""
    return backend in ("auto", "native") and dtype in native.DTYPES and usable("native", device)[0]


def _kinds_by(way: str, device: torch.device, dtype: torch.dtype) -> frozenset[str]:
    """The kinds of products that are made in this way."""
    return frozenset(
        kind for kind in product_choices.KINDS if device.type == "cpu" and products.way(dtype, kind) == way
    )


@dataclass(frozen=True, repr=False)
class Plan(PlanText):
    """What an explanation will cost, and how it runs.

    Attributes:
        costs: the request, as formulas.
        path: ``direct`` or ``operator``.
        blocks: how much is computed at once.
        workspace_bytes: what all but the state was to fit in.
        device: where it runs.
        available_bytes: what is free there, ``None`` if that is unknown.
        again: makes the plan of the same request, but for what is given by name, as for :func:`plan`.
        limit: how many positions the model has; ``None`` for any number.
    """

    costs: Costs
    path: str
    blocks: Blocks
    workspace_bytes: int
    device: torch.device
    available_bytes: int | None
    again: Callable[..., Plan] = dataclasses.field(compare=False)
    limit: int | None = None

    @property
    def n(self) -> int:
        """Positions of an input."""
        return self.costs.n

    @property
    def state_bytes(self) -> int:
        """The decomposed state."""
        return self.costs.state_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that is allocated at one time, the model's weights and the linearisation's inputs aside."""
        return self.costs.peak_bytes(self.blocks, self.path)

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
    def rows(self) -> tuple[tuple[str, str], ...]:
        """What it says, line by line."""
        costs = self.costs
        beside = self.peak_bytes - self.state_bytes - costs.kept_bytes()
        return (
            ("engine", "forward"),
            ("path", self.path),
            ("input", f"{costs.batch} x {costs.n} tokens, {costs.k} sources each, in {_name(costs.dtype)}"),
            ("peak", f"{gib(self.peak_bytes)} of tensors beside the model"),
            ("  state", gib(self.state_bytes)),
            ("  workspace", f"{gib(beside)}, to fit in {gib(self.workspace_bytes)}"),
            ("  kept", gib(costs.kept_bytes())),
            *self.rows_of_memory(),
            ("operations", f"{self.total_flops / 1e9:,.1f} GFLOP"),
            *((f"  {name}", f"{flops / 1e9:,.1f}") for name, flops in self.flops.items()),
            *self.rows_of_fit(),
        )

    def needs(self) -> str:
        costs = self.costs
        return (
            f"{costs.batch} x {costs.n} tokens with {costs.k} sources each need {gib(self.peak_bytes)} beside the "
            f"model, {gib(self.state_bytes)} of it for the decomposed state in {_name(costs.dtype)}"
        )

    def find_ways_out(self) -> Iterator[str]:
        """What would fit, the least change first; where this fits, what would need clearly less."""
        yield from _smaller(self)
        if not self.fits:
            yield from _groups(self)
        yield from _adjoint(self)


def _smaller(this: Plan) -> Iterator[str]:
    """All single changes that suffice; where none does, the first of the smallest combinations that do."""
    costs = this.costs
    dtypes = [dtype for dtype in (torch.float32, torch.bfloat16) if dtype.itemsize < costs.dtype.itemsize]
    choices: list[list[tuple[str, object] | None]] = [
        [None, ("workspace_bytes", 1)],
        [None, *([("batch", 1)] if costs.batch > 1 else [])],
        [None, *(("dtype", dtype) for dtype in dtypes)],
    ]
    combinations = [[change for change in some if change is not None] for some in itertools.product(*choices)]
    for size in (1, 2, 3):
        found = False
        for changes in combinations:
            if len(changes) != size:
                continue
            other = this.again(**dict(changes))
            if other.fits and other.peak_bytes < 0.9 * this.peak_bytes:
                yield f"{_in_words([name for name, _ in changes], other)}, {gib(other.peak_bytes)}"
                found = True
                if size > 1:
                    return
        if found or this.fits:
            return


def _in_words(changed: list[str], other: Plan) -> str:
    """How the user asks for these changes, in Python and on the command line."""
    least, dtype = max(other.workspace_bytes >> 20, 1), _name(other.costs.dtype)
    words = {
        "batch": "inputs one at a time (batch_size=1, --batch-size 1)",
        "dtype": f"dtype={dtype} (--dtype {dtype})",
        "workspace_bytes": f"a smaller workspace (workspace_bytes={least} << 20, --workspace {least})",
    }
    return " with ".join(words[name] for name in words if name in changed)


def _groups(this: Plan) -> Iterator[str]:
    """With how many sources it would fit, if with any: by bisection, since more sources seldom need less."""
    if this.available_bytes is None:
        return
    for words, batch in (("", this.costs.batch), (f" with {_in_words(['batch'], this)}", 1)):
        low, high = 0, this.costs.k
        while high - low > 1:
            middle = (low + high) // 2
            fits = this.again(n_sources=middle, batch=batch).fits
            low, high = (middle, high) if fits else (low, middle)
        if low > 0 and this.again(n_sources=low, batch=batch).fits:
            yield f"sources in groups, at most {low} of them (sources='sentence' or 'word', --sources){words}"
            return


def _adjoint(this: Plan) -> Iterator[str]:
    """The engine without a decomposed state, where that fits."""
    costs, config = this.costs, this.costs.config
    if not config.head or config.aggregation != "vector" or config.stages:
        return
    constants = torch.float64 if costs.dtype is torch.float64 else torch.float32
    for batch, words in ((costs.batch, ""), (1, " and inputs one at a time (batch_size=1, --batch-size 1)")):
        plan = AdjointPlan(
            costs.shape,
            costs.n,
            batch,
            costs.shape.classes,
            constants,
            config,
            this.device,
            this.available_bytes,
        )
        if plan.fits and plan.peak_bytes < this.peak_bytes:
            rule = (
                ""
                if config.bias in LINEAR_BIAS_RULES or not costs.shape.biased
                else f" with bias={_one_of(LINEAR_BIAS_RULES)}"
            )
            yield f"engine='adjoint' (--engine adjoint){rule}{words}, {gib(plan.peak_bytes)}: it forms no state"
            return


def _one_of(names: Sequence[str]) -> str:
    return f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
