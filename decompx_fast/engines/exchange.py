"""What processes tell each other that explain one input together, by ``torch.distributed``.

Before anything is exchanged, all say whether they are well: so one that failed stops all, each with its message, and
none waits for it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .. import errors
from ..errors import BackendError, DecompXError, OptionError

ResultT = TypeVar("ResultT")


class Exchange:
    """The processes of a group: all must call the same methods, in the same order, with tensors of the same shapes.

    Args:
        group: a process group of ``torch.distributed`` that this process belongs to.

    Attributes:
        rank, ranks: this process among all, from 0.
        count: how often numbers were exchanged.
        sent_bytes: what this process sent to the others, if sums go round in a ring, as most backends do it.

    Raises:
        OptionError: for what is no group, or one of other processes.
    """

    def __init__(self, group: Any) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise OptionError(
                f"group={errors.shown(group)}: there are no process groups yet: call "
                "torch.distributed.init_process_group(), or start the program with torchrun"
            )
        if not isinstance(group, dist.ProcessGroup):
            raise OptionError(
                f"group={errors.shown(group)} is no process group: use torch.distributed.group.WORLD for all "
                "processes, or what torch.distributed.new_group() returns"
            )
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.count, self.sent_bytes = 0, 0
        self._told: BaseException | None = None

    def sum(self, own: Tensor) -> Tensor:
        """The sum of the tensors of all processes; the same digits in each."""
        return self._reduced(own, dist.ReduceOp.SUM)

    def largest(self, own: Tensor) -> Tensor:
        """The largest of each number."""
        return self._reduced(own, dist.ReduceOp.MAX)

    def gather(self, own: Tensor) -> list[Tensor]:
        """The tensors of all processes, by rank."""
        if self.ranks == 1:
            return [own]
        sent = own.contiguous().to(self._device(own))
        parts = [torch.empty_like(sent) for _ in range(self.ranks)]
        self._meet()
        self._call(lambda: dist.all_gather(parts, sent, group=self.group))
        self._counted((self.ranks - 1) * sent.nbytes)
        return [part.to(own.device) for part in parts]

    def gather_objects(self, own: Any) -> list[Any]:
        """Objects of all processes, by rank."""
        self._meet()
        return self._gather_objects(own)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What all do, or none: an error of one of them is raised in all, and nobody goes on before all are done.

        Raises:
            Exception: the error of the first that failed, of its class if that is one of this package.
        """
        try:
            yield
        except Exception as error:
            if error is self._told:
                raise
            self._meet(error)
            raise
        self._meet()

    def ranks_here(self) -> int:
        """How many of the processes share this machine's memory."""
        return self.gather_objects(socket.gethostname()).count(socket.gethostname())

    def _reduced(self, own: Tensor, operation: Any) -> Tensor:
        if self.ranks == 1:
            return own
        sent = own.contiguous().to(self._device(own), copy=True)
        self._meet()
        self._call(lambda: dist.all_reduce(sent, operation, group=self.group))
        self._counted(2 * (self.ranks - 1) * sent.nbytes // self.ranks)
        return sent.to(own.device)

    def _counted(self, nbytes: int) -> None:
        self.count += 1
        self.sent_bytes += nbytes

    def _meet(self, error: Exception | None = None) -> None:
        """All say whether they are well, and raise the same error if one is not."""
        if self.ranks == 1:
            return
        try:
            unwell = torch.tensor([error is not None], dtype=torch.int32, device=self._device())
            self._call(lambda: dist.all_reduce(unwell, dist.ReduceOp.MAX, group=self.group))
            if not unwell.item():
                return
            found = self._gather_objects(None if error is None else (type(error).__name__, str(error)))
        except BackendError as lost:
            # There is nobody left to tell; an error of our own is worth more than that.
            self._told = error or lost
            raise self._told from None
        rank, (name, message) = next((n, said) for n, said in enumerate(found) if said is not None)
        if error is None or str(error) != message:  # all that fail alike say it themselves
            error = _same_error(name, f"rank {rank} of {self.ranks} failed: {message or name}")
        self._told = error
        raise error

    def _gather_objects(self, own: Any) -> list[Any]:
        found = [None] * self.ranks
        if self.ranks == 1:
            return [own]
        self._call(lambda: dist.all_gather_object(found, own, group=self.group))
        return found

    def _call(self, collective: Callable[[], ResultT]) -> ResultT:
        try:
            return collective()
        except (RuntimeError, ValueError) as error:  # what backends raise, and none says which
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise BackendError(
                f"rank {self.rank} of {self.ranks} could not reach the others ({reason}): one of them has probably "
                "ended, or waited longer than the group's timeout; see what it said"
            ) from error

    def _device(self, own: Tensor | None = None) -> torch.device:
        """Where tensors must be to be exchanged."""
        if dist.get_backend(self.group) == "nccl":
            return torch.device("cuda", torch.cuda.current_device()) if own is None else own.device
        return torch.device("cpu")


def _same_error(name: str, message: str) -> Exception:
    """An error of another process: of the same class, where it is one that a call of this package may end with."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, DecompXError):
        return kind(message)
    return MemoryError(message) if name in ("MemoryError", "OutOfMemoryError") else BackendError(message)
