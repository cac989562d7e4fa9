"""Two explanations of the same text, one less the other: two models, two targets, before and after fine-tuning."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import InputError
from .account import LEFT_OUT, are_norms
from .explanation import Explanation
from .kinds import DIFFERENCE, SourceUnit, Target
from .words import Span, group_by_word


def difference(
    a: Explanation,
    b: Explanation,
    *,
    target: Target = None,
    other: Target = None,
    names: tuple[str, str] = ("a", "b"),
) -> Explanation:
    """What speaks more for a target in one explanation than in another: ``a - b``, source by source.

    The scores of each column add up to the difference of the two values, ``target_logits``, up to the measured
    ``completeness_error``. Where the sources are not the same, as of two tokenizers, they are put together to the
    smallest pieces of text that both have: words mostly. Special tokens are matched one by one, or, where their numbers
    differ, all together.

    Args:
        a: of a text, a pair of texts, or a picture.
        b: of the same; ``a`` itself for two targets of one explanation.
        target: the column of ``a``, as for :meth:`Explanation.column`; None: every target that both have by name, or,
            with ``other``, the column that ``None`` means there.
        other: the column of ``b``; None: the one of the same name as ``target``.
        names: what the two are called in the names of the columns.

    Returns:
        A new explanation, whose ``problem_type`` is ``"regression"``, since a difference is no class.

    Raises:
        InputError: if the texts are not the same, their sources cannot be matched, or no target is in both.
    """
    _check(a, b, names)
    pairs = _columns(a, b, target, other)
    sources = _matched(a, b)
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    scores = sources.merge(a.scores, sources.of_a, first) - sources.merge(b.scores, sources.of_b, second)
    values = a.target_logits.double()[first] - b.target_logits.double()[second]
    apart = {name: _apart(a, b, name, first, second) for name in ("bias_token", "baseline_logits")}
    labels = tuple(_name(a.targets[i], b.targets[j], names) for i, j in pairs)
    total = sum((value for value in apart.values() if value is not None), start=scores.sum(0))
    return Explanation(
        tokens=sources.tokens,
        token_ids=a.token_ids if sources.are_own and a.token_ids == b.token_ids else None,
        spans=sources.spans,
        texts=a.texts,
        special=sources.special,
        scores=scores,
        targets=labels,
        target_ids=(None,) * len(pairs),
        target_logits=values,
        logits=values,
        labels=labels,
        problem_type="regression",
        completeness_error=float((total - values).abs().max()),
        bias_token=apart["bias_token"],
        baseline_logits=apart["baseline_logits"],
        options=_shared(a.options, b.options) | _left_out(a) | _left_out(b),
        engine=a.engine,
        time_s=a.time_s if a is b else a.time_s + b.time_s,
        source_unit=sources.unit,
        metadata=_shared(a.metadata, b.metadata) | {DIFFERENCE: [_about(a, names[0]), _about(b, names[1])]},
        task=a.task if a.task == b.task else DIFFERENCE,
        picture=a.picture,
        stretches=a.stretches if sources.are_own else None,
    )


def _check(a: Any, b: Any, names: tuple[str, str]) -> None:
    """Raise an InputError for what has no difference."""
    for name, one in (("a", a), ("b", b)):
        if not isinstance(one, Explanation):
            raise InputError(f"{name} must be an Explanation, got {type(one).__name__}.")
        if are_norms(one):
            raise InputError(f"{name} holds norms (head=False), whose difference says nothing: explain with the head.")
    if len(names) != 2 or names[0] == names[1]:
        raise InputError(f"names must be two different names, for a and for b, got {names!r}.")
    if (a.baseline_logits is None) != (b.baseline_logits is None):
        raise InputError(
            "one of a and b has scores along paths (steps=), which add up to less than the other's do: explain both "
            "with the same steps, or both without."
        )


def _columns(a: Explanation, b: Explanation, target: Target, other: Target) -> list[tuple[int, int]]:
    """Which columns are compared: of ``a`` and of ``b``."""
    if target is None and other is None:
        if a is b:
            raise InputError(
                "a and b are the same explanation: name the two targets to be compared, as target='POSITIVE', "
                f"other='NEGATIVE'; explained were {', '.join(map(repr, a.targets))}."
            )
        shared = [(i, b.targets.index(name)) for i, name in enumerate(a.targets) if name in b.targets]
        if not shared:
            raise InputError(
                f"no target is in both: a has {', '.join(map(repr, a.targets))}, b has "
                f"{', '.join(map(repr, b.targets))}. Name one of each by target= and other=."
            )
        return shared
    column = a.column(target)
    return [(column, b.column(a.targets[column] if other is None else other))]


@dataclass(frozen=True)
class _Sources:
    """Sources that two explanations have in common.

    Attributes:
        of_a: ``[k]``: for each source of ``a`` its number among them; ``of_b`` likewise.
        are_own: whether they are those of ``a`` as they are.
    """

    tokens: tuple[str, ...]
    spans: tuple[Span | None, ...]
    special: tuple[bool, ...]
    unit: SourceUnit
    of_a: torch.Tensor
    of_b: torch.Tensor
    are_own: bool

    def merge(self, scores: torch.Tensor, groups: torch.Tensor, columns: Sequence[int]) -> torch.Tensor:
        """The scores of these sources: float64, ``[source, c]``."""
        merged = torch.zeros(len(self.tokens), len(columns), dtype=torch.float64)
        return merged.index_add_(0, groups, scores.double()[:, list(columns)])


def _matched(a: Explanation, b: Explanation) -> _Sources:
    if a.texts != b.texts:
        raise InputError(
            f"a and b explain different texts ({_short(a.texts)} and {_short(b.texts)}): a difference is of one text."
        )
    alike = (getattr(a, name) == getattr(b, name) for name in ("spans", "special", "source_unit", "stretches"))
    if all(alike) and (any(a.spans) or a.tokens == b.tokens) and len(a) == len(b):
        if (a.picture is None) != (b.picture is None) or (
            a.picture is not None
            and b.picture is not None
            and (a.picture.groups.shape != b.picture.groups.shape or bool((a.picture.groups != b.picture.groups).any()))
        ):
            raise InputError("a and b see pictures in different patches: explain both by models of one grid.")
        own = torch.arange(len(a))
        return _Sources(a.tokens, a.spans, a.special, a.source_unit, own, own, True)
    if a.stretches is not None or b.stretches is not None:
        raise InputError(
            "the sources of a and b are not the same, and some are in several stretches of the text, which cannot be "
            "matched: explain both with the same groups of tokens (sources=), or by tokens, words or sentences."
        )
    unplaced = [name for name, one in (("a", a), ("b", b)) if not one.texts or not any(one.spans)]
    if unplaced or a.picture is not None or b.picture is not None:
        raise InputError(
            f"the sources of a and b are not the same ({len(a)} and {len(b)} {a.source_unit}s), and where they are in "
            "the text is not known, by which they could be matched: explain the text itself with both."
        )
    return _common_pieces(a, b)


def _common_pieces(a: Explanation, b: Explanation) -> _Sources:
    """The smallest pieces of the texts that no source of either, and no word, crosses the end of."""
    places = [_placed(one) for one in (a, b)]
    words = [group.span for group in group_by_word([*a.spans], [*a.special], a.texts) if group.span is not None]
    spans = _joined([*places[0].values(), *places[1].values(), *words])
    starts = [(segment, start) for segment, start, _ in spans]
    tokens = [a.texts[segment][start:end].strip() or a.texts[segment][start:end] for segment, start, end in spans]
    groups = []
    for one, placed in zip((a, b), places, strict=True):
        found = torch.full((len(one),), -1)
        for k, (segment, start, _) in placed.items():
            found[k] = bisect_right(starts, (segment, start)) - 1
        groups.append(found)
    markers = [[k for k, group in enumerate(found.tolist()) if group < 0] for found in groups]
    one_by_one = len(markers[0]) == len(markers[1])
    names = [a.tokens[k] for k in markers[0]] if one_by_one else ["special tokens"]
    for found, own in zip(groups, markers, strict=True):
        for number, k in enumerate(own):
            found[k] = len(spans) + (number if one_by_one else 0)
    if not any(markers):
        names = []
    order = sorted(range(len(spans) + len(names)), key=_first_place(groups[0]))
    rank = torch.empty(len(order), dtype=torch.long)
    rank[order] = torch.arange(len(order))
    all_tokens, all_spans = [*tokens, *names], [*spans, *[None] * len(names)]
    return _Sources(
        tokens=tuple(all_tokens[n] for n in order),
        spans=tuple(all_spans[n] for n in order),
        special=tuple(n >= len(spans) for n in order),
        unit="word",
        of_a=rank[groups[0]],
        of_b=rank[groups[1]],
        are_own=False,
    )


def _first_place(groups: torch.Tensor) -> Any:
    """By where a piece is first met among the sources of ``a``; what it has nothing of comes last."""
    first: dict[int, int] = {}
    for k, group in enumerate(groups.tolist()):
        first.setdefault(group, k)
    return lambda piece: (first.get(piece, len(groups)), piece)


def _placed(one: Explanation) -> dict[int, Span]:
    """The places of the sources that have any."""
    return {
        k: span
        for k, (span, special) in enumerate(zip(one.spans, one.special, strict=True))
        if span is not None and not special and span[1] < span[2]
    }


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Overlapping stretches put together, in the order of the texts."""
    pieces: list[Span] = []
    for segment, start, end in sorted(set(spans)):
        if pieces and pieces[-1][0] == segment and start < pieces[-1][2]:
            pieces[-1] = (segment, pieces[-1][1], max(end, pieces[-1][2]))
        else:
            pieces.append((segment, start, end))
    return pieces


