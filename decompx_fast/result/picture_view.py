"""A picture with the scores of its patches: over it, as a map by themselves, and what counts for or against alone."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from ..errors import InputError
from .display import AGAINST_RGB, FOR_RGB, VISIBLE, largest_magnitude, score_format, source_labels, strength
from .png import encode

if TYPE_CHECKING:
    from .explanation import Explanation
    from .kinds import Target

View = Literal["overlay", "heatmap", "for", "against"]

#: Of the colour over a picture; over none it may be full.
OVER_ALPHA = 0.65

#: How much is left of the colours of a picture that scores are painted over; the sheet has it too.
SATURATION = 0.35

#: The names of the views, and what they show, for people.
CAPTIONS: dict[str, str] = {
    "overlay": "over the picture",
    "heatmap": "scores alone",
    "for": "only what counts for it",
    "against": "only what counts against it",
}

#: A picture that is so many times as wide as high, as a sound is, takes all of the page's width.
WIDE = 3

#: A picture that is drawn has sides of so many pixels at the least; patches stay blocks.
DRAWN_PIXELS = 448


def patch_scale(explanation: Explanation, target: Target = None) -> float:
    """The ``|score|`` of a patch that has the full colour: the largest."""
    return largest_magnitude(explanation.patches(target).flatten().tolist())


def picture_view(explanation: Explanation, column: int) -> dict[str, Any]:
    """What the template shows: strings and numbers only."""
    picture = explanation.picture
    assert picture is not None
    rows, columns = picture.grid
    height, width = picture.patch
    values = picture.spread(explanation.scores[:, column]).tolist()
    largest = largest_magnitude(value for row in values for value in row)
    number = score_format(value for row in values for value in row)
    names = source_labels(explanation)
    cells = [
        {
            "x": c * width,
            "y": r * height,
            "share": f"{strength(values[r][c], largest):.3f}",
            "sign": _sign(values[r][c], largest),
            "title": f"{_place(explanation, names, r, c)}: {number(values[r][c])}",
        }
        for r in range(rows)
        for c in range(columns)
    ]
    captions = CAPTIONS | ({"overlay": "over the sound"} if explanation.task == "audio-classification" else {})
    pixels = None if picture.pixels is None else base64.b64encode(encode(picture.pixels)).decode()
    return {
        "cells": cells,
        "patch": (width, height),
        "size": (columns * width, rows * height),
        "grid": (rows, columns),
        "is_wide": columns * width > WIDE * rows * height,
        "pixels": pixels,
        "views": [(name, caption) for name, caption in captions.items() if pixels is not None or name == "heatmap"],
        "alpha": OVER_ALPHA,
        "others": _others(explanation, column, largest),
        "scale": [number(-largest), number(largest)],
    }


def _sign(value: float, largest: float) -> str:
    return "" if strength(value, largest) < VISIBLE else "for" if value > 0 else "against"


def _place(explanation: Explanation, names: Sequence[str], row: int, column: int) -> str:
    """What a patch is called, and of which source it is, where sources are several of them."""
    assert explanation.picture is not None
    name = names[int(explanation.picture.groups[row, column])]
    single = explanation.source_unit in ("patch", "frame")
    return name if single else f"row {row}, column {column}, its part of {name}"


def _others(explanation: Explanation, column: int, largest: float) -> list[tuple[str, str, str, str]]:
    """Classes, registers, and the bias token: name, score, sign, and how strong, at most the patches' largest."""
    scores = explanation.scores[:, column].tolist()
    found = [(token, scores[k]) for k, token in enumerate(explanation.tokens) if explanation.special[k]]
    if explanation.bias_token is not None:
        found.append(("bias token", float(explanation.bias_token[column])))
    number = score_format(value for _, value in found)
    return [
        (name, number(value), _sign(value, largest), f"{strength(value, largest) * OVER_ALPHA:.3f}")
        for name, value in found
    ]


def draw(
    explanation: Explanation, view: View = "overlay", target: Target = None, *, scale: float | None = None
) -> Tensor:
    """A view as pixels ``[height, width, 3]`` uint8: green counts for the target, red with a stroke against it.

    Args:
        explanation: of a picture.
        view: ``overlay``, ``heatmap``, ``for`` or ``against``.
        target: as for ``Explanation.column``.
        scale: the ``|score|`` of the full colour; ``None``: the largest of a patch.

    Raises:
        InputError: for a text, for another view, or where the picture was not kept.
    """
    if view not in get_args(View):
        raise InputError(f"view must be one of {', '.join(map(repr, get_args(View)))}, got {view!r}.")
    values = explanation.patches(target)
    picture = explanation.picture
    assert picture is not None
    rows, columns = picture.grid
    height, width = rows * picture.patch[0], columns * picture.patch[1]
    if view != "heatmap" and picture.pixels is None:
        raise InputError(f"view={view!r} is drawn on the picture, which is not kept: use view='heatmap'.")
    scale = patch_scale(explanation, target) if scale is None else scale
    share = (values.double().abs() / (scale or 1.0)).clamp(0, 1)
    share = torch.where(values > 0, share, 0) if view == "for" else share
    share = torch.where(values < 0, share, 0) if view == "against" else share
    short, long = sorted((height, width))
    times = max(-(-DRAWN_PIXELS // (short if long <= 4 * short else long)), 1)
    if view == "heatmap" or picture.pixels is None:
        paper, most = torch.full((height, width, 3), 255.0, dtype=torch.float64), 1.0
    else:
        paper, most = picture.pixels.double(), OVER_ALPHA
        grey = (paper @ paper.new_tensor([0.299, 0.587, 0.114])).unsqueeze(-1)
        # With few of its colours, or none, so that green and red are the scores'.
        paper = grey + (paper - grey) * (SATURATION if view == "overlay" else 0.0)
    positive = (values > 0).unsqueeze(-1)
    paint = torch.where(positive, share.new_tensor(FOR_RGB), share.new_tensor(AGAINST_RGB))
    alpha = _enlarged(most * share, picture.patch).unsqueeze(-1)
    pixels = _enlarged(paper * (1 - alpha) + _enlarged(paint, picture.patch) * alpha, (times, times))
    strokes = _enlarged((values < 0) & (share >= 0.2), (picture.patch[0] * times, picture.patch[1] * times))
    return _struck(pixels, strokes, picture.patch, times).round().to(torch.uint8)


def _enlarged(x: Tensor, times: tuple[int, int]) -> Tensor:
    return x.repeat_interleave(times[0], 0).repeat_interleave(times[1], 1)


def _struck(pixels: Tensor, where: Tensor, patch: tuple[int, int], times: int) -> Tensor:
    """A white stroke from corner to corner of what counts against, for whoever does not tell red from green."""
    height, width = patch[0] * times, patch[1] * times
    y = torch.arange(pixels.shape[0])[:, None] % height + 0.5
    x = torch.arange(pixels.shape[1])[None] % width + 0.5
    thick = max(1.0, min(height, width) / 24)
    on_line = ((y / height - (1 - x / width)).abs() * min(height, width) < thick) & where
    return torch.where(on_line.unsqueeze(-1), 255.0, pixels)
