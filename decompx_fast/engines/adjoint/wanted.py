"""What the adjoint engine pulls back for the columns that are asked for, and the columns from what that gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...bias_rules import LINEAR_RULES
from ...errors import OptionError
from ...linearize.layer import Head
from ..bias import add_bias
from ..terms import Reading, Terms


@dataclass(frozen=True)
class Wanted:
    """Columns over the outputs ``[r, c]`` of the rows that a head reads.

    Attributes:
        columns: ``[b, m, (r c)]`` in the dtype of gradients; ``None``: the outputs themselves, in their order.
        by_output: whether each output is pulled back, and the columns are made of their scores: where the outputs are
            not more than the columns, or where the collected biases are split output by output.
        shape: ``(b, r, c)``; ``r`` is 1 where the mean over the rows is asked for.
        spread: makes directions over these outputs to some over all that the last step forms; ``None``: they are.
        formed: how many outputs it forms.
        like: of the dtype and device of gradients.
        averaged: how many rows' mean is asked for, or 1.
    """

    columns: Tensor | None
    by_output: bool
    shape: tuple[int, int, int]
    spread: Reading | None
    formed: int
    like: Tensor
    averaged: int = 1

    @classmethod
    def of(cls, head: Head, terms: Terms | None, split: str | None, like: Tensor) -> Wanted:
        """What is pulled back through a head that was read for these terms.

        Args:
            head, terms: the head, and what it was read for.
            split: the rule by which collected biases are split, if they are.
            like: of the dtype and device of gradients.

        Raises:
            OptionError: if the split is weighed by the vectors over all outputs, where only some are formed.
        """
        reading, (b, r, q), formed = head.reading, head.table.shape, head.steps[-1].output.shape[-1]
        r, averaged = (1, r) if reading.averaged else (r, 1)
        weighed = split is not None and split not in LINEAR_RULES
        if weighed and head.is_narrow:
            raise OptionError(
                f"bias_token_split={split!r} weighs by the vectors over all outputs, of which the adjoint engine forms "
                "only those that are asked for: use engine='forward', or the split 'equal' or 'cls'"
            )
        columns = None if terms is None else terms.columns
        if columns is None and reading.slots is not None:
            columns = torch.eye(reading.slots.shape[1], dtype=torch.float64).expand(b, -1, -1)
        columns = None if columns is None else columns.to(like)
        if columns is not None and reading.slots is not None:
            at = reading.slots.to(like.device).unsqueeze(1).expand_as(columns)
            columns = columns.new_zeros(b, columns.shape[1], r * q).scatter_add_(2, at, columns)
        spread = None if head.is_narrow or reading.outputs is None else reading
        if weighed and spread is not None and columns is not None:  # all outputs of each row are to be weighed by
            columns, spread, q = spread.spread(columns.unflatten(2, (r, q)), formed).flatten(2), None, formed
        by_output = columns is None or split is not None or columns.shape[1] >= r * q
        return cls(columns, by_output, (b, r, q), spread, formed, like, averaged)

    @property
    def count(self) -> int:
        """How many directions are pulled back."""
        _, r, c = self.shape
        return r * c if self.by_output or self.columns is None else self.columns.shape[1]

    def pulled(self, part: slice) -> Tensor:
        """Some of the directions, over the outputs of the head's last step: ``[b, m, r, c]``."""
        b, r, c = self.shape
        if self.by_output or self.columns is None:
            which = torch.arange(part.start, part.stop, device=self.like.device)
            found = self.like.new_zeros(len(which), r * c)
            found[torch.arange(len(which), device=which.device), which] = 1
            found = found.expand(b, -1, -1)
        else:
            found = self.columns[:, part]
        found = found.unflatten(2, (r, c))
        found = found if self.spread is None else self.spread.spread(found, self.formed)
        return found if self.averaged == 1 else (found / self.averaged).expand(-1, -1, self.averaged, -1)

    def split(self, scores: Tensor, collected: Tensor | None, rule: str, shares: Tensor | None) -> Tensor:
        """The collected biases ``[b, (r c)]`` shared among the tokens ``[b, k, (r c)]``, row by row.

        Args:
            scores, collected: of each output.
            rule: how.
            shares: ``[b, r, k]``, where they are known beforehand.
        """
        _, r, c = self.shape
        vectors = scores.unflatten(2, (r, c)).transpose(1, 2)  # [b, r, k, c]
        bias = None if collected is None else collected.unflatten(1, (r, c))
        return add_bias(vectors, bias, rule, shares=shares).transpose(1, 2).flatten(2)

    def combine(self, values: Tensor) -> Tensor:
        """The columns of what was pulled back: ``[b, m]`` or ``[b, k, m]``."""
        if not self.by_output or self.columns is None:
            return values
        columns = self.columns.transpose(1, 2)
        return (values.unsqueeze(1) @ columns).squeeze(1) if values.ndim == 2 else values @ columns
