"""Tokens that stay sources of their own because they matter, and groups of all others: as many sources as a long text
can be explained with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ..result.words import TokenGroup, joint_span
from .encoded import Encoded
from .sources import Sources, by_sentence, names_of, word_groups

#: So many tokens stay sources of their own where the user names no number.
FOCUS_TOKENS = 64

#: A sentence of more tokens is cut into windows, and so is all of an input whose text is not known.
WINDOW = 64


def candidates(encoded: Encoded) -> list[int]:
    """The tokens that may be kept or grouped: special ones stay alone in any case."""
    return [position for position, special in enumerate(encoded.special) if not special]


def kept_tokens(shares: Tensor, encoded: Encoded, count: int) -> list[int]:
    """The tokens that stay sources of their own, in the order of the text.

    Args:
        shares: ``[i, m]``, of each column's magnitude; a token is as important as its largest share, so that a column
            with small scores keeps its tokens as one with large scores does.
        encoded: the input.
        count: of equally important tokens the first are kept.
    """
    able = candidates(encoded)
    largest = shares[able].amax(1)
    order = largest.sort(descending=True, stable=True).indices[:count].tolist()
    return sorted(able[n] for n in order)


def magnitude_shares(scores: Tensor, encoded: Encoded) -> Tensor:
    """What share of the magnitude of its column each token has among those that may be kept, ``[i, m]`` float64.

    Args:
        scores: ``[i, m]``, of single tokens.
        encoded: the input.
    """
    size = scores.double().abs()
    total = size[candidates(encoded)].sum(0)
    return size / torch.where(total > 0, total, 1.0)


def focused_sources(encoded: Encoded, kept: Sequence[int], count: int) -> Sources | None:
    """The kept tokens and the special ones each by itself, all others in ``count`` groups at most; ``None`` if each
    token is its own source.

    A group has what is left of a sentence, or of a window of :data:`WINDOW` tokens where there are no sentences. Where
    that would be more than ``count`` groups, neighbours go together, but never across the texts of a pair, nor across
    what encoder and decoder read. (For a ``count`` below the number of these, there is one for each.)

    Args:
        encoded: the input.
        kept: of :func:`kept_tokens`.
        count: of groups.
    """
    own = {*kept, *(position for position, special in enumerate(encoded.special) if special)}
    if len(own) == len(encoded):
        return None
    sections = [[p for p in section if p not in own] for section in _sections(encoded)]
    parts = [_part(section[0], encoded) for section in sections if section]
    left = [section for section in sections if section]
    if len(left) > count:
        slots = max(count - len({*parts}) + 1, 1)
        joined: dict[tuple, list[int]] = {}
        for part, section in zip(parts, left, strict=True):
            joined.setdefault((part, section[0] * slots // len(encoded)), []).extend(section)
        left = [*joined.values()]
    members = sorted([*left, *([position] for position in own)])
    groups = [TokenGroup(tuple(m), joint_span(m, encoded.spans)) for m in members]
    return Sources("group", tuple(groups), names_of(groups, encoded))


def _sections(encoded: Encoded) -> list[list[int]]:
    """The tokens of each sentence, or of windows of one that is long; in order, without special tokens."""
    able = {*candidates(encoded)}
    if encoded.texts and any(encoded.spans):
        found = [[*group.positions] for group in by_sentence(word_groups(encoded), encoded)]
    else:
        cut = len(encoded) if encoded.encoder is None else encoded.encoder
        found = [[*range(cut)], [*range(cut, len(encoded))]]
    return [window for section in found for window in _windows([p for p in section if p in able])]


def _windows(section: Sequence[int]) -> list[list[int]]:
    """Equal parts of a section, of :data:`WINDOW` tokens at most."""
    count = -(-len(section) // WINDOW)
    bounds = [n * len(section) // max(count, 1) for n in range(count + 1)]
    return [[*section[first:end]] for first, end in pairwise(bounds)]


def _part(position: int, encoded: Encoded) -> tuple[bool, int]:
    """What no group is in two of: the block of encoder or decoder, and the text of a pair."""
    is_decoder = encoded.encoder is not None and position >= encoded.encoder
    before = (span for span in encoded.spans[position::-1] if span is not None)
    return is_decoder, next(before, (0,))[0]
