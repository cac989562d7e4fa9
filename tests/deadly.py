"""Models that end the process that runs them, for tests of what then becomes of its work."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from torch import nn

from decompx_fast import DecompX


class Deadly:
    """A hook that kills its process where a word is among the inputs.

    Args:
        token: the id of the word.
        once: a file that says that it has done so, where it shall do so once only.
    """

    def __init__(self, token: int, once: str | None = None) -> None:
        self.token = token
        self.once = once

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        if not (ids == self.token).any() or (self.once is not None and os.path.exists(self.once)):
            return
        if self.once is not None:
            Path(self.once).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def deadly(model: str, word: str, once: Path | None = None) -> DecompX:
    """An explainer that dies of a word."""
    explainer = DecompX.from_pretrained(model)
    token = explainer.tokenizer.convert_tokens_to_ids(word)
    hook = Deadly(token, None if once is None else str(once))
    explainer.model.bert.embeddings.register_forward_pre_hook(hook, with_kwargs=True)
    return explainer
