"""A pair's explanation for people: what the page and the terminal show of it, and the terminal's view."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console, Group
from rich.style import Style
from rich.table import Table
from rich.text import Text

from .account import account_of_pair
from .display import (
    AGAINST_RGB,
    FOR_RGB,
    Piece,
    escaped,
    hexadecimal,
    largest_magnitude,
    layout_text,
    printable,
    score_format,
    source_labels,
    strength,
)
from .pair import PairExplanation, PairSide, count_of, ordinary_pairs
from .png import encode
from .terminal import _Bar, _BothSides, patch_row, piece_style

#: Of longer texts the matrix shows the rows and columns with the largest scores.
MATRIX_MOST = 40

#: So many cells may be linked to each other; beyond, hovering shows nothing, and sums and the matrix remain.
LINKED_CELLS = 20_000

#: So many tokens in a row that are alike and special, as padding is, are shown as one.
REPEATS = 4

TOP_ROWS = 12

#: What a similarity is called.
MEASURES = {"cos": "Cosine", "dot": "Dot", "logit": "Logit"}


def pair_view(pair: PairExplanation, max_alpha: float) -> dict[str, Any]:
    """What the template shows of a pair: strings and numbers only."""
    status, extent, is_sound = account_of_pair(pair)
    sums = [pair.sum("a").tolist(), pair.sum("b").tolist()]
    number = score_format([pair.value, *sums[0], *sums[1]])
    rows = [_pieces_of(side) for side in (pair.a, pair.b)]
    linked = sum(bool(p.positions) for p in rows[0]) * sum(bool(p.positions) for p in rows[1]) <= LINKED_CELLS
    names = source_labels(pair.a), source_labels(pair.b)
    return {
        "template": "pair.html.jinja",
        "measure": MEASURES[pair.measure],
        "value": number(pair.value),
        "total": number(pair.total - pair.offset),
        "offset": number(pair.offset) if pair.offset else None,
        "status": status,
        "extent": extent,
        "is_sound": is_sound,
        "linked": linked,
        "sides": [
            {
                "name": name,
                "pieces": _pieces(side, pieces, of_side, number, max_alpha),
                "has_text": bool(side.texts),
                "count": count_of(side),
                "picture": _picture(side),
            }
            for name, side, pieces, of_side in zip("ab", (pair.a, pair.b), rows, sums, strict=True)
        ],
        "links": _links(pair, rows, max_alpha) if linked else ([""] * len(rows[0]), [""] * len(rows[1])),
        "matrix": _matrix(pair, sums, max_alpha),
        "top": [(names[0][k], names[1][m], number(score)) for _, _, score, k, m in pair.top(TOP_ROWS)],
        "made": _made_with(pair),
    }


def _pieces_of(side: PairSide) -> list[Piece]:
    """The stretches of a text in their order, of which many equal special tokens in a row are one; of a picture its
    sources."""
    pieces = [piece for row in layout_text(side) for piece in row]
    found: list[Piece] = []
    for _, run in groupby(pieces, lambda piece: _repeated(side, piece)):
        alike = list(run)
        if len(alike) < REPEATS or _repeated(side, alike[0]) is None:
            found += alike
            continue
        positions = tuple(position for piece in alike for position in piece.positions)
        found.append(Piece(f"{alike[0].text} \u00d7{len(alike)}", positions, is_marker=True))
    return found


def _repeated(side: PairSide, piece: Piece) -> str | None:
    """What a special token of a text is called; ``None`` for all else."""
    is_special = piece.is_marker and all(side.special[position] for position in piece.positions)
    return piece.text if is_special and side.picture is None else None


def _picture(side: PairSide) -> dict[str, Any] | None:
    """Where the patches of a picture are, as the numbers of its sources row by row, and what it looked like."""
    picture = side.picture
    if picture is None:
        return None
    pixels = None if picture.pixels is None else base64.b64encode(encode(picture.pixels)).decode()
    rows, columns = picture.grid
    return {
        "cells": picture.groups.flatten().tolist(),
        "columns": columns,
        "ratio": f"{columns * picture.patch[1]} / {rows * picture.patch[0]}",
        "pixels": pixels,
        "patched": set(picture.groups.flatten().tolist()),
    }


def _pieces(
    side: PairSide, pieces: Sequence[Piece], sums: Sequence[float], number: Callable[[float], str], max_alpha: float
) -> list[dict[str, Any]]:
    """The stretches of a text, coloured by what they add with all of the other text."""
    labels, largest = source_labels(side), _scale(side, sums)
    found = []
    for number_of_piece, piece in enumerate(pieces):
        score = math.fsum(sums[k] for k in piece.positions)
        share = strength(score, largest)
        found.append(
            {
                "number": number_of_piece,
                "text": printable(piece.text),
                "title": ", ".join(f"{labels[k]} {number(sums[k])} (#{k})" for k in piece.positions) or "not read",
                "alpha": f"{math.copysign(share * max_alpha, score):.3f}",
                "is_source": bool(piece.positions),
                "is_marker": piece.is_marker,
            }
        )
    return found


def _links(pair: PairExplanation, rows: Sequence[Sequence[Piece]], max_alpha: float) -> tuple[list[str], list[str]]:
    """For each stretch of either text, what its scores with those of the other are, as properties of a style."""
    largest = _scale_of_pairs(pair)
    scores = pair.scores.double().tolist()

    def joint(one: Piece, other: Piece) -> str:
        score = math.fsum(scores[k][m] for k in one.positions for m in other.positions)
        return f"{math.copysign(strength(score, largest) * max_alpha, score):.2f}"

    of_a = [";".join(f"--b{n}:{joint(p, q)}" for n, q in enumerate(rows[1]) if q.positions) for p in rows[0]]
    of_b = [";".join(f"--a{n}:{joint(p, q)}" for n, p in enumerate(rows[0]) if p.positions) for q in rows[1]]
    return of_a, of_b


def _matrix(pair: PairExplanation, sums: Sequence[Sequence[float]], max_alpha: float) -> dict[str, Any]:
    """Scores of pairs with the sums of rows and columns; of long texts the strongest sources."""
    labels = [source_labels(side) for side in (pair.a, pair.b)]
    sizes = [pair.scores.abs().sum(axis).tolist() for axis in (1, 0)]
    kept = [sorted(sorted(range(len(size)), key=lambda n: -size[n])[:MATRIX_MOST]) for size in sizes]
    largest = _scale_of_pairs(pair)
    scores = pair.scores.double().tolist()
    number = score_format([scores[k][m] for k in kept[0] for m in kept[1]] + [*sums[0], *sums[1]])

    def cell(value: float) -> tuple[str, str, str]:
        return number(value), "for" if value > 0 else "against", f"{strength(value, largest) * max_alpha:.3f}"

    return {
        "columns": [(m, labels[1][m], pair.b.special[m]) for m in kept[1]],
        "rows": [
            {
                "position": k,
                "label": labels[0][k],
                "special": pair.a.special[k],
                "cells": [cell(scores[k][m]) for m in kept[1]],
                "sum": number(sums[0][k]),
            }
            for k in kept[0]
        ],
        "feet": [number(sums[1][m]) for m in kept[1]],
        "total": number(pair.total - pair.offset),
        "scale": number(largest),
        "is_whole": [len(k) for k in kept] == [len(pair.a), len(pair.b)],
    }


def _scale(side: PairSide, sums: Sequence[float]) -> float:
    """The ``|sum|`` that gets the full colour: the largest of a source that is not special, if there is one."""
    ordinary = [value for value, special in zip(sums, side.special, strict=True) if not special]
    return largest_magnitude(ordinary) or largest_magnitude(sums)


def _scale_of_pairs(pair: PairExplanation) -> float:
    """The same of the scores of pairs."""
    ordinary = pair.scores[ordinary_pairs(pair)].tolist()
    return largest_magnitude(ordinary) or largest_magnitude(pair.scores.flatten().tolist())


def _made_with(pair: PairExplanation) -> list[tuple[str, str]]:
    """Engines, time, options and notes, by name."""
    engines = ", ".join(f"{name}: {engine or 'run only'}" for name, engine in zip("ab", pair.engines, strict=True))
    rows = [("engines", engines), ("time", f"{pair.time_s:.3g} s")]
    for name, value in {**pair.metadata, **pair.options}.items():
        rows.append((name, value if isinstance(value, str) else json.dumps(value, default=str)))
    return [(printable(str(name)), printable(value)) for name, value in rows]


def show_pair(pair: PairExplanation, *, console: Console | None = None, width: int | None = None) -> None:
    """Print the terminal view; arguments as for :func:`.terminal.show`."""
    console = console or Console(width=width)
    console.print(terminal_pair(pair, encoding=console.encoding), width=width)


def terminal_pair(pair: PairExplanation, *, encoding: str = "utf-8") -> Group:
    """What :func:`show_pair` prints: the value, both texts coloured by their sums, and the strongest pairs.

    Args:
        pair: what to show.
        encoding: characters that it lacks are written as escapes.
    """

    def plain(text: str) -> str:
        return escaped(printable(text)).encode(encoding, "backslashreplace").decode(encoding)

    status, extent, is_sound = account_of_pair(pair)
    number = score_format([pair.value, pair.total, *pair.scores.flatten().tolist()])
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(MEASURES[pair.measure], number(pair.value))
    grid.add_row("Sum of pairs", number(pair.total - pair.offset))
    if pair.offset:
        grid.add_row("Model's bias", number(pair.offset))
    grid.add_row(status, Text(extent, style="" if is_sound else "bold"))
    texts = []
    for name, side, sums in (("a", pair.a, pair.sum("a").tolist()), ("b", pair.b, pair.sum("b").tolist())):
        texts.append(_coloured(name, side, sums, plain))
    return Group(grid, Text(), *texts, Text(), _legend(), Text(), _strongest(pair, number, plain))


def _coloured(name: str, side: PairSide, sums: Sequence[float], plain: Callable[[str], str]) -> Text:
    text, largest = Text(f"{name}  ", style="dim", overflow="fold"), _scale(side, sums)
    pieces = _pieces_of(side)
    if side.picture is not None:
        for row in side.picture.groups.tolist():
            text.append("\n   ").append_text(patch_row(row, sums, largest))
        patched = set(side.picture.groups.flatten().tolist())
        pieces = [piece for piece in pieces if not patched.issuperset(piece.positions)]
        text.append("\n   " if pieces else "")
    for index, piece in enumerate(pieces):
        text.append(plain(piece.text), style=Style(dim=False) + piece_style(piece, sums, largest))
        following = pieces[index + 1] if index + 1 < len(pieces) else None
        if following is not None and (piece.is_marker or following.is_marker):
            text.append(" ")
    return text


def _legend() -> Text:
    text = Text("green, bold", style=Style(color=hexadecimal(FOR_RGB), bold=True))
    text.append(" alike   ", style="not bold default")
    text.append("red, underlined", style=Style(color=hexadecimal(AGAINST_RGB), underline=True, bold=False))
    text.append(" apart", style="not bold default")
    return text


class _Heading(_BothSides):
    """What the sides of the axis of the bars mean."""

    def sides(self, half: int, ascii_only: bool) -> tuple[str, str, Style]:
        left, right = ("apart ", " alike") if half >= len(" alike") else ("- ", " +")
        return left, right, Style(bold=True)


def _strongest(pair: PairExplanation, number: Callable[[float], str], plain: Callable[[str], str]) -> Table:
    table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
    for name in ("Strongest pairs: a", "b"):
        table.add_column(name, ratio=2, no_wrap=True, overflow="ellipsis")
    table.add_column("Score", justify="right", no_wrap=True)
    table.add_column(_Heading(), ratio=3, no_wrap=True)
    largest = _scale_of_pairs(pair)
    labels = source_labels(pair.a), source_labels(pair.b)
    for _, _, score, k, m in pair.top(TOP_ROWS):
        cells = [
            Text(plain(labels[n][at]), style="dim" if side.special[at] else "")
            for n, (side, at) in enumerate(((pair.a, k), (pair.b, m)))
        ]
        table.add_row(*cells, number(score), _Bar(score, largest))
    return table
