"""Several processes that explain together, where ``torchrun`` started them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def launched() -> bool:
    """Whether this process is one of several that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this process is the one that says and writes what all have found."""
    return not launched() or os.environ.get("RANK", "0") == "0"


def own_device(device: str | None) -> str | None:
    """Of several GPUs the one of this process, where only the kind is named."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" and launched() else device


@contextmanager
def all_processes(device: str | None) -> Iterator[ProcessGroup | None]:
    """The group of all that torchrun started, or ``None`` where this process is alone.

    Args:
        device: where this process computes, as :func:`own_device` says.
    """
    if not launched():
        yield None
        return
    import torch
    import torch.distributed as dist

    on_gpu = device is not None and torch.device(device).type == "cuda"
    options: dict[str, Any] = {"device_id": torch.device(device)} if on_gpu and device is not None else {}
    dist.init_process_group("nccl" if on_gpu else "gloo", **options)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
