"""Explanations as HTML: a fragment, a list of them, a page. Nothing is loaded, and only a page has a script."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .account import Account, account, are_norms
from .blocks import block_of
from .display import (
    VISIBLE,
    Piece,
    colour_scale,
    focus_note,
    labels_with_blocks,
    layout_text,
    outcomes,
    outcomes_name,
    percent,
    plural,
    predicted_classes,
    printable,
    score_format,
    sinks_named,
    strength,
)
from .layer_view import layer_view
from .matrix import UNREAD, is_matrix
from .picture_view import picture_view
from .templating import MAX_ALPHA, constants, page_script, template
from .words import group_by_number, group_by_word

if TYPE_CHECKING:
    from .explanation import Explanation
    from .kinds import Target
    from .pair import PairExplanation
    from .readings import Prediction

#: A list in a notebook shows so many explanations at most, and no more once it has so many characters.
LIST_ITEMS = 10
LIST_CHARACTERS = 500_000

#: Tabs for the tokens of an output are made for so many sources times tokens at most.
TAB_PIECES = 20_000


def render_fragment(explanation: Explanation | PairExplanation, target: Target = None) -> str:
    """HTML to be placed in a page or notebook: no scripts, nothing to be loaded, styles for itself alone.

    Args:
        explanation: what to show.
        target: which one colours the text; as for ``Explanation.column``.
    """
    return template("fragment.html.jinja").render(constants() | {"view": _view(explanation, target)})


def render_list(items: Sequence[Any]) -> str:
    """The first of several explanations as one fragment, for a notebook, which keeps what it shows in its file.

    Args:
        items: explanations; anything else among them is shown as its ``repr``.
    """
    shown: list[tuple[str, bool]] = []  # HTML or plain text, and which
    size = 0
    for item in items[:LIST_ITEMS]:
        view = _view(item, None)
        if view is not None:
            text = template(view["template"]).render(constants() | {"view": view})
        else:
            text = printable(repr(item))
        size += len(text)
        if shown and size > LIST_CHARACTERS:
            break
        shown.append((text, view is not None))
    return template("list.html.jinja").render(constants() | {"items": shown, "count": len(items)})


def render_page(
    explanations: Iterable[Explanation | PairExplanation],
    *,
    target: Target = None,
    title: str = "DecompX explanation",
) -> str:
    """An HTML document with one or several explanations, complete in itself.

    Args:
        explanations: what to show, in this order.
        target: which one colours the texts; as for ``Explanation.column``.
        title: of the document.
    """
    return "".join(page_chunks((("", one) for one in explanations), target=target, title=title))


def page_chunks(
    entries: Iterable[tuple[str, Any]], *, target: Target = None, title: str = "DecompX explanation"
) -> Iterator[str]:
    """The same document in parts, made as they are asked for, so that no more than one explanation is held.

    Args:
        entries: the name of each input, which may be empty, and its explanation, or what stands in its place: its
            ``error`` is shown.
        target: as for :func:`render_page`.
        title: of the document.
    """
    views = (_page_view(place, outcome, target) for place, outcome in entries)
    known = constants() | page_script()
    chunks = template("page.html.jinja").generate(known | {"views": views, "title": printable(title)})
    return map(str, chunks)  # some are of a class that escapes what it is added to


def page_end() -> str:
    """What closes such a document, behind the last explanation."""
    return "".join(page_chunks([])).rpartition("</p>\n")[2]


def _page_view(place: str, outcome: Any, target: Target) -> dict[str, Any]:
    data: dict[str, Any] = {"data-place": printable(place) or None}
    about: dict[str, Any] = {"place": printable(place), "failure": None, "data": data}
    view = _view(outcome, target)
    if view is None:
        return about | {"failure": printable(str(getattr(outcome, "error", outcome)))}
    data |= _data(outcome)
    return about | view


def _data(one: Any) -> dict[str, Any]:
    """What a page's texts are searched and ordered by, as attributes; those of None are left out."""
    label, probabilities = getattr(one, "predicted_label", None), getattr(one, "probabilities", None)
    return {
        "data-label": printable(", ".join(label) if isinstance(label, tuple) else label or "") or None,
        "data-p": None if probabilities is None else f"{float(probabilities.max()):.6f}",
        "data-error": f"{one.completeness_error:.3e}",
        "data-n": len(one) if hasattr(one, "tokens") else None,
        "data-sink": "" if getattr(one, "task", None) == "text-generation" else None,
    }


