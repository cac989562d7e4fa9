"""How much memory is free, how it is given back, and what the forward engine takes beside its state by default."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path

import torch

#: The least that blocks are made for by default. On a CPU it holds blocks of some thousand vectors, with which the
#: matrix products run at full speed; a GPU needs more rows at once to be busy.
LEAST_WORKSPACE = {"cpu": 128 << 20, "cuda": 256 << 20}

#: Above that, the default is this part of the state: at most 16 blocks of sources, while the peak stays below 1.3
#: times the state.
WORKSPACE_PART = 8


def default_workspace(state_bytes: int, device: torch.device) -> int:
    """How many bytes beside the state the blocks are made for, if the user names none."""
    return max(LEAST_WORKSPACE.get(device.type, LEAST_WORKSPACE["cuda"]), state_bytes // WORKSPACE_PART)


def available_bytes(device: torch.device) -> int | None:
    """The free memory of a device, ``None`` where it cannot be told."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    if device.type != "cpu":
        return None
    known = [n for n in (_free_of_machine(), _free_of_group(Path("/sys/fs/cgroup"))) if n is not None]
    return min(known, default=None)


def return_freed(device: torch.device) -> None:
    """Give the system back what was freed on a CPU: glibc keeps it, in pieces between which larger tensors don't fit.

    It takes some milliseconds, and what is allocated next takes longer, so this is for between long steps.
    """
    trim = _trim() if device.type == "cpu" else None
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return None
    trim.argtypes = [ctypes.c_size_t]
    return trim


def _free_of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _free_of_group(folder: Path) -> int | None:
    """What a container leaves, where it limits memory (control groups, version 2)."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((folder / "memory.current").read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        # Cached files are given up before anything fails.
        return max(int(limit) - used + int(statistics.get("inactive_file", 0)), 0)
    except (OSError, ValueError):
        return None
