"""What an explanation takes: bytes held at the same time, and floating-point operations, as formulas of its sizes.

Each number of bytes follows the allocations of one phase of the engine, the plain-PyTorch twins of the ops included.
Phases do not overlap, so the peak is the state, the buffer that the blocks are cut from, and the largest phase.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...config import DecompXConfig
from ...linearize.layer import KEEP_BYTES
from ...ops.backends.native import laid_out_numbers
from ...ops.backends.products import SHORT, WIDENED_NUMBERS, copied_numbers, kind_of, varied_numbers
from ..blocks import block_length, wide
from ..shape import Mask, ModelShape
from .live import best_block, block_of_rows
from .operations import operations
from .segments import rows_are_cheaper

#: How many numbers per position and source the sharing of one bias holds at once: dots, weights, their sum, the
#: quotient, and the equal shares that replace it where the sum is zero.
SHARING_TEMPORARIES = 6

#: How many tensors of the size of the FFN hidden an activation such as GELU holds while it is computed.
ACTIVATION_TEMPORARIES = 4

#: Bytes of what a window's mask is made from, for each pair of positions: two differences, and three masks.
WINDOW_BYTES = 2 * 8 + 3

#: Linux maps up to so many bytes of a file, those that it holds, where one of them is read.
MAPPED_AROUND = 64 << 10

#: Rows that the twin of `mixing` takes at once where keys can be skipped.
MASKED_ROWS = 128


@dataclass(frozen=True)
class Blocks:
    """How much is computed at once: sources of a mixing, rows of attention weights, and rows of each path."""

    sources: int
    alpha_rows: int
    direct_rows: int
    operator_rows: int


SMALLEST = Blocks(1, 1, 1, 1)


@dataclass(frozen=True)
class Costs:
    """The sizes of one request.

    Attributes:
        shape: of the model.
        n, k, batch: positions, sources (a bias token is one) that a process holds, inputs at once.
        total, ranks: sources of all processes, and how many these are.
        on_disk: whether the state is in a file, of which a block at a time is in memory.
        grouped: whether sources are groups of tokens.
        dtype: of the state.
        config: the options.
        twins: whether the ops that multiply matrices run in plain PyTorch, which makes intermediate results.
        row_twins: whether the ops on single vectors do.
        widens: kinds of products (:func:`..ops.products.kind_of`) that are taken in float32, in half precisions.
        copies: kinds of products whose results a library makes apart.
        lays_out: kinds of products whose right matrix is laid out anew, in words of float32.
        wide_copies, wide_lays_out: the same for products of the operator path, in float32 at least.
        one_op: whether a plain network is one op, which forms no hidden layer.
        recorded: whether the linearisation holds all layers (:mod:`...linearize.record`).
        thin: how many rows a product is like that has next to none (:func:`.live.thin_rows`).
    """

    shape: ModelShape
    n: int
    k: int
    batch: int
    grouped: bool
    dtype: torch.dtype
    config: DecompXConfig
    twins: bool
    row_twins: bool = True
    widens: frozenset[str] = frozenset()
    copies: frozenset[str] = frozenset()
    lays_out: frozenset[str] = frozenset()
    wide_copies: frozenset[str] = frozenset()
    wide_lays_out: frozenset[str] = frozenset()
    one_op: bool = False
    recorded: bool = False
    total: int = 0
    ranks: int = 1
    on_disk: bool = False
    thin: int = 0

    @property
    def cuts(self) -> bool:
        """Whether vectors that must be zero are left out, and for that, blocks of the state copied."""
        return self.shape.lags and self.ranks == 1 and not self.on_disk

    @property
    def cut(self) -> tuple[int, int]:
        """Of how many rows, and of how many sources, blocks are where they leave out zeros."""
        return best_block(self.thin, self.k / self.n, self.batch)

    @property
    def most(self) -> Blocks:
        """The largest blocks that are taken."""
        if not self.cuts or not self.shape.causal:  # in other models some layers leave nothing out
            return Blocks(self.k, self.n, self.positions, self.positions)
        height, width = self.cut
        rows = min(height, self.n) * self.batch
        return Blocks(min(width, self.k), self.n, rows, rows)

    def rows_at_once(self, most: int) -> int:
        """Of how many positions blocks are that have so many at the most."""
        if not self.cuts:
            return block_length(self.positions, most)
        return max(self._cut_rows(most), block_length(self.positions, most))

    def _cut_rows(self, most: int) -> int:
        """The same where zeros are left out."""
        rows, items = block_of_rows(self.batch, most, self.cut[0])
        return block_length(self.n, rows) * block_length(self.batch, items)

    @property
    def positions(self) -> int:
        return self.batch * self.n

    @property
    def state_bytes(self) -> int:
        return self.positions * self.k * self.shape.d * self.dtype.itemsize

    @property
    def keeps_rows(self) -> bool:
        """Whether the last layer is wanted whole."""
        s = self.shape
        cheaper = rows_are_cheaper(s.rows, self.n, s.d, s.heads)
        return s.reads_all or not cheaper or not {"encoder", "aggregated"}.isdisjoint(self.config.stages)

    @property
    def starts_diagonal(self) -> bool:
        """Whether the first attention is computed from the diagonal of the state."""
        whole = self.shape.layers > 1 or self.keeps_rows
        return whole and self.shape.starts_with_attention and not self.shape.keeps_branch(self.config)

    @property
    def fused(self) -> bool:
        """Whether the networks of this model are computed by one op."""
        return self.one_op and not self.shape.gated and not self.shape.routed

    @property
    def item(self) -> int:
        return self.dtype.itemsize

    @property
    def constant(self) -> int:
        """Bytes of a number of the linearisation."""
        return 8 if self.dtype is torch.float64 else 4

    @property
    def wide(self) -> int:
        return wide(self.dtype).itemsize

    @property
    def widened(self) -> int:
        """Bytes of a number's float32 copy, which the twins make of half precisions."""
        return self.wide if self.twins and self.item < self.wide else 0

    @property
    def row_widened(self) -> int:
        """The same for the ops on single vectors."""
        return self.widened if self.row_twins else 0

    def product_bytes(self, rows: int, n_in: int, n_out: int) -> int:
        """What is made while vectors are multiplied by weights: float32 copies of half precisions, results apart, or
        the weights laid out anew. Where zeros are left out, the first blocks are short."""
        every = {rows, min(rows, SHORT)} if self.cuts else {rows}
        return max(self._product_bytes(rows, n_in, n_out) for rows in every)

    def _product_bytes(self, rows: int, n_in: int, n_out: int) -> int:
        kind = kind_of(rows, n_in, n_out)
        if kind in self.lays_out:
            return 4 * laid_out_numbers(n_in, n_out)
        if kind in self.copies:
            return self.item * copied_numbers(rows, n_in, n_out)
        at_once = min(rows, max(WIDENED_NUMBERS // max(n_in, n_out, 1), 1))
        return self.wide * (n_in * n_out + at_once * (n_in + n_out)) if kind in self.widens else 0

    def wide_product_bytes(self, rows: int, n_in: int, n_out: int) -> int:
        """The same where the operator path multiplies."""
        kind = kind_of(rows, n_in, n_out)
        copied = self.wide * copied_numbers(rows, n_in, n_out) if kind in self.wide_copies else 0
        return copied + (4 * laid_out_numbers(n_in, n_out) if kind in self.wide_lays_out else 0)

    @property
    def cast(self) -> int:
        """Bytes of a weight's copy in the dtype of the state; 0 where the model's own is used."""
        return 0 if self.item == self.constant else self.item

    def mapped_bytes(self, rows: int, sources: int) -> int:
        """What is in memory while so many vectors of a state on disk are looked at, and of a branch beside it: of each
        row also neighbours that the system maps with them."""
        states = 2 if self.shape.keeps_branch(self.config) else 1
        vectors = sources * self.shape.d * self.item + (MAPPED_AROUND if sources < self.k else 0)
        return states * rows * min(vectors, self.k * self.shape.d * self.item) if self.on_disk else 0

    # The buffer ---------------------------------------------------------------------------------------------------

    def source_width(self) -> int:
        """Numbers in the buffer for each source of a block, at all positions."""
        s = self.shape
        values, mixed = s.kv_heads * s.head_size, s.heads * s.head_size
        return self.positions * (max(s.d, mixed) + max(s.d, values))

    def direct_width(self) -> int:
        """Numbers in the buffer for each position of a block on the direct path, all sources."""
        s = self.shape
        branch, networks = s.keeps_branch(self.config), s.networks if self.config.ffn else 0
        vectors = int(s.pre_norm)
        if networks or s.normed_branches or s.taps:
            vectors += (not branch) + (networks > 0 and (branch or networks > 1 or s.routed)) + s.routed
        hidden = 0 if not networks or self.fused else s.f * (2 if s.opens_gates(self.config) else 1)
        return self.k * (vectors * s.d + hidden)

    def operator_width(self) -> int:
        """Numbers in the buffer for each position of a block on the operator path."""
        return self.shape.d * (self.shape.d + self.k)

    def copied_numel(self, most: int) -> int:
        """Numbers in the buffer for a copy of a block of so many positions at the most, and of a branch beside it,
        where zeros are left out."""
        states = 2 if self.shape.keeps_branch(self.config) else 1
        return self._cut_rows(most) * states * self.k * self.shape.d if self.cuts else 0

    def buffer_numel(self, blocks: Blocks, path: str) -> int:
        numels = [block_length(self.k, blocks.sources) * self.source_width(), self.shape.heads * self.shape.d]
        most, width = blocks.direct_rows, self.direct_width()
        if path == "operator":  # and of the direct path one row at the least
            most, width = blocks.operator_rows, self.operator_width()
            numels.append(self.copied_numel(most) + self.direct_width())
        numels.append(block_length(self.positions, most) * width)
        if self.cuts:
            numels.append(self._cut_rows(most) * width + self.copied_numel(most))
        return max(numels)

    # Phases -------------------------------------------------------------------------------------------------------

    def layer_bytes(self) -> int:
        """The constants of one layer: queries, keys, pre-activations, and the true states before and after."""
        s = self.shape
        hidden = s.f * s.networks * (1 + s.gated) + s.d * bool(s.taps)
        return self.positions * self.constant * (hidden + (s.heads + s.kv_heads) * s.head_size + 2 * s.d)

    def convolved_bytes(self) -> int:
        """What the taps of a convolution give each position, and one of them while it is made."""
        s = self.shape
        return self.positions * s.d * (s.taps * (self.constant + self.cast) + self.constant) if s.taps else 0

    def linearizing_bytes(self) -> int:
        """While the next layer is linearised: both, and what its activation is computed from."""
        return 2 * self.layer_bytes() + ACTIVATION_TEMPORARIES * self.positions * self.shape.f * self.constant

    def shares_bytes(self) -> int:
        """How the bias of the attention is shared, one number for each position and source."""
        collects = self.config.variant == "paper" and self.config.bias not in ("none", "cls", "bias_token")
        return self.positions * self.k * self.wide if collects else 0

    def alpha_bytes(self, rows: int) -> tuple[int, int]:
        """Some rows of attention weights: while they are computed, the mask among them, and then."""
        making = held = 0
        for mask in set(self.shape.masks) or {Mask()}:
            numel = rows * mask.width(rows, self.n)
            weights = numel * self.batch * self.shape.heads
            steps = 2 * weights * self.constant  # before the softmax and after, or before the mask and after
            if mask.hides:
                steps = max(steps + 2 * numel, weights * self.constant + (WINDOW_BYTES if mask.window else 2) * numel)
            making, held = max(making, steps), max(held, weights * self.item)
        return making, held

    def source_bytes(self) -> int:
        """What the mixing of a source takes beside the buffer."""
        s = self.shape
        dots = 2 * self.positions * self.wide if self.shares_bytes() else 0
        if not self.twins:
            return dots
        rows = min(self.n, MASKED_ROWS) if s.masked else self.n
        copies = s.head_size * (self.n * (self.item + self.widened) + rows * self.wide)
        # Dots of half precisions read a float32 copy of one input's vectors.
        return max(copies, dots + (self.n * s.d * self.row_widened if dots else 0))

    def norm_shares_bytes(self, blocks: Blocks) -> int:
        """How the bias of a norm before an attention is shared: by its vectors, in float32 at least."""
        if not self.shape.shares_before or self.config.bias in ("none", "equal"):
            return 0
        rows = self.rows_at_once(blocks.direct_rows)
        copied = self.shape.d * self.wide if self.item < self.wide else 0
        mapped = self.mapped_bytes(rows, self.k)
        return mapped + self.k * (rows * (copied + SHARING_TEMPORARIES * self.wide) + self.positions * self.wide)

    def mixing_bytes(self, blocks: Blocks) -> int:
        s = self.shape
        rows = block_length(self.n, blocks.alpha_rows)
        making, held = self.alpha_bytes(rows)
        sources = block_length(self.k, blocks.sources)
        weights = 2 * s.d * s.heads * s.head_size * self.cast
        queries = 2 * self.positions * s.heads * s.head_size * self.constant
        widened_alpha = rows * self.n * self.widened
        most = max(
            making + queries + (held if rows < self.n else 0),
            held + widened_alpha + sources * self.source_bytes() + self._mixing_copies(rows, sources),
            held + self._first_bytes(sources, rows),
            *(held + self.product_bytes(sources * self.positions, s.d, values) for values in self._value_widths()),
            held + self.product_bytes(sources * self.positions, s.heads * s.head_size, s.d),
            self.shares_bytes() * SHARING_TEMPORARIES,
        )
        return weights + self.shares_bytes() + self.mapped_bytes(self.positions, sources) + most

    def _mixing_copies(self, rows: int, sources: int) -> int:
        """What is made apart to mix a head's values of some sources."""
        width = sources * self.shape.head_size
        rows = min(rows, MASKED_ROWS) if self.shape.masked else rows
        kind = kind_of(rows, self.n, width)
        copied = self.item * varied_numbers(rows, self.n, width) if kind in self.copies else 0
        laid_out = 4 * laid_out_numbers(self.n, width) if kind in self.lays_out else 0
        return copied + laid_out if self.twins else 0

    def _value_widths(self) -> set[int]:
        """Into how many numbers vectors are projected: few are multiplied in another way than many."""
        s = self.shape
        return {kv_heads * s.head_size for kv_heads in (s.kv_heads, s.least_kv_heads) if kv_heads}

    def _first_bytes(self, sources: int, rows: int) -> int:
        if not self.starts_diagonal:
            return 0
        heads, vectors = self.shape.heads, 0
        if not self.grouped:
            vectors = sources * heads * (2 * self.shape.d + rows)
        return self.item * (vectors + 2 * self.positions * heads * self.shape.head_size)

    def direct_row_bytes(self) -> int:
        """What a position on the direct path takes beside the buffer: its slope while biases are shared, or before."""
        s = self.shape
        width = max(s.f if self.config.ffn else 0, s.d)
        temporaries = self.k * (width * self.widened + SHARING_TEMPORARIES * self.wide) if self.row_twins else 0
        sharing = temporaries + s.f * self.constant
        chosen = s.f * s.networks * (1 + s.gated) * self.constant if s.routed else 0  # constants of these positions
        return chosen + max(sharing, (1 + ACTIVATION_TEMPORARIES) * s.f * self.constant)

    def operator_row_bytes(self) -> tuple[int, int, int]:
        """What a position on the operator path takes beside the buffer: while the shares are found, while its matrix
        is built, and while that is applied."""
        s = self.shape
        sites = 5 + (self.config.activation == "linear")
        held = (s.f + sites * s.d + sites * self.k) * self.wide
        functionals = (4 * s.f + 9 * s.d + (sites + SHARING_TEMPORARIES) * self.k) * self.wide
        return held + functionals + self.k * s.d * self.row_widened, held, held

    def weights_bytes(self, path: str) -> int:
        """Copies of a network's weights: cast, and on the operator path with the norms folded in."""
        s = self.shape
        size = s.d * s.f
        if path == "direct":
            laid_out = 4 * (laid_out_numbers(s.d, s.f) + laid_out_numbers(s.f, s.d))
            return 2 * size * self.cast + laid_out if self.fused else size * self.cast
        folded = 3 * size * self.wide + 3 * s.d * s.d * self.wide
        return folded + (2 * size * (self.cast + self.item) if self.cast else 0)

    def position_wise_bytes(self, blocks: Blocks, path: str) -> int:
        most = blocks.operator_rows if path == "operator" else blocks.direct_rows
        mapped = self.mapped_bytes(self.rows_at_once(most), self.k)
        return mapped + self._position_wise_bytes(blocks, path)

    def _position_wise_bytes(self, blocks: Blocks, path: str) -> int:
        weights = self.weights_bytes(path)
        if path == "direct":
            rows = self.rows_at_once(blocks.direct_rows)
            if self.fused:  # the slopes, and then the product, for which the weights are laid out anew
                slopes = rows * self.shape.f * self.constant
                making, sharing = ACTIVATION_TEMPORARIES * slopes, rows * self.k * SHARING_TEMPORARIES * self.wide
                return self.shares_bytes() + slopes + max(making, weights + sharing)
            making = self.product_bytes(rows * self.k, self.shape.d, self.shape.f)
            return self.shares_bytes() + weights + max(rows * self.direct_row_bytes(), making)
        rows = self.rows_at_once(blocks.operator_rows)
        finding, building, applying = (rows * row for row in self.operator_row_bytes())
        building += weights + self.wide_product_bytes(self.shape.d, self.shape.f, self.shape.d)
        applying += self.wide_product_bytes(self.k, self.shape.d, self.shape.d)
        return self.shares_bytes() + max(finding, building, applying)

    def row_bytes(self) -> int:
        """The last layer at the positions that are read, one by one: the rows, what is added to one, and the values of
        all heads, or the network."""
        s = self.shape
        others = 0 if self.keeps_rows else s.rows - 1  # each once, and once more while they are put together
        rows = self.batch * self.k * s.d * (3 * self.item + self.wide + 2 * others * self.item)
        # Of one position the products are few rows, which may be multiplied in another way than many.
        network = 0 if self.fused else s.d * s.f * self.cast + self.product_bytes(self.k, s.d, s.f)
        return rows + max(self.k * s.heads * s.head_size * self.item, network if self.config.ffn else 0)

    def head_bytes(self) -> int:
        """The vectors that the head reads (of a language model before and after a step, and while it is taken), the
        scores, and the weights of the columns."""
        s = self.shape
        vectors = (5 if s.outputs else 1) * self.batch * s.rows * self.k * s.d * self.wide
        scores = 2 * self.batch * self.k * s.classes * self.wide
        return vectors + scores + (self.batch * s.classes * s.d * self.constant if s.outputs else 0)

    def kept_bytes(self) -> int:
        """What stays: stages, and the embedding in the dtype of the state."""
        stages = sum(stage in ("encoder", "aggregated") for stage in self.config.stages) * self.shape.layers
        whole = self.config.stage_output == "vector"
        stage = self.state_bytes if whole else self.positions * self.k * self.wide
        return stages * stage + self.positions * self.shape.d * self.cast + self.recorded_bytes()

    def recorded_bytes(self) -> int:
        """The constants of all layers, where the linearisation holds them."""
        return min(self.shape.layers * self.layer_bytes(), KEEP_BYTES) if self.recorded else 0

    def peak_bytes(self, blocks: Blocks, path: str) -> int:
        """The most that is allocated at one time."""
        if self.on_disk:
            return self.kept_bytes() + self.beside_bytes(blocks, path)
        return self.state_bytes + self.kept_bytes() + self.beside_bytes(blocks, path, self.branch_bytes())

    def branch_bytes(self) -> int:
        """Beside the state: what an attention gives, where it is kept apart, and a narrower state."""
        branch = self.state_bytes if self.shape.keeps_branch(self.config) else 0
        return branch + self.positions * self.k * self.shape.narrow * self.item

    def disk_bytes(self) -> int:
        """What is in files."""
        return self.state_bytes + self.branch_bytes() if self.on_disk else 0

    def beside_bytes(self, blocks: Blocks, path: str, branch: int = 0) -> int:
        """The same without the state and what stays; ``branch``: what an attention gives, where it is kept apart."""
        phases = max(
            self.mixing_bytes(blocks), self.position_wise_bytes(blocks, path), self.row_bytes(), self.head_bytes()
        )
        phases = max(phases + branch, self.norm_shares_bytes(blocks))  # before there is a branch
        layer = self.layer_bytes() + self.convolved_bytes() + phases
        return self.buffer_numel(blocks, path) * self.item + max(self.linearizing_bytes(), layer)

    def flops(self, path: str) -> dict[str, int]:
        """Floating-point operations of the products, by part."""
        return operations(self, path)
