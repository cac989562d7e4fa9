"""What all mixings of one explanation have in common, and attention weights in the blocks that they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...bias_rules import VECTOR_RULES
from ...linearize.layer import AttentionPattern
from ...ops import with_padded_rows
from ..blocks import Workspace, blocks
from ..doubts import Doubts
from ..shard import Shard
from ..storage import Memory
from .live import ALIGNED
from .sharing import ShareCollector

AlphaBlock = tuple[slice, slice, Tensor]


@dataclass(frozen=True)
class Mixing:
    """What every mixing of one explanation has in common.

    Attributes:
        rule, variant: of the configuration.
        backend: of the ops.
        n_sources: how many sources are mixed at once.
        n_rows: how many target positions have their attention weights in memory at once.
        workspace: for two blocks of vectors.
        member: ``[b, j]``, the source that each token belongs to.
        grouped: whether sources are other than the tokens themselves.
        shard: the part of the sources that is here; ``None``: all are.
        storage: of the states.
        doubts: what this run takes for granted on a GPU.
        of_tokens: the same as ``member`` on the host, where sources are groups.
    """

    rule: str
    variant: str
    backend: str
    n_sources: int
    n_rows: int
    workspace: Workspace
    member: Tensor
    grouped: bool
    shard: Shard | None = None
    storage: Memory = field(default_factory=Memory)
    doubts: Doubts = field(default_factory=Doubts)
    of_tokens: list[list[int]] = field(default_factory=list)

    @property
    def precision(self) -> str:
        """Float32 products in Triton follow the user's setting for matrix products."""
        return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"

    def collector(self, bias: Tensor | None, z: Tensor) -> ShareCollector | None:
        """Where the rule looks at the vectors of the attention itself, what collects it; ``z`` is ``[b, i, k, d]``."""
        looks = self.rule in VECTOR_RULES and self.variant == "paper"
        if not looks or bias is None:
            return None
        return ShareCollector(bias, self.rule, z, self.backend, self.shard, self.doubts)

    @property
    def first_source(self) -> int:
        """The number of the first source that is here."""
        return 0 if self.shard is None else self.shard.first

    def tokens_here(self, member: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens of ``member`` ``[b, j]`` whose sources are among the ``k`` that are here: their items, their
        places, and these sources."""
        if self.shard is None:  # all, which is known without a look
            b, n = member.shape
            items, tokens = (torch.arange(count, device=member.device) for count in (b, n))
            return items.repeat_interleave(n), tokens.repeat(b), member.flatten()
        own = member - self.first_source
        items, tokens = torch.nonzero((own >= 0) & (own < k), as_tuple=True)
        return items, tokens, own[items, tokens]

    def tokens_of(self, item: int, columns: slice) -> dict[int, Tensor]:
        """The tokens of each source among some positions of an input, counted from the first, in their order."""
        order = self.member[item, columns].argsort(stable=True)
        counts = Counter(self.of_tokens[item][columns])  # so that nobody waits for how many they are
        found, start = {}, 0
        for source in sorted(counts):
            found[source] = order[start : start + counts[source]]
            start += counts[source]
        return found

    def owned(self, sources: slice) -> Tensor:
        """``[b, j, k]``, whether a token belongs to each of some sources that are here."""
        numbers = torch.arange(sources.start, sources.stop, device=self.member.device) + self.first_source
        return self.member.unsqueeze(-1) == numbers

    @property
    def _by_kernels(self) -> bool:
        """Whether kernels of a GPU mix, which load runs of numbers."""
        return self.backend in ("triton", "cuda") or (self.backend == "auto" and self.member.is_cuda)

    def aligned(self, position: int) -> int:
        """The last position up to this one from which on they can mix as fast as from the first."""
        return position // ALIGNED * ALIGNED if self._by_kernels else position

    def alpha(self, pattern: AttentionPattern, dtype: torch.dtype) -> Iterable[AlphaBlock]:
        """The attention weights in blocks of rows, ``(rows, columns, [b, h, i, j])``; kept if there is one block."""
        n = pattern.query.shape[2]
        found = _AlphaBlocks(pattern, n, min(self.n_rows, n), dtype, self._by_kernels)
        return list(found) if self.n_rows >= n else found


@dataclass(frozen=True)
class _AlphaBlocks:
    """Blocks of attention weights, computed anew each time they are iterated."""

    pattern: AttentionPattern
    n: int
    n_rows: int
    dtype: torch.dtype
    pad: bool

    def __iter__(self) -> Iterator[AlphaBlock]:
        for run in self.pattern.live_rows(slice(0, self.n)):
            for block in blocks(run.stop - run.start, self.n_rows):
                rows = slice(run.start + block.start, run.start + block.stop)
                columns = self.pattern.columns(rows)
                alpha = self.pattern.weights(rows, columns)
                yield rows, columns, with_padded_rows(alpha, self.dtype) if self.pad else alpha.to(self.dtype)
