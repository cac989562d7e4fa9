"""Our work is no part of a graph that the caller's ``torch.compile`` makes of what is round it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def outside_compiler(function: _Function) -> _Function:
    """Run a function as plain Python when it is called in what ``torch.compile`` compiles: the graph breaks there.

    ``torch.compiler.disable`` does that too, but imports the compiler, which takes seconds, for everybody.
    """

    outside: Callable[..., Any] | None = None  # made once: that takes as long as some operations

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal outside
        if outside is None and (dynamo := sys.modules.get("torch._dynamo")) is not None:
            outside = dynamo.disable(function)
        return (outside or function)(*args, **kwargs)

    return run  # type: ignore[return-value]
