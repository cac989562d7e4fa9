"""UMT5: T5's layers, each with positions of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...errors import UnsupportedModelError
from ..reading.parts import Module
from ..spec import ModelSpec
from .t5 import families

#: Where a layer has its attention to what it works on.
ATTENTION = ".layer.0.SelfAttention"


def umt5(model: Module, *, family: Callable[[Module], ModelSpec]) -> ModelSpec:
    """As T5's family describes it.

    Raises:
        UnsupportedModelError: if decoders are not told of the order, as in some versions of transformers.
    """
    for name, module in model.named_modules():
        forgets = name.endswith(ATTENTION) and module.is_decoder and not getattr(module, "is_causal", True)
        if forgets and module.config._attn_implementation == "sdpa":
            raise UnsupportedModelError(
                f"{name.removesuffix(ATTENTION)} attends to what comes after a token, unless there is padding: so do "
                "UMT5's decoders in some versions of transformers (5.17 is one). Load the model with "
                "attn_implementation='eager'"
            )
    return family(model)


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    name: partial(umt5, family=family) for name, family in families("UMT5").items()
}
