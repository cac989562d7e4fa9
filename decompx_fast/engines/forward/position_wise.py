"""Everything between two mixings, at some positions: by one matrix for each, or one sublayer after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ...config import DecompXConfig
from ..blocks import Workspace, among, blocks
from .convolution import finish_convolution_
from .direct import at_rows, finish_sublayer_
from .live import LiveBlock
from .operator import finish_by_operator_
from .sharing import PendingBias, SharingInTurn
from .step import Step


@dataclass(frozen=True)
class PositionWise:
    """What is position-wise of a segment.

    Attributes:
        part: its sublayers.
        config: the options.
        backend: of the ops.
        precision: of float32 products in Triton.
        direct_rows: how many positions the direct path may take at once.
        by_operator: whether it is one matrix for each position, unless only the direct path can tell who shares a bias.
    """

    part: Sequence[Step]
    config: DecompXConfig
    backend: str
    precision: str
    direct_rows: int
    by_operator: bool = False

    def finish_(
        self,
        x: Tensor,
        branch: Tensor | None,
        pending: PendingBias | None,
        constants: slice | Tensor,
        workspace: Workspace,
        *,
        block: LiveBlock | None = None,
        shares: Sequence[Tensor] | None = None,
    ) -> None:
        """Apply it, in place.

        Args:
            x, branch: ``[1, p, k, d]``, rows of the state, and of what the attention gave apart.
            pending: the bias of the attention at these.
            constants: these positions on the joined axis of batch and positions.
            workspace: for all that is made on the way.
            block: which of the sources the rows have; ``None``: all.
            shares: ``[1, p, k]``, of each bias, where they are known beforehand.
        """
        if self.by_operator and finish_by_operator_(
            x,
            [step.sublayer for step in self.part],
            constants,
            self.config,
            self.part[0].after.at(constants, block),
            workspace,
            pending=pending,
            precision=self.precision,
            known=shares,
        ):
            return
        for few in blocks(x.shape[1], self.direct_rows):
            part = self.part
            if shares is not None:
                first = pending is not None and pending.shares is not None  # which is shared by these
                turns = iter([share[:, few] for share in shares[first:]])
                in_turn = SharingInTurn(self.config.bias, self.backend, turns=turns)
                part = [dataclasses.replace(step, before=in_turn, after=in_turn) for step in part]
            beside = None if branch is None else branch[:, few]
            own = None if pending is None else pending.at(few)
            self._directly_(part, x[:, few], beside, own, among(constants, few), workspace, block)

    def _directly_(
        self,
        part: Sequence[Step],
        x: Tensor,
        branch: Tensor | None,
        pending: PendingBias | None,
        constants: slice | Tensor,
        workspace: Workspace,
        block: LiveBlock | None,
    ) -> None:
        """One sublayer after the other."""
        for step in part:
            sublayer, after = at_rows(step.sublayer, constants), step.after.at(constants, block)
            if step.convolved is not None:
                finish_convolution_(x, sublayer, step.convolved.at(constants), self.config, after, workspace)
                continue
            before = step.before.at(constants, block)
            finish_sublayer_(x, sublayer, self.config, after, workspace, before=before, pending=pending, branch=branch)
            pending, branch = None, None
