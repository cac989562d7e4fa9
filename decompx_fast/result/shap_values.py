"""Explanations as those of the package shap, whose plots take them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from ..optional import import_optional
from .account import are_norms
from .explanation import Explanation


def to_shap(explanations: Explanation | Iterable[Explanation]) -> Any:
    """One or several explanations as a ``shap.Explanation``, for ``shap.plots.text``, ``bar``, ``waterfall`` and more.

    ``values`` are the scores, ``data`` the sources as they stand in the text, with the blanks behind them, and
    ``base_values`` what no source has: the bias token and what an option left out. So base and values add up to the
    model's own number, as that package's plots expect; the scores are DecompX's and no Shapley values.

    Args:
        explanations: one, or several of the same targets.

    Returns:
        Of one: ``values`` ``[k, c]``, ``base_values`` ``[c]``. Of several of one length: ``[n, k, c]`` and ``[n, c]``;
        of different lengths an object array of ``[k, c]``. ``output_names`` are the targets.

    Raises:
        InputError: if there are none, their targets differ, or they hold norms (``head=False``).
        MissingPackageError: if shap is not installed.
    """
    shap = import_optional("shap", "to_shap()", extra="shap")
    single = isinstance(explanations, Explanation)
    found = [explanations] if isinstance(explanations, Explanation) else list(explanations)
    _check(found)
    values = [one.scores.double().numpy() for one in found]  # [k, c] each
    base = np.stack([(one.target_logits.double() - one.scores.double().sum(0)).numpy() for one in found])  # [n, c]
    data = [np.array(_pieces(one), dtype=object) for one in found]
    names = list(found[0].targets)
    if single:
        return shap.Explanation(values[0], base[0], data[0], feature_names=list(data[0]), output_names=names)
    return shap.Explanation(_stacked(values), base, _stacked(data), feature_names=data, output_names=names)


def _check(found: Sequence[Any]) -> None:
    if not found:
        raise InputError("explanations must hold at least one explanation, got none.")
    for number, one in enumerate(found):
        if not isinstance(one, Explanation):
            raise InputError(
                f"explanations[{number}] must be an Explanation of a text, got {type(one).__name__}: leave out "
                "failures by `[one for one in explanations if one.ok]`."
            )
        if are_norms(one):
            raise InputError(f"explanations[{number}] holds norms (head=False), which add up to no value.")
        if one.targets != found[0].targets:
            raise InputError(
                f"explanations[{number}] has the targets {list(one.targets)}, and the first has "
                f"{list(found[0].targets)}: give explanations of the same targets, such as one class by targets=."
            )


def _pieces(one: Explanation) -> list[str]:
    """What stands for each source: its characters and the blanks behind them, or its token."""
    pieces = [one.source_text(k) for k in range(len(one))]
    for k, span in enumerate(one.spans):
        if span is not None:
            text = one.texts[span[0]]
            behind = len(text) - len(text[span[2] :].lstrip())
            pieces[k] += text[span[2] : behind]
    return pieces


def _stacked(rows: Sequence[np.ndarray]) -> np.ndarray:
    if len({len(row) for row in rows}) == 1:
        return np.stack(rows)
    found = np.empty(len(rows), dtype=object)
    found[:] = rows
    return found
