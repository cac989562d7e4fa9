"""Our work is no part of a graph that the caller's ``torch.compile`` makes of what is round it, nor of a transform."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from .errors import InputError

_Function = TypeVar("_Function", bound=Callable[..., Any])


def outside_compiler(function: _Function) -> _Function:
    """Run a function as plain Python when it is called in what ``torch.compile`` compiles: the graph breaks there.

    ``torch.compiler.disable`` does that too, but imports the compiler, which takes seconds, for everybody.

    Raises:
        InputError: inside of a transform of ``torch.func``, in which tensors have no values of their own.
    """

    outside: Callable[..., Any] | None = None  # made once: that takes as long as some operations

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal outside
        if not torch.compiler.is_compiling():
            _refuse_transforms()
        if outside is None and (dynamo := sys.modules.get("torch._dynamo")) is not None:
            outside = dynamo.disable(function)
        return (outside or function)(*args, **kwargs)

    return run  # type: ignore[return-value]


def _refuse_transforms() -> None:
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise InputError(
            "an explanation cannot be made inside of torch.func (vmap, grad, jvp ...): call it outside, with plain "
            "inputs; instead of vmap, give a list of them"
        )
