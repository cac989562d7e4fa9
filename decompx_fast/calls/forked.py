"""Processes that were forked: they have what OpenMP knew of its threads, and none of these threads.

Whoever computes on several there waits for them without end, as PyTorch's own operators do. On one, nobody waits.
"""

from __future__ import annotations

import os

import torch

_forked = False


def _remember() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_remember)


def use_own_threads() -> None:
    """In a process that was forked, let PyTorch compute on one thread from now on; elsewhere, do nothing."""
    if _forked and torch.get_num_threads() > 1:
        torch.set_num_threads(1)
