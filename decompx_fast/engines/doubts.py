"""Questions about numbers on a device whose answer is nearly always no, so that nobody waits for it.

Where a bias meets vectors whose weights are all zero, who shares it depends on which vectors are zero. To ask whether
that is so makes the host wait for a GPU, in every layer. There it is taken for granted that it is not, and remembered
if it was; in the end one look tells, and what was taken for granted wrongly is computed once more, for sure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Doubts:
    """What one run took for granted.

    Attributes:
        sure: whether this is the second run, in which every question is answered as if it were so.
        waits: whether every question is asked at once on any device: where processes divide the sources, they all have
            to run as often.
        found: on the device, whether any was.
    """

    sure: bool = False
    waits: bool = False
    found: Tensor | None = None

    def _asks(self, device: torch.device) -> bool:
        return self.waits or device.type == "cpu"

    def at_once(self, device: torch.device, flags: Callable[[], Tensor]) -> bool:
        """Whether any of the flags is raised, on a CPU; elsewhere what is taken for granted."""
        return bool(flags().any()) if self._asks(device) else self.sure

    def note(self, flags: Tensor) -> None:
        """Remember whether any of these flags on a device is raised, though it was taken for granted that none is."""
        if not self.sure and not self._asks(flags.device):
            any_ = flags.any()
            self.found = any_ if self.found is None else self.found | any_

    def raised(self, flags: Tensor) -> bool:
        """Both: whether any is, where that is known at once."""
        self.note(flags)
        return self.at_once(flags.device, lambda: flags)

    def about(self, empty: Tensor, bias: Tensor) -> bool:
        """The same of where a bias ``[d]`` or ``[..., d]`` met weights that are all zero, ``[...]``; one of zeros is
        nobody's, so that it need not be known whose it is."""
        if not self._asks(empty.device):
            self.note(empty & (bias != 0).any(-1))
        return self.at_once(empty.device, lambda: empty)

    def __bool__(self) -> bool:
        return self.found is not None and bool(self.found)
