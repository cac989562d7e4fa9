"""Layers on a page: token to token as small pictures, and what goes through each part as bars."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import torch

from ..errors import InputError
from .display import FOR_RGB, labels_with_blocks, printable, score_format
from .layer_plots import RIVER_TOKENS, bias_totals, component_totals, layer_norms, river_places, river_stripes
from .png import encode

if TYPE_CHECKING:
    from .explanation import Explanation

#: Of longer texts a page has no maps, which are a picture of so many by so many pixels for each layer and stage.
MOST_TOKENS = 192

#: Stripes of a river, the last for all other tokens: each is seen on white and on the page's dark ground.
RIVER_COLOURS = (
    "#3b7dd8",
    "#c2602a",
    "#8f63c4",
    "#2e8b57",
    "#c2447c",
    "#8a7a1f",
    "#1f8a99",
    "#a85a5a",
    "#8c8c8c",
)

#: Of the drawing of a river, in its own units; the names of the layers are below it.
RIVER_WIDTH, RIVER_HEIGHT = 720, 240


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
    return {
        "maps": maps,
        "labels": labels_with_blocks(explanation),
        "parts": _parts(explanation, column),
        "river": _river(explanation, column),
    }


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
    target = explanation.targets[column]
    biases = bias_totals(explanation, target)
    totals = {
        f"layer {layer}": of | ({"biases": biases[layer]} if layer in biases else {})
        for layer, of in component_totals(explanation, target).items()
    }
    if -1 in biases:
        totals["head"] = {"biases": biases[-1]}
    ends = [sum(v for v in of.values() if v * sign > 0) for of in totals.values() for sign in (1, -1)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    width = (high - low) or 1.0
    number = score_format([value for of in totals.values() for value in of.values()])
    rows = []
    for name, of in totals.items():
        at, bars = {True: 0.0, False: 0.0}, []
        for part, value in of.items():
            begin = at[value > 0] if value > 0 else at[False] + value
            at[value > 0] += value
            left, length = 100 * (begin - low) / width, 100 * abs(value) / width
            title = f"{_named(part)} {number(value)}"
            bars.append({"part": part, "left": f"{left:.2f}", "width": f"{length:.2f}", "title": title})
        rows.append({"name": name, "bars": bars})
    names = {part: _named(part) for of in totals.values() for part in of}
    return {"rows": rows, "zero": f"{-100 * low / width:.2f}", "names": names}


def _named(part: str) -> str:
    return part.replace("_residual", ", past it").replace("_", " ")


def _river(explanation: Explanation, column: int) -> dict[str, Any] | None:
    """Stripes of tokens through the layers, as polygons: what speaks for the target above the line, the rest below."""
    if not explanation.component_shares:
        return None
    try:
        names, stripes = river_stripes(explanation, explanation.targets[column], RIVER_TOKENS)
    except InputError:  # of some layers nothing is told
        return None
    above, below = stripes.clamp(min=0).cumsum(0), stripes.clamp(max=0).cumsum(0)  # where each stripe ends
    high, low = float(above.max()), float(below.min())
    scale = RIVER_HEIGHT / ((high - low) or 1.0)
    places = river_places(stripes.shape[1])
    xs = [RIVER_WIDTH * n / (len(places) - 1) for n in range(len(places))]
    number = score_format(stripes.flatten().tolist())

    def polygon(ends: torch.Tensor, stripe: int) -> str:
        inner = ends[stripe - 1] if stripe else torch.zeros_like(ends[0])
        points = [*zip(xs, ends[stripe].tolist(), strict=True), *zip(xs[::-1], inner.flip(0).tolist(), strict=True)]
        return " ".join(f"{x:.0f},{(high - y) * scale:.1f}" for x, y in points)

    return {
        "stripes": [
            {
                "name": printable(name),
                "colour": RIVER_COLOURS[n],
                "title": f"{printable(name)}: {number(float(stripes[n, 0]))} at the input, "
                f"{number(float(stripes[n, -1]))} at the head",
                "polygons": [
                    polygon(ends, n) for ends, own in ((above, stripes[n] > 0), (below, stripes[n] < 0)) if own.any()
                ],
            }
            for n, name in enumerate(names)
        ],
        "zero": f"{high * scale:.1f}",
        "places": [(f"{x:.0f}", place) for x, place in zip(xs, places, strict=True)][:: 1 + len(places) // 13],
        "width": RIVER_WIDTH,
        "height": RIVER_HEIGHT,
    }
