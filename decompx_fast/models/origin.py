"""Where a model was loaded from, so that a pickle can name its folder in the place of its weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..errors import ModelLoadError
from ..linearize.architectures import unwrap
from .digest import model_sha256

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Origin:
    """How an explainer's model was loaded.

    Attributes:
        loader: the name of the class method that loads it.
        arguments: of it, but for the device.
        stamp: what the model and the tokenizer were when they had been loaded; see :func:`stamp_of`.
    """

    loader: str
    arguments: Mapping[str, Any]
    stamp: tuple[Any, ...]

    @classmethod
    def of(cls, loader: str, model: nn.Module, tokenizer: Any, **arguments: Any) -> Origin | None:
        """That of what has just been loaded; ``None`` for what is in no folder here, as what a hub's id names."""
        path = arguments.get("path_or_id")
        if path is not None:
            if not os.path.isdir(path):
                return None
            arguments["path_or_id"] = os.path.abspath(path)
        return cls(loader, arguments, stamp_of(model, tokenizer))

    def holds(self, model: nn.Module, tokenizer: Any) -> bool:
        """Whether nothing has been changed since."""
        return self.stamp == stamp_of(model, tokenizer)


def stamp_of(model: nn.Module, tokenizer: Any) -> tuple[Any, ...]:
    """What tells a changed model, without reading its weights: its parts, their hooks, the memory and the version of
    its tensors, its configuration, and which tokenizer it is, of which length.

    What is written past PyTorch's count of versions, by ``.data`` or NumPy, it does not tell.
    """
    config = getattr(unwrap(model), "config", None)
    described = None if config is None else json.dumps(config.to_dict(), sort_keys=True, default=str)
    modules = tuple(
        (name, type(module), *(len(getattr(module, hooks)) for hooks in _HOOKS))
        for name, module in model.named_modules()
    )
    tensors = tuple(
        (name, tensor.data_ptr(), tensor.dtype, None if tensor.is_inference() else tensor._version)
        for name, tensor in model.state_dict(keep_vars=True).items()
    )
    length = len(tokenizer) if hasattr(tokenizer, "__len__") else None
    return described, modules, tensors, id(tokenizer), length


def check_same(model: nn.Module, sha256: str, arguments: Mapping[str, Any]) -> None:
    """Raise a ModelLoadError if this is not the model that was pickled."""
    if model_sha256(unwrap(model)) != sha256:
        where = arguments.get("path_or_id", "the package of the demo model")
        raise ModelLoadError(
            f"{where} holds another model than when the explainer was pickled, which names it in the place of its "
            "weights; or the weights were changed by .data before: pickle the explainer again, of a model that is saved"
        )
