"""Where the decomposed state is: in memory, or in a file that is mapped into it, a block at a time."""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from ..errors import OptionError, PlanError, shown
from .blocks import blocks
from .plan_text import gib

StorageKind = Literal["memory", "disk"]
STORAGES: tuple[str, ...] = get_args(StorageKind)

#: Linux reads so many bytes at least that it is told are needed, and may leave the rest of more.
AT_ONCE = 128 << 10

#: File systems that are memory themselves.
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


class Memory:
    """States that are tensors like all others."""

    in_blocks = False

    def zeros(self, like: Tensor, *shape: int) -> Tensor:
        """A state of zeros, of the dtype and on the device of another tensor."""
        return like.new_zeros(shape)

    def empty(self, like: Tensor, *shape: int) -> Tensor:
        """A state that is not filled yet."""
        return like.new_empty(shape)

    def by_sources(self, most: int, *states: Tensor) -> Iterator[slice]:
        """:func:`..blocks.blocks` of the sources of states ``[b, i, k, d]``, of which others are not looked at
        meanwhile."""
        return blocks(states[0].shape[2], most)

    def by_rows(self, most: int, *states: Tensor) -> Iterator[slice]:
        """The same of their positions, on the joined axis of batch and positions."""
        return blocks(states[0].shape[0] * states[0].shape[1], most)


class Disk(Memory):
    """States in files without a name, which are gone with the states, or with the process, however it ends.

    The system is told which bytes the next block takes, and reads these and no others while this one is computed: by
    itself it reads far around each byte that is looked at, which for a block of sources, a short run in the row of each
    position, may be the whole file. After each block what is mapped is given up: it is written when the system finds
    time, and read again when it is needed, from what the system keeps of the file in memory that nobody else wants.

    Args:
        folder: of the files.

    Raises:
        OptionError: for a folder in which none can be made, or which is in memory.
    """

    in_blocks = True

    def __init__(self, folder: str) -> None:
        check_folder(folder)
        self._folder = folder
        self._maps: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()  # with their addresses

    def zeros(self, like: Tensor, *shape: int) -> Tensor:
        nbytes = max(math.prod(shape) * like.dtype.itemsize, 1)
        with tempfile.TemporaryFile(prefix="decompx-fast-", dir=self._folder) as file:
            try:
                # All room is taken now: where it is found missing when a page is written, the process is killed.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, nbytes)
                else:
                    os.truncate(file.fileno(), nbytes)
                mapped = mmap.mmap(file.fileno(), nbytes)
            except OSError as error:
                room = gib(room_in(self._folder))
                raise PlanError(
                    f"storage='disk' needs {gib(nbytes)} for a state in {self._folder}, where {room} are free "
                    f"({error.strerror}): make room, or name another folder (folder=..., --folder)"
                ) from error
        state = torch.frombuffer(mapped, dtype=like.dtype, count=math.prod(shape)).view(shape)
        self._maps[mapped] = state.data_ptr()
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)  # nothing is read that is not looked at, or asked for
        return state

    empty = zeros

    def by_sources(self, most: int, *states: Tensor) -> Iterator[slice]:
        flat = [state.flatten(0, 1) for state in states]
        return self._in_turn(super().by_sources(most, *states), lambda some: (row[some] for x in flat for row in x))

    def by_rows(self, most: int, *states: Tensor) -> Iterator[slice]:
        flat = [state.flatten(0, 1) for state in states]
        return self._in_turn(super().by_rows(most, *states), lambda rows: (x[rows] for x in flat))

    def _in_turn(self, blocks: Iterator[slice], parts: Callable[[slice], Iterable[Tensor]]) -> Iterator[slice]:
        """Blocks, of which the next is read while one is worked on; ``parts``: what lies in one piece of each."""
        ahead = next(blocks, None)
        self._read(parts, ahead)
        while ahead is not None:
            block, ahead = ahead, next(blocks, None)
            self._read(parts, ahead)
            yield block
            self._give_up()

    def _read(self, parts: Callable[[slice], Iterable[Tensor]], block: slice | None) -> None:
        """Have the parts of a block read, without waiting for them."""
        advice = getattr(mmap, "MADV_WILLNEED", None)
        if block is None or advice is None:
            return
        known = set()
        for part in parts(block):
            start, nbytes = part.data_ptr(), part.nbytes
            if start in known:  # one state may be read and written
                continue
            known.add(start)
            for mapped, address in self._maps.items():
                if address <= start < address + len(mapped):
                    first = (start - address) // mmap.PAGESIZE * mmap.PAGESIZE
                    for some in range(first, start - address + nbytes, AT_ONCE):
                        mapped.madvise(advice, some, min(AT_ONCE, start - address + nbytes - some))

    def _give_up(self) -> None:
        for mapped in self._maps:
            if hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)  # of a shared mapping, nothing is lost


def storage_of(kind: str, folder: str | None, device: torch.device) -> Memory:
    """What keeps the states.

    Raises:
        OptionError: for a device whose memory no file can be mapped into, or a folder that cannot be used.
    """
    if kind == "memory":
        return Memory()
    if device.type != "cpu":
        raise OptionError(
            f"storage='disk' is for a model on the CPU, and this one is on {device}: load it there, or leave it out"
        )
    return Disk(default_folder() if folder is None else folder)


def default_folder() -> str:
    """Where files go if no folder is named."""
    return tempfile.gettempdir()


def room_in(folder: str) -> int:
    """The bytes that are free there."""
    return shutil.disk_usage(folder).free


def check_storage(kind: str, folder: str | None) -> None:
    """Whether there is such a storage.

    Raises:
        OptionError: names the argument.
    """
    if kind not in STORAGES:
        raise OptionError(f"storage={shown(kind)}: use one of {', '.join(map(repr, STORAGES))}")
    if folder is not None and kind != "disk":
        raise OptionError(f"folder={shown(folder)} is for a state on disk: give storage='disk' too, or leave it out")
    if folder is not None and not isinstance(folder, str):
        raise OptionError(f"folder={shown(folder)}: give a folder's path as a string")


def check_folder(folder: str) -> None:
    """Whether files can be made there, on a disk.

    Raises:
        OptionError: with what to do.
    """
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise OptionError(f"folder={folder!r} is no folder that can be written to: name one on a disk with room")
    kind = _file_system(folder)
    if kind in IN_MEMORY:
        raise OptionError(
            f"folder={folder!r} is in memory itself ({kind}), so that a state there spares none: name one on a disk "
            "(folder=..., --folder)"
        )


def _file_system(folder: str) -> str | None:
    """The kind of the file system of a folder, where the system tells."""
    place = os.path.realpath(folder)
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return None
    # Blanks in names are written as octal numbers; of several mounts at one place the last is seen.
    found = [(at.replace("\\040", " "), kind) for at, kind in mounts]
    holding = [(len(at), n, kind) for n, (at, kind) in enumerate(found) if os.path.commonpath([place, at]) == at]
    return max(holding)[2] if holding else None