def _view(item: Any, target: Target) -> dict[str, Any] | None:
    """What its template shows of an explanation, of a text or of a pair; ``None`` for anything else."""
    from .explanation import Explanation
    from .pair import PairExplanation

    if isinstance(item, PairExplanation):
        from .pair_view import pair_view

        return pair_view(item, MAX_ALPHA)
    return _html_view(item, target) if isinstance(item, Explanation) else None


def _html_view(explanation: Explanation, target: Target) -> dict[str, Any]:
    """What the templates show of one explanation: strings and numbers only."""
    column = explanation.column(target)
    scores: list[float] = explanation.scores[:, column].tolist()
    tabs = _tabs(explanation) if target is None and is_matrix(explanation) else []
    shown = range(len(explanation.targets)) if tabs else [column]
    largest, all_scores = colour_scale(explanation, shown), explanation.scores[:, list(shown)].flatten().tolist()
    number, in_legend = score_format(scores), score_format(all_scores)
    labels = labels_with_blocks(explanation)
    totals = account(explanation, column)
    value, source_sum, apart = totals.written()
    return {
        "template": "explanation.html.jinja",
        "outcomes_name": outcomes_name(explanation),
        "outcomes": [(printable(name), outcome, predicted) for name, outcome, predicted in outcomes(explanation)],
        "target": printable(explanation.targets[column]),
        "value_name": totals.value_name,
        "value": value,
        "source_sum": source_sum,
        "apart": apart,
        "status": totals.status,
        "extent": totals.extent,
        "is_sound": totals.is_sound,
        "focus": focus_note(explanation, column),
        "are_norms": are_norms(explanation),
        "unit": explanation.source_unit,
        "units": plural(explanation.source_unit),
        "picture": None if explanation.picture is None else picture_view(explanation, column),
        "count": len(explanation),
        "has_text": bool(explanation.texts),
        "rows": _html_rows(explanation, scores, labels, largest, number),
        "legend": [in_legend(one) for one in (-largest, largest, min(all_scores), max(all_scores))],
        "is_cut": any(abs(score) > largest for score in all_scores if math.isfinite(score)),
        "cut": sinks_named(explanation),
        "tabs": tabs,
        "heads": {} if tabs or len(explanation.targets) == 1 else _heads(explanation),
        "table": _html_table(explanation, column, labels),
        "layers": layer_view(explanation, column),
        "made": _made_with(explanation),
    }


def _heads(explanation: Explanation) -> dict[str, list[Any]]:
    """What is said above the text of each target, by its name: of which a page's script shows the chosen one's."""
    heads = {}
    for column, name in enumerate(explanation.targets):
        totals = account(explanation, column)
        value, source_sum, apart = totals.written()
        said = ", ".join([f"{plural(explanation.source_unit)} {source_sum}", *([apart] if apart else [])])
        heads[printable(name)] = [f"{totals.value_name} {value}", said, totals.status, totals.extent, totals.is_sound]
    return heads


def _tabs(explanation: Explanation) -> list[dict[str, Any]]:
    """The text as each column colours it; nothing where that would be too much to look at."""
    if len(explanation) * len(explanation.targets) > TAB_PIECES:
        return []
    largest = colour_scale(explanation, range(len(explanation.targets)))
    labels = labels_with_blocks(explanation)
    said = explanation.predictions or ()
    tabs = []
    for column, name in enumerate(explanation.targets):
        scores: list[float] = explanation.scores[:, column].tolist()
        number, total = score_format(scores), account(explanation, column)
        value, source_sum, apart = total.written()
        tabs.append(
            {
                "name": printable(name),
                "is_first": column == 0,
                "value_name": total.value_name,
                "value": value,
                "source_sum": source_sum,
                "apart": apart,
                "probability": percent(said[column].score) if _is_of(name, said, column) else "",
                "rows": _html_rows(explanation, scores, labels, largest, number),
            }
        )
    return tabs


def _html_rows(
    explanation: Explanation,
    scores: list[float],
    labels: list[str],
    largest: float,
    number: Callable[[float], str],
) -> list[list[dict[str, Any]]]:
    """The texts in pieces; each after the name of its block, where there are two."""
    rows = []
    words = _word_of_source(explanation)
    for pieces in layout_text(explanation):
        block = block_of(explanation, [k for piece in pieces for k in piece.positions])
        row = [_html_piece(explanation, piece, scores, labels, largest, number, words) for piece in pieces]
        name = {"text": f"{block}: ".capitalize(), "title": f"what the {block} reads", "is_source": False}
        rows.append(row if block is None else [name, *row])
    return rows


