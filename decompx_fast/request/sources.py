"""What counts as one source: each token, each word, each sentence, or any partition of the tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import InputError, OptionError, shown
from ..result.blocks import ENCODER_SOURCES
from ..result.failure import Failure, attempt
from ..result.kinds import FOCUS
from ..result.tokens import readable_tokens
from ..result.words import NO_PLACES, Span, TokenGroup, group_by_number, group_by_word, joint_span, stretches
from .encoded import Encoded

UNITS = ("token", "word", "sentence", "patch", "frame")

#: Units of which each position is one.
SINGLE_UNITS = ("token", "patch", "frame")

#: The end of a sentence: closing punctuation, what may follow it, and white space; or CJK punctuation; or a new line.
_SENTENCE_END = re.compile(r"""[.!?…]+["'”’)\]]*(?=\s)|[。！？]+["'”’」』）]*|\n+""")


@dataclass(frozen=True)
class Sources:
    """The sources of one input.

    Attributes:
        unit: what they are.
        groups: the tokens of each.
        names: how each is shown.
    """

    unit: Literal["word", "sentence", "group"]
    groups: tuple[TokenGroup, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def ids(self) -> Tensor:
        """``[i]`` int64: the source that each token belongs to."""
        n_tokens = sum(len(group.positions) for group in self.groups)
        ids = torch.empty(n_tokens, dtype=torch.int64, device="cpu")
        for n, group in enumerate(self.groups):
            ids[list(group.positions)] = n
        return ids


def check_unit(sources: Any) -> None:
    """Raise an OptionError for a unit that does not exist; ``"focus"`` (:mod:`.focus`) is one that not every call
    has."""
    if isinstance(sources, str) and sources not in (*UNITS, FOCUS):
        units = ", ".join(map(repr, (*UNITS, FOCUS)))
        raise OptionError(f"sources={sources!r}: use one of {units}, or a group id per token")


def resolve_sources(sources: Any, encoded: Encoded) -> Sources | None:
    """The sources that the user asked for; ``None`` where each token is one.

    Args:
        sources: ``"token"``, ``"word"``, ``"sentence"``, or one group id per token, in any numbering.
        encoded: the input.

    Raises:
        InputError: for an unknown unit, for ids that do not fit the tokens, or if the text is not known.
    """
    if encoded.picture is not None:
        return picture_sources(sources, encoded)
    if isinstance(sources, str):
        check_unit(sources)
        if sources == "token":
            return None
        if sources in SINGLE_UNITS:
            raise InputError(
                f"sources={sources!r} is for models of pictures or sounds: use 'token', 'word' or 'sentence'"
            )
        if not encoded.texts:
            raise InputError(
                f"sources={sources!r} needs to know where each token lies in the text: give texts, or give group ids "
                "instead"
            )
        if not any(encoded.spans):
            raise InputError(f"sources={sources!r} cannot be made: {NO_PLACES}; give group ids instead")
        groups = word_groups(encoded)
        if sources == "sentence":
            groups = by_sentence(groups, encoded)
        return Sources("word" if sources == "word" else "sentence", tuple(groups), names_of(groups, encoded))
    return _from_ids(sources, encoded)


def word_groups(encoded: Encoded) -> list[TokenGroup]:
    """The tokens of each word: as they were split before, or as the text shows them; special ones alone."""
    if encoded.words is None:
        return group_by_word(encoded.spans, encoded.special, encoded.texts)
    return group_by_number(encoded.words, encoded.spans)


def with_sources(
    inputs: Iterator[Encoded | Failure], sources: Any, *, skip: bool
) -> Iterator[tuple[Encoded, Sources | None] | Failure]:
    """Each input with its sources; with ``skip``, a failure for one that has no such sources."""
    for one in inputs:
        if isinstance(one, Failure):
            yield one
            continue
        found = attempt(partial(resolve_sources, sources, one), one.number, skip=skip)
        yield found if isinstance(found, Failure) else (one, found)


def picture_sources(sources: Any, encoded: Encoded) -> Sources | None:
    """The sources of a picture or a sound: each patch, blocks of patches, groups by ids, or spans of time. What is no
    patch stays alone.

    Args:
        sources: ``"patch"``, ``"frame"`` or ``"token"``, which are the same; ``(rows, columns)``, into how many blocks
            the picture is divided; ids ``[rows, cols]``, one for each patch, in any numbering; or, of a sound, how many
            seconds a span has.
        encoded: the picture, or the sound.

    Raises:
        InputError: for what is none of these, or does not fit the grid.
    """
    assert encoded.picture is not None
    rows, columns = encoded.picture.grid
    if isinstance(sources, str):
        if sources in SINGLE_UNITS:
            return None
        raise InputError(
            f"sources={sources!r} is for texts: use 'patch', (rows, columns) of blocks, or ids [rows, cols]"
        )
    if isinstance(sources, (int, float)) and not isinstance(sources, bool):
        ids, names = _spans_of_time(sources, encoded)
    elif isinstance(sources, tuple) and len(sources) == 2 and all(isinstance(n, int) for n in sources):
        if not (1 <= sources[0] <= rows and 1 <= sources[1] <= columns):
            raise InputError(f"sources={sources} blocks cannot be made of a grid of {rows} x {columns} patches")
        down, across = (torch.arange(n) * k // n for n, k in zip((rows, columns), sources, strict=True))
        ids = down[:, None] * sources[1] + across
        names = [f"block {r},{c}" for r in range(sources[0]) for c in range(sources[1])]
    else:
        try:
            ids = torch.as_tensor(sources)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"sources must be a unit, a pair of numbers or ids [rows, cols] ({error})") from error
        if tuple(ids.shape) != (rows, columns) or ids.is_floating_point() or ids.is_complex():
            raise InputError(
                f"sources is {ids.dtype} {list(ids.shape)}: give one whole number for each patch of the grid, "
                f"[{rows}, {columns}]"
            )
        kinds, ids = ids.to(torch.int64).unique(return_inverse=True)
        names = [f"group {kind}" for kind in kinds.tolist()]
    count = len(encoded) - rows * columns
    flat = ids.flatten().tolist()
    members: list[list[int]] = [[] for _ in names]
    for position, group in sorted(zip(encoded.picture.groups.flatten().tolist(), flat, strict=True)):
        members[group].append(position)
    groups = (*(TokenGroup((n,), None) for n in range(count)), *(TokenGroup(tuple(m), None) for m in members))
    return Sources("group", groups, (*encoded.tokens[:count], *names))


def _spans_of_time(seconds: float, encoded: Encoded) -> tuple[Tensor, list[str]]:
    """The span of each patch of a sound, ``[rows, cols]``, and what each is called."""
    assert encoded.picture is not None
    rows, columns = encoded.picture.grid
    if encoded.seconds is None:
        raise InputError(
            f"sources={seconds!r} is a number of seconds, for sounds whose sampling rate is known, from a processor: "
            "use 'patch', (rows, columns) of blocks, or ids [rows, cols]"
        )
    if not seconds >= encoded.seconds:
        raise InputError(f"sources={seconds!r} seconds are less than a frame, which has {encoded.seconds:.3g}")
    spans = (torch.arange(columns, dtype=torch.float64) * encoded.seconds / seconds + 1e-9).long()
    names = [f"{n * seconds:.2f}-{(n + 1) * seconds:.2f} s" for n in range(int(spans[-1]) + 1)]
    return spans.expand(rows, -1), names


def _from_ids(ids: Any, encoded: Encoded) -> Sources:
    values = ids.tolist() if hasattr(ids, "tolist") else ids  # a tensor or an array
    if not isinstance(values, Sequence) or not all(hasattr(i, "__index__") and not isinstance(i, bool) for i in values):
        raise InputError(f"sources must be a unit or one whole number per token, got {shown(ids)}")
    window = encoded.window
    if window is not None and len(values) == window.length:
        values = [values[position] for position in window.tokens]
    if len(values) != len(encoded):
        whole = "" if window is None else f" of a window, or {window.length} of all windows together"
        raise InputError(f"sources holds {len(values)} group ids for {len(encoded)} tokens{whole} (special ones count)")
    members: dict[int, list[int]] = {}
    for position, value in enumerate(map(int, values)):
        members.setdefault(value, []).append(position)
    groups = [TokenGroup(tuple(m), joint_span(m, encoded.spans)) for m in members.values()]
    return Sources("group", tuple(groups), names_of(groups, encoded))


def by_sentence(words: Sequence[TokenGroup], encoded: Encoded) -> list[TokenGroup]:
    """The tokens of each sentence, of whole words; special ones, and words without a place in the text, alone."""
    ends = [[match.end() for match in _SENTENCE_END.finditer(text)] for text in encoded.texts]
    members: dict[tuple[int, int], list[int]] = {}
    for word in words:
        if word.span is None or encoded.special[word.positions[0]]:
            key = (-1, word.positions[0])  # stays alone
        else:
            segment, start, _ = word.span
            key = (segment, sum(end <= start for end in ends[segment]))
        members.setdefault(key, []).extend(word.positions)
    return [TokenGroup(tuple(sorted(m)), joint_span(m, encoded.spans)) for m in members.values()]


def places_of(group: TokenGroup, encoded: Encoded) -> tuple[Span, ...]:
    """The stretches of text that a group of tokens is."""
    return (group.span,) if group.span is not None else stretches(group.positions, encoded.spans)


def names_of(groups: Sequence[TokenGroup], encoded: Encoded) -> tuple[str, ...]:
    """How each group is shown: by its text, of which an ellipsis stands for what is in between, or by its tokens."""
    names = []
    readable = readable_tokens(encoded.tokens, encoded.special)
    for group in groups:
        places = places_of(group, encoded)
        if group.span is not None or len(places) > 1:
            names.append(" \N{HORIZONTAL ELLIPSIS} ".join(encoded.texts[n][start:end] for n, start, end in places))
        else:
            names.append(" ".join(readable[p].strip() or readable[p] for p in group.positions))
    return tuple(names)


def blocks_of(encoded: Encoded, sources: Sources | None) -> dict[str, int]:
    """How many of the sources are an encoder's, the first of them; nothing where there is no decoder beside it, or
    where a source is of both."""
    n = encoded.encoder
    if n is None:
        return {}
    if sources is None:
        return {ENCODER_SOURCES: n}
    of_encoder = [group for group in sources.groups if min(group.positions) < n]
    if any(max(group.positions) >= n for group in of_encoder):
        return {}
    return {ENCODER_SOURCES: len(of_encoder)}
