"""What an explanation costs, and in which blocks it runs, before anything is allocated.

The engine takes the path and the blocks of a plan as they are.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from ...bias_rules import FUNCTIONAL_RULES
from ...config import DecompXConfig
from ...errors import OptionError, PlanError
from ...ops import usable
from ...ops.backends import native, product_choices, products
from ..blocks import wide
from ..memory import available_bytes
from ..plan_text import PlanText, gib, name_of
from ..shape import ModelShape
from ..shard import shard_width
from ..storage import check_storage, default_folder, room_in
from .costs import Blocks, Costs
from .direct import is_one_op
from .fitting import choose_blocks
from .live import thin_rows
from .operations import exchanged_bytes
from .ways_out import ways_out

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
    storage: str = "memory",
    folder: str | None = None,
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
        storage: of the state: ``memory``, or ``disk`` with a block at a time in memory.
        folder: of the state on disk; ``None``: the system's for temporary files.

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
        storage=storage,
        folder=folder,
    )
    check_storage(storage, folder)
    on_disk = storage == "disk"
    costs = _costs(
        shape,
        n_tokens,
        n_sources,
        batch,
        dtype,
        config,
        backend,
        device,
        recorded=recorded,
        ranks=ranks,
        on_disk=on_disk,
    )
    chosen = _choose_path(costs, path, _operator_weight(costs, device))
    budget, blocks = choose_blocks(costs, chosen, workspace_bytes, device)
    free = None if available is None else available // ranks_here
    if on_disk and folder is None:
        folder = default_folder()
    room = None if not on_disk or folder is None else room_in(folder) // ranks_here
    return Plan(costs, chosen, blocks, budget, device, free, again, limit, folder, room)


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
    on_disk: bool,
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
        on_disk=on_disk,
        batch=batch,
        grouped=n_sources is not None,
        dtype=dtype,
        config=config,
        twins=not (kernels or (in_native and n_tokens <= native.mixed_positions(dtype))),
        row_twins=not (kernels or in_native),
        one_op=is_one_op(config, device, dtype, backend),
        recorded=recorded,
        widens=_kinds_by("widened", device, dtype),
        copies=_kinds_by("onednn", device, dtype),
        lays_out=_kinds_by("native", device, dtype),
        wide_copies=_kinds_by("onednn", device, wide(dtype)),
        wide_lays_out=_kinds_by("native", device, wide(dtype)),
        thin=thin_rows(device, dtype),
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
        folder, room_bytes: where the state is, if it is on disk, and what is free there.
    """

    costs: Costs
    path: str
    blocks: Blocks
    workspace_bytes: int
    device: torch.device
    available_bytes: int | None
    again: Callable[..., Plan] = dataclasses.field(compare=False)
    limit: int | None = None
    folder: str | None = None
    room_bytes: int | None = None

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
        held = 0 if costs.on_disk else self.state_bytes
        beside = self.peak_bytes - held - costs.kept_bytes()
        sources = f"{costs.k}" if costs.ranks == 1 else f"{costs.k} of {costs.total}"
        return (
            ("engine", "forward"),
            ("path", self.path),
            ("input", f"{costs.batch} x {costs.n} tokens, {sources} sources each, in {name_of(costs.dtype)}"),
            *self._rows_of_ranks(),
            ("peak", f"{gib(self.peak_bytes)} of tensors beside the model"),
            ("  state", gib(held)),
            ("  workspace", f"{gib(beside)}, to fit in {gib(self.workspace_bytes)}"),
            ("  kept", gib(costs.kept_bytes())),
            *self.rows_of_memory(),
            *self._rows_of_disk(),
            ("operations", f"{self.total_flops / 1e9:,.1f} GFLOP"),
            *((f"  {name}", f"{flops / 1e9:,.1f}") for name, flops in self.flops.items()),
            *self.rows_of_fit(),
        )

    def _rows_of_ranks(self) -> Iterator[tuple[str, str]]:
        if self.costs.ranks > 1:
            yield "ranks", f"{self.costs.ranks}, each as follows"
            yield "exchanged", f"{exchanged_bytes(self.costs) / 2**20:,.1f} MiB sent by each"

    def _rows_of_disk(self) -> Iterator[tuple[str, str]]:
        if self.costs.on_disk:
            room = "" if self.room_bytes is None else f", where {gib(self.room_bytes)} are free"
            yield "on disk", f"{gib(self.costs.disk_bytes())} in {self.folder}{room}"

    @property
    def exchanged_bytes(self) -> int:
        """What each of several processes sends to the others."""
        return exchanged_bytes(self.costs)

    @property
    def fits(self) -> bool:
        """Whether the model has the positions, and the free memory and the disk suffice as far as that is known."""
        return super().fits and self._has_room

    @property
    def _has_room(self) -> bool:
        return self.room_bytes is None or self.costs.disk_bytes() <= self.room_bytes

    def check(self) -> None:
        if super().fits and not self._has_room:
            raise PlanError(
                f"storage='disk' needs {gib(self.costs.disk_bytes())} in {self.folder}, where "
                f"{gib(self.room_bytes or 0)} are free: name another folder (folder=..., --folder), or make room"
            )
        super().check()

    def needs(self) -> str:
        costs = self.costs
        sources = f"{costs.k}" if costs.ranks == 1 else f"{costs.k} of {costs.total}"
        of_state = f", {gib(self.state_bytes)} of it for the decomposed state in {name_of(costs.dtype)}"
        return (
            f"{costs.batch} x {costs.n} tokens with {sources} sources each need {gib(self.peak_bytes)} beside the "
            f"model{'' if costs.on_disk else of_state}"
        )

    def find_ways_out(self) -> Iterator[str]:
        """What would fit, the least change first; where this fits, what would need clearly less."""
        return ways_out(self)