def _word_of_source(explanation: Explanation) -> dict[int, int]:
    """The number of the word that each token is a part of; nothing where sources are no tokens of a text."""
    if explanation.source_unit != "token" or not any(explanation.spans):
        return {}
    if explanation.word_ids is not None:
        groups = group_by_number(explanation.word_ids, explanation.spans)
    else:
        groups = group_by_word(explanation.spans, explanation.special, explanation.texts)
    return {k: number for number, group in enumerate(groups) for k in group.positions}


def _is_of(name: str, said: Sequence[Prediction], column: int) -> bool:
    """Whether a column is of the output's token of the same number, perhaps less the mean, and not of another token."""
    if column >= len(said):
        return False
    rest = name.removeprefix(said[column].name)
    return name.startswith(said[column].name) and (not rest or rest.startswith((" (#", " - mean")))


def _html_piece(
    explanation: Explanation,
    piece: Piece,
    scores: list[float],
    labels: list[str],
    largest: float,
    number: Callable[[float], str],
    words: dict[int, int],
) -> dict[str, Any]:
    score = math.fsum(scores[position] for position in piece.positions)
    share = strength(score, largest)
    details = ", ".join(f"{labels[k]} {number(scores[k])} (#{k})" for k in piece.positions)
    if len(piece.positions) > 1:
        details = f"{number(score)} = {details}"
    return {
        "text": printable(piece.text),
        "title": details or "not read by the model",
        "sign": "" if share < VISIBLE else "for" if score > 0 else "against",
        "alpha": f"{share * MAX_ALPHA:.3f}",
        "is_source": bool(piece.positions),
        "at": " ".join(map(str, piece.positions)),
        "word": words.get(piece.positions[0]) if piece.positions else None,
        # Where only ids were given nothing has a place in a text, and only what is special is set apart.
        "is_marker": piece.is_marker
        and (bool(explanation.texts) or any(explanation.special[k] for k in piece.positions)),
    }


def _html_table(explanation: Explanation, column: int, labels: list[str]) -> dict[str, Any]:
    """All scores of all targets, with the sums and the model's values below; the explained and predicted ones first."""
    predicted = predicted_classes(explanation)
    is_predicted = [index is not None and index in predicted for index in explanation.target_ids]
    order = sorted(range(len(explanation.targets)), key=lambda c: (c != column, not is_predicted[c]))
    scores = explanation.scores.double()[:, order]
    numbers = [score_format(values) for values in scores.T.tolist()]
    scale = colour_scale(explanation, order)

    def cell(value: float, number: Callable[[float], str]) -> tuple[str, str, str]:
        if value == 0 and is_matrix(explanation):
            return UNREAD, "", "0"
        return number(value), "for" if value > 0 else "against", f"{strength(value, scale) * MAX_ALPHA:.3f}"

    rows = [
        {
            "position": k,
            "label": label,
            "special": explanation.special[k],
            "cells": list(map(cell, scores[k].tolist(), numbers)),
        }
        for k, label in enumerate(labels)
    ]
    targets = [(printable(explanation.targets[c]), c == column, is_predicted[c]) for c in order]
    feet = _feet(explanation, [account(explanation, c) for c in order], numbers)
    return {"targets": targets, "rows": rows, "feet": feet, "scale": score_format([scale])(scale)}


def _feet(
    explanation: Explanation, totals: Sequence[Account], numbers: Sequence[Callable[[float], str]]
) -> list[tuple[str, list[str]]]:
    """What the columns add up to: the sum of the sources, what is not theirs, and the model's value."""
    rows: list[tuple[str, list[float]]] = [
        (f"Sum of {plural(explanation.source_unit)}", [one.sources for one in totals])
    ]
    if totals[0].apart_name:
        rows.append((totals[0].apart_name.capitalize(), [one.apart or 0.0 for one in totals]))
    names = {one.remainder_name for one in totals} - {""}
    if names:
        rows.append((names.pop().capitalize(), [one.remainder for one in totals]))
    if not are_norms(explanation):
        rows.append(("Model", [one.value for one in totals]))
    return [(name, [number(value) for number, value in zip(numbers, values, strict=True)]) for name, values in rows]


def _made_with(explanation: Explanation) -> list[tuple[str, str]]:
    """Engine, time, options and notes, by name."""
    rows = [("engine", explanation.engine), ("time", f"{explanation.time_s:.3g} s")]
    for source in (explanation.metadata, explanation.options):
        rows += [
            (name, value if isinstance(value, str) else json.dumps(value, default=str))
            for name, value in source.items()
        ]
    return [(printable(str(name)), printable(value)) for name, value in rows]
