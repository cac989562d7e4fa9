"""Counts the bytes of tensors as they come and go."""

from __future__ import annotations

import weakref

import torch
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Within this mode every new storage is counted until it is freed, those made inside our custom ops too.

    Attributes:
        peak: the most bytes alive at one time that were made within the mode.
        where: the operation that made them so many.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak, self.where = 0, ""
        self._live: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name
        if name in OPDEFS:  # its body, so that what it allocates is seen
            with self:
                return OPDEFS[name]._init_fn(*args, **kwargs)
        before = {_key(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = func(*args, **kwargs)
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                key = _key(tensor)
                if key not in before and key not in self._live:
                    self._live[key] = tensor.untyped_storage().nbytes()
                    weakref.finalize(tensor.untyped_storage(), self._live.pop, key)
        total = sum(self._live.values())
        if total > self.peak:
            self.peak, self.where = total, name
        return out


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