def _apart(
    a: Explanation, b: Explanation, name: str, first: Sequence[int], second: Sequence[int]
) -> torch.Tensor | None:
    """The difference of what is no source's in either, ``bias_token`` or ``baseline_logits``; ``None`` of neither."""
    found = [(getattr(one, name), columns) for one, columns in ((a, first), (b, second))]
    if all(value is None for value, _ in found):
        return None
    of_a, of_b = (
        torch.zeros(len(columns), dtype=torch.float64) if value is None else value.double()[list(columns)]
        for value, columns in found
    )
    return of_a - of_b


def _name(of_a: str, of_b: str, names: tuple[str, str]) -> str:
    return f"{of_a}: {names[0]} - {names[1]}" if of_a == of_b else f"{of_a} - {of_b}"


def _shared(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in a.items() if name in b and b[name] == value}


def _left_out(one: Explanation) -> dict[str, Any]:
    """The options of one side that keep its scores, and so their difference, from adding up."""
    return {name: choice for name, choice in LEFT_OUT if one.options.get(name) == choice}


def _about(one: Explanation, name: str) -> dict[str, Any]:
    """What a difference keeps of each side; plain JSON values."""
    return {
        "name": name,
        "engine": one.engine,
        "completeness_error": one.completeness_error,
        "options": dict(one.options),
        "metadata": dict(one.metadata),
    }


def _short(texts: Sequence[str]) -> str:
    text = " / ".join(texts)
    return repr(text if len(text) <= 40 else text[:37] + "...") if texts else "only token ids"
