"""How faithful attributions are: the methods of the field under one signature, and the metrics that compare them.

``evaluate`` runs them on texts; the command ``decompx-fast evaluate`` does the same. The public names are loaded on
first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .method import Method, Problem, all_methods
    from .metrics import METRICS
    from .report import Evaluation
    from .run import evaluate

__all__ = ["METRICS", "Evaluation", "Method", "Problem", "all_methods", "evaluate"]

_MODULE_OF = {
    "METRICS": "metrics",
    "Evaluation": "report",
    "Method": "method",
    "Problem": "method",
    "all_methods": "method",
    "evaluate": "run",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
