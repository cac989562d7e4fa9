"""The forward engine: the whole ``N x K x d`` propagation, in place, in blocks.

The state ``X`` ``[b, i, k, d]`` exists once. Attention is applied to it block of sources by block, everything
position-wise block of rows by block (:mod:`.direct`, or :mod:`.operator` as one matrix per position). The
results are those of the reference engine.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from ...config import DecompXConfig
from ...errors import InputError
from ...linearize.layer import Linearization, LinearizedLayer
from ..attribution import Attribution
from ..blocks import Workspace
from ..doubts import Doubts
from ..dtype_range import check_embedding, finite
from ..exchange import Exchange
from ..shape import ModelShape
from ..shard import Shard
from ..storage import storage_of
from ..terms import Terms
from .answer import answer
from .checks import check_options, check_positions, sources_of_tokens
from .mixing import Mixing
from .plan import plan
from .propagation import Propagation
from .sharing import Sharing


def attribute(
    linearization: Linearization,
    config: DecompXConfig,
    *,
    dtype: torch.dtype | None = None,
    sources: Tensor | None = None,
    terms: Terms | None = None,
    positions: Sequence[int] = (),
    path: str = "auto",
    backend: str = "auto",
    workspace_bytes: int | None = None,
    exchange: Exchange | None = None,
    storage: str = "memory",
    folder: str | None = None,
) -> Attribution:
    """Decompose what a model gives for a batch.

    Args:
        linearization: a model on one batch of equally long inputs.
        config: any, with ``aggregation="vector"`` and no stages but ``encoder``, ``aggregated`` and ``pooler``, as
            ``norm`` or ``vector``.
        dtype: of the decomposed state; ``None`` for that of the linearisation. Sums, shares and dots are taken in
            float32 at least.
        sources: ``[b, i]`` integers, the source that each token belongs to, numbered from 0; ``None``: each is its
            own.
        terms: what is asked for; ``None``: all outputs of the head's own reading.
        positions: target positions whose vectors after the last layer are kept too, as the stage ``rows``: norms
            ``[b, r, k]`` or vectors ``[b, r, k, d]``, as ``config.stage_output`` says. Few of them cost little: of
            the last layer nothing else is computed.
        path: ``direct`` applies one component after the other; ``operator`` builds one matrix per position, which
            needs post-norm layers and a rule that no norm of a vector enters; ``auto`` takes what costs fewer
            operations.
        backend: of the ops: ``auto``, ``triton``, ``native`` or ``torch``.
        workspace_bytes: how much memory all but the state may take, if one row and one source fit in it; ``None``:
            :func:`decompx_fast.engines.memory.default_workspace`.
        exchange: with the processes among which the sources are divided, each of which calls this with the same
            arguments and gets the whole answer; ``None``: this one has all.
        storage: ``memory``, or ``disk``: the state is in a file, of which a block at a time is in memory. A layer reads
            and writes it twice.
        folder: of the file; ``None``: the system's for temporary files.

    Returns:
        Scores of every column (without a head, norms of the row of each term), and the stages that were asked for.

    Raises:
        OptionError: for what only the reference engine does, or a path that the model or the rule does not have.
        InputError: for sources that are not numbered, or positions that do not exist.
        NumericalError: if the numbers leave the range of the dtype; names a wider one.
        PlanError: if it cannot fit in the free memory or on the disk, with the numbers and the ways out.
        BackendError: if the named backend cannot be used, or the other processes cannot be reached.
        DecompXError: what made another process fail, of the same class.

    Source: DecompX (ACL 2023), section 3; the authors' code for ``variant="released"``.
    """
    check_options(config)
    start = functools.partial(
        _start,
        linearization,
        config,
        dtype,
        sources,
        terms,
        positions,
        path,
        backend,
        workspace_bytes,
        exchange,
        storage,
        folder,
    )
    with torch.no_grad(), nullcontext() if exchange is None else exchange.together():
        run, sure = _through(linearization, start), False
        if run.mixing.doubts:  # rare: what was taken for granted on a GPU was not so
            del run
            sure = True
            run = _through(linearization, functools.partial(start, sure=True))
        if run.leak:  # rare: what must be zero in any other model got a share of a bias that is shared among all
            del run
            run = _through(linearization, functools.partial(start, whole=True, sure=sure))
        run.range.settle()
        error = run.conditioning.estimate
        if error is not None and run.shard is not None and run.dtype is torch.float16:
            error = run.shard.exchange.largest(error)  # which follows from the largest vectors, of float16 alone
        result = dataclasses.replace(answer(run), expected_error=error)
        return finite(result, run.dtype)


def _through(linearization: Linearization, start: Callable[[LinearizedLayer], Propagation]) -> Propagation:
    """All layers gone through."""
    run: Propagation | None = None
    for layer in linearization.layers():
        run = run or start(layer)
        run.apply(layer)
    if run is None:
        raise InputError("linearization has no layers")
    return run


def _start(
    linearization: Linearization,
    config: DecompXConfig,
    dtype: torch.dtype | None,
    sources: Tensor | None,
    terms: Terms | None,
    positions: Sequence[int],
    path: str,
    backend: str,
    workspace_bytes: int | None,
    exchange: Exchange | None,
    storage: str,
    folder: str | None,
    layer: LinearizedLayer,
    *,
    whole: bool = False,
    sure: bool = False,
) -> Propagation:
    embedding = linearization.embedding
    dtype = dtype or embedding.dtype
    b, n, _ = embedding.shape
    states = storage_of(storage, folder, embedding.device)
    check_embedding(embedding, dtype)
    wanted = check_positions(positions, n)
    if linearization.encoder is not None:
        wanted = tuple(linearization.encoder.in_decoder(torch.tensor(wanted, dtype=torch.int64)).tolist())
    of_tokens = [] if sources is None else sources_of_tokens(sources, b, n)
    n_sources = None if sources is None else max(map(max, of_tokens)) + 1
    the_plan = plan(
        ModelShape.from_linearization(linearization, layer, terms),
        n,
        n_sources,
        b,
        dtype=dtype,
        config=config,
        path=path,
        backend=backend,
        workspace_bytes=workspace_bytes,
        device=embedding.device,
        ranks=1 if exchange is None else exchange.ranks,
        ranks_here=1 if exchange is None or embedding.device.type != "cpu" else exchange.ranks_here(),
        storage=storage,
        folder=folder,
    )
    the_plan.check()
    if exchange is not None:
        _check_same(exchange, embedding, (the_plan.costs, the_plan.path, the_plan.blocks, wanted))
    member = torch.arange(n, device=embedding.device).expand(b, n) if sources is None else sources
    shard = None if exchange is None or exchange.ranks == 1 else Shard.of(exchange, the_plan.costs.total)
    workspace = Workspace(the_plan.buffer_numel, dtype, embedding.device)
    doubts = Doubts(sure, waits=shard is not None)
    mixing = Mixing(
        config.bias,
        config.variant,
        backend,
        the_plan.blocks.sources,
        the_plan.blocks.alpha_rows,
        workspace,
        member.to(embedding.device),
        grouped=sources is not None,
        shard=shard,
        storage=states,
        doubts=doubts,
        of_tokens=of_tokens,
    )
    sharing = Sharing(config.bias, backend, shard=shard, doubts=doubts)
    return Propagation(linearization, config, the_plan, workspace, mixing, sharing, dtype, wanted, terms, whole)


def _check_same(exchange: Exchange, embedding: Tensor, asked: tuple[object, ...]) -> None:
    """Whether all processes were given the same input and options, so that their parts belong together.

    Raises:
        InputError: names the first process that was given others.
    """
    sizes = torch.linalg.vector_norm(embedding.double(), dim=-1).flatten().cpu()
    found = exchange.gather_objects((asked, sizes))
    for rank, (theirs, other) in enumerate(found):
        # Devices of other kinds round differently.
        if theirs != found[0][0] or not torch.allclose(other, found[0][1], rtol=1e-3, atol=0):
            what = "input" if theirs == found[0][0] else "input, or other options"
            raise InputError(
                f"rank {rank} of the group was given another {what} than rank 0, or its device is of another kind: all "
                "must call with the same arguments, and compute alike"
            )
