"""How faithful attributions are: the methods of the field under one signature, and the metrics that compare them.

``evaluate`` runs them on texts; the command ``decompx-fast evaluate`` does the same. The public names are loaded on
first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazily import lazily

if TYPE_CHECKING:
    from .method import Method, Problem, all_methods
    from .metrics import METRICS
    from .report import Evaluation
    from .run import evaluate

__all__ = ["METRICS", "Evaluation", "Method", "Problem", "all_methods", "evaluate"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "METRICS": "metrics",
        "Evaluation": "report",
        "Method": "method",
        "Problem": "method",
        "all_methods": "method",
        "evaluate": "run",
    },
)
