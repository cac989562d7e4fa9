"""Layers in the terminal: token to token, as small maps beside one another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from rich.cells import cell_len
from rich.console import Console, Group
from rich.style import Style
from rich.table import Table
from rich.text import Text

from .display import FOR_RGB, hexadecimal, labels_with_blocks, score_format, shown_in
from .layer_plots import layer_norms

if TYPE_CHECKING:
    from .explanation import Explanation

#: Cells of a side; a cell of a longer text is the largest of neighbouring tokens.
MOST_CELLS = 32

#: From nothing to the layer's largest, each as wide as the next but the first and the last, which are half.
SHADES = (" ░▒▓█", " .:+#")

_LABEL_WIDTH = 12


def show_layers(
    explanation: Explanation, stage: str = "encoder", *, console: Console | None = None, width: int | None = None
) -> None:
    """Print maps of token to token: how long the part of each source is in each position's state, layer by layer.

    Each map has its own scale, whose end is above it. Rows are positions, columns sources in the same order.

    Args:
        explanation: made with ``stages=(stage,), stage_output="norm"``.
        stage: one of ``DecompXConfig.stages`` that is of each layer.
        console: where to print; standard output if None.
        width: in columns; the terminal's if None.

    Raises:
        InputError: if it was made without that stage.
    """
    console = console or Console(width=width)
    view = layers_view(explanation, stage, width=width or console.width, encoding=console.encoding)
    console.print(view, width=width)


def layers_view(explanation: Explanation, stage: str, *, width: int, encoding: str = "utf-8") -> Group:
    """What :func:`show_layers` prints.

    Args:
        explanation: with the stage.
        stage: as for :func:`show_layers`.
        width: in columns.
        encoding: where it lacks the shades, they are ASCII.
    """
    norms = layer_norms(explanation, stage)
    rows, sources = next(iter(norms.values())).shape
    heads = [shown_in(encoding, label) for label in labels_with_blocks(explanation)]
    if rows != len(heads):  # sources are not the positions
        heads = [""] * rows
    room = width - 2 * len(str(rows)) - min(_LABEL_WIDTH, max(map(cell_len, heads), default=0)) - 4
    tall, wide = math.ceil(rows / MOST_CELLS), math.ceil(sources / max(1, min(MOST_CELLS, room)))
    shades = SHADES[0] if SHADES[0].encode(encoding, "replace").decode(encoding) == SHADES[0] else SHADES[1]
    maps = {layer: _cells(of, tall, wide, shades) for layer, of in norms.items()}
    number = score_format([float(of.max()) for of in norms.values()])
    titles = {layer: f"{layer}: {number(float(of.max()))[1:]}" for layer, of in norms.items()}
    beside = max(1, room // (max(-(-sources // wide), *map(len, titles.values())) + 2))
    layers = [*maps]
    tables: list[Table | Text] = [Text(f"{stage.capitalize()}, layer by layer: a row is a position, a column a source")]
    for start in range(0, len(layers), beside):
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("#", justify="right", style="dim", no_wrap=True)
        table.add_column("", no_wrap=True, overflow="ellipsis", max_width=_LABEL_WIDTH)
        for layer in layers[start : start + beside]:
            table.add_column(titles[layer], no_wrap=True, style=Style(color=hexadecimal(FOR_RGB)))
        for n, first in enumerate(range(0, rows, tall)):
            last = min(first + tall, rows) - 1
            name = str(first) if first == last else f"{first}-{last}"
            table.add_row(name, Text(heads[first]), *(Text(maps[layer][n]) for layer in layers[start : start + beside]))
        tables += [Text(), table]
    return Group(*tables, Text(), Text(_note(tall, wide, shades), style="dim"))


def _cells(norms: torch.Tensor, tall: int, wide: int, shades: str) -> Sequence[str]:
    """A line of shades for each row of cells, of ``[i, k]``."""
    largest = torch.nn.functional.max_pool2d(norms.double()[None, None], (tall, wide), ceil_mode=True)[0, 0]
    levels = (largest / norms.max().clamp_min(1e-30) * (len(shades) - 1)).round().nan_to_num(0).long()
    return ["".join(shades[level] for level in row) for row in levels.clamp(0, len(shades) - 1).tolist()]


def _note(tall: int, wide: int, shades: str) -> str:
    ends = "The number above a map is its largest length"
    steps = ", ".join(f"{shade} from {2 * n - 1}/8" for n, shade in enumerate(shades) if n)
    grouped = "" if tall == wide == 1 else f" A cell is the largest of {tall} x {wide} tokens."
    return f"{ends}; {steps} of it.{grouped}"
