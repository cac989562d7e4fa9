"""Layers on a page: token to token as small pictures, and what goes through each part as bars."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import torch

from .display import FOR_RGB, labels_with_blocks, score_format
from .layer_plots import component_totals, layer_norms
from .png import encode

if TYPE_CHECKING:
    from .explanation import Explanation

#: Of longer texts a page has no maps, which are a picture of so many by so many pixels for each layer and stage.
MOST_TOKENS = 192


def layer_view(explanation: Explanation, column: int) -> dict[str, Any]:
    """What the template shows: strings and numbers only.

    Args:
        explanation: with stages, components, or neither.
        column: the target whose components are shown.
    """
    stages = list(dict.fromkeys(name.rpartition(".")[0] for name in explanation.stages))
    maps = [
        _maps(explanation, stage)
        for stage in stages
        if len(explanation) <= MOST_TOKENS and _has_layers(stage, explanation)
    ]
    return {"maps": maps, "labels": labels_with_blocks(explanation), "parts": _parts(explanation, column)}


def _has_layers(stage: str, explanation: Explanation) -> bool:
    """Whether a stage is of each layer, with a row for each position and a column for each source."""
    shapes = {value.shape[:2] for name, value in explanation.stages.items() if name.startswith(f"{stage}.")}
    return shapes == {(len(explanation), len(explanation))}


def _maps(explanation: Explanation, stage: str) -> dict[str, Any]:
    layers = []
    for layer, norms in layer_norms(explanation, stage).items():
        share = (norms.double() / norms.max().clamp_min(1e-30)).unsqueeze(-1).clamp(0, 1)  # [i, k, 1]
        pixels = 255 - share * (255 - torch.tensor(FOR_RGB).double())
        png = base64.b64encode(encode(pixels.round().to(torch.uint8))).decode()
        layers.append(
            {"layer": layer, "png": png, "largest": score_format([float(norms.max())])(float(norms.max()))[1:]}
        )
    return {"stage": stage, "layers": layers}


def _parts(explanation: Explanation, column: int) -> dict[str, Any] | None:
    """Bars of each layer, in percent of the width of the longest, from where they begin."""
    if not explanation.component_shares:
        return None
    totals = component_totals(explanation, explanation.targets[column])
    ends = [sum(v for v in of.values() if v * sign > 0) for of in totals.values() for sign in (1, -1)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    width = (high - low) or 1.0
    number = score_format([value for of in totals.values() for value in of.values()])
    rows = []
    for layer, of in totals.items():
        at, bars = {True: 0.0, False: 0.0}, []
        for part, value in of.items():
            begin = at[value > 0] if value > 0 else at[False] + value
            at[value > 0] += value
            left, length = 100 * (begin - low) / width, 100 * abs(value) / width
            name = part.replace("_residual", ", past it").replace("_", " ")
            bars.append(
                {"part": part, "left": f"{left:.2f}", "width": f"{length:.2f}", "title": f"{name} {number(value)}"}
            )
        rows.append({"layer": layer, "bars": bars})
    names = {part: _named(part) for of in totals.values() for part in of}
    return {"rows": rows, "zero": f"{-100 * low / width:.2f}", "names": names}


def _named(part: str) -> str:
    return part.replace("_residual", ", past it").replace("_", " ")
