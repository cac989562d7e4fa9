"""What would fit where an explanation by the forward engine does not, or would need clearly less."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from ...config import LINEAR_BIAS_RULES
from ..adjoint.plan import AdjointPlan
from ..plan_text import gib, name_of
from ..storage import default_folder

if TYPE_CHECKING:
    from .plan import Plan

#: Among so many processes at the most it is proposed to divide the sources.
MOST_RANKS = 64


def ways_out(this: Plan, *, whole: bool = False) -> Iterator[str]:
    """What would fit, the least change first; where this fits, what would need clearly less.

    Args:
        this: the plan.
        whole: whether sources can be neither grouped nor divided among processes.
    """
    yield from _smaller(this)
    if not this.fits and not whole:
        yield from _groups(this)
    yield from _adjoint(this)
    if not this.fits:
        yield from () if whole else _ranks(this)
        yield from _disk(this)


def _ranks(this: Plan) -> Iterator[str]:
    """Among how many processes, each with as much memory, the sources would have to be divided."""
    ranks = 2 * this.costs.ranks
    while ranks <= MOST_RANKS:
        other = this.again(ranks=ranks, ranks_here=1)
        if other.fits:
            yield (
                f"{ranks} devices or machines, each with as much memory (torchrun --nproc-per-node {ranks}, group=), "
                f"{gib(other.peak_bytes)} each"
            )
            return
        ranks *= 2


def _disk(this: Plan) -> Iterator[str]:
    """The state in a file."""
    if this.costs.on_disk or this.device.type != "cpu":
        return
    other = this.again(storage="disk")
    if other.fits:
        folder = default_folder() if this.folder is None else this.folder
        yield (
            f"storage='disk' (--storage disk), {gib(other.peak_bytes)} and a file of {gib(other.costs.disk_bytes())} "
            f"in {folder}: slower"
        )


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
    least, dtype = max(other.workspace_bytes >> 20, 1), name_of(other.costs.dtype)
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
            yield f"sources in groups, at most {low} of them (sources='focus', 'sentence' or 'word', --sources){words}"
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
