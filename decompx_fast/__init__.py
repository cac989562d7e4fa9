"""Exact decomposition of a Transformer's predictions into what each source token contributed (DecompX).

The public names are loaded on first use: importing the package loads neither torch, triton nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import DecompXConfig
    from .errors import DecompXError, UnsupportedModelError
    from .explainer import DecompX
    from .request.tasks.places import Word
    from .result.explanation import Explanation
    from .result.failure import Failure
    from .result.pair import PairExplanation
    from .result.readback import read_json

__version__ = "0.1.0"

__all__ = [
    "DecompX",
    "DecompXConfig",
    "DecompXError",
    "Explanation",
    "Failure",
    "PairExplanation",
    "UnsupportedModelError",
    "Word",
    "__version__",
    "read_json",
]

_MODULE_OF = {
    "DecompX": "explainer",
    "DecompXConfig": "config",
    "DecompXError": "errors",
    "Explanation": "result.explanation",
    "Failure": "result.failure",
    "PairExplanation": "result.pair",
    "UnsupportedModelError": "errors",
    "Word": "request.tasks.places",
    "read_json": "result.readback",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
