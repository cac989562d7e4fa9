"""Exact decomposition of a Transformer's predictions into what each source token contributed (DecompX).

The public names are loaded on first use: importing the package loads neither torch, triton nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazily import lazily

if TYPE_CHECKING:
    from .config import DecompXConfig
    from .errors import DecompXError, UnsupportedModelError
    from .explainer import DecompX
    from .request.tasks.places import Word
    from .result.difference import difference
    from .result.explanation import Explanation
    from .result.failure import Failure
    from .result.layer_plots import plot_components, plot_layers, plot_river
    from .result.layer_terminal import show_layers
    from .result.pair import PairExplanation
    from .result.readback import read_json
    from .result.shap_values import to_shap

__version__ = "0.2.0"

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
    "difference",
    "plot_components",
    "plot_layers",
    "plot_river",
    "read_json",
    "show_layers",
    "to_shap",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "DecompX": "explainer",
        "DecompXConfig": "config",
        "DecompXError": "errors",
        "Explanation": "result.explanation",
        "Failure": "result.failure",
        "PairExplanation": "result.pair",
        "UnsupportedModelError": "errors",
        "Word": "request.tasks.places",
        "difference": "result.difference",
        "plot_components": "result.layer_plots",
        "plot_layers": "result.layer_plots",
        "plot_river": "result.layer_plots",
        "read_json": "result.readback",
        "show_layers": "result.layer_terminal",
        "to_shap": "result.shap_values",
    },
)
