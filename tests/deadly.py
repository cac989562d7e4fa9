"""Models that end the process that runs them, or let it wait, for tests of what then becomes of its work."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from torch import nn

from decompx_fast import DecompX


class Deadly:
    """A hook that kills its process where a word is among the inputs.

    Args:
        token: the id of the word.
        count: a file with a byte for each time that it has done so, where it shall do so some times only.
        times: how many.
    """

    def __init__(self, token: int, count: str | None = None, times: int = 1) -> None:
        self.token = token
        self.count = count
        self.times = times

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        if not (ids == self.token).any():
            return
        if self.count is not None:
            with open(self.count, "ab") as file:
                if file.tell() >= self.times:
                    return
                file.write(b"x")
        self.strike()

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Starving(Deadly):
    """The same that fails as PyTorch does where the system gives no memory."""

    def strike(self) -> None:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
        )


class Waiting:
    """A hook that says by the file ``begun`` that it was reached, and waits for the file ``go``, both in a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        (self.folder / "begun").touch()
        while not (self.folder / "go").exists():
            time.sleep(0.01)


def waiting(model: str, folder: Path) -> DecompX:
    """An explainer that waits."""
    explainer = DecompX.from_pretrained(model)
    explainer.model.bert.embeddings.register_forward_pre_hook(Waiting(str(folder)), with_kwargs=True)
    return explainer


def deadly(model: str, word: str, count: Path | None = None, *, times: int = 1, kind: type[Deadly] = Deadly) -> DecompX:
    """An explainer that dies of a word."""
    explainer = DecompX.from_pretrained(model)
    token = explainer.tokenizer.convert_tokens_to_ids(word)
    hook = kind(token, None if count is None else str(count), times)
    explainer.model.bert.embeddings.register_forward_pre_hook(hook, with_kwargs=True)
    return explainer
