"""What DecompX says about the similarity of two texts, or of a text and a picture: a signed score for every pair of
their sources."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch

from ..errors import InputError
from .checks import check_choice, check_picture, check_spans, owned
from .picture import Picture
from .words import Span

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from rich.console import Console

Measure = Literal["cos", "dot", "logit"]
Side = Literal["a", "b"]
SideUnit = Literal["token", "word", "sentence", "group", "text", "patch", "picture"]

#: The last source of a text under ``bias="bias_token"``: what the biases add.
BIAS_TOKEN = "[bias]"


@dataclass(frozen=True)
class PairSide:
    """One of the two texts, or the picture, and its sources: the rows of a pair's scores, or their columns.

    Args:
        tokens: the ``k`` sources as the tokenizer writes them, special ones included; with ``has_bias`` the last stands
            for the biases.
        token_ids: the ids of the tokens, if sources are tokens.
        spans: for each source ``(0, start, end)``, a part of ``texts[0]``; None where unknown.
        texts: the text, if it is known.
        special: for each source, whether it is none of the text.
        source_unit: what a source is; ``text`` or ``picture`` for all of it, where only the other side was asked for.
        has_bias: whether the last source are the biases of the rule ``bias_token``.
        picture: what the model saw, and which source each patch belongs to; None for texts.
    """

    tokens: tuple[str, ...]
    token_ids: tuple[int, ...] | None
    spans: tuple[Span | None, ...]
    texts: tuple[str, ...]
    special: tuple[bool, ...]
    source_unit: SideUnit = "token"
    has_bias: bool = False
    picture: Picture | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "texts", "special"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "spans", tuple(None if span is None else tuple(span) for span in self.spans))
        if self.token_ids is not None:
            object.__setattr__(self, "token_ids", tuple(int(token_id) for token_id in self.token_ids))
        check_choice("source_unit", self.source_unit, get_args(SideUnit))
        lengths = {len(self.tokens), len(self.spans), len(self.special)}
        if len(lengths) != 1 or not self.tokens:
            raise InputError(f"a side of a pair has one span and one flag for each of its tokens, got {lengths}.")
        check_spans(self.spans, self.texts)
        check_picture(self.picture, len(self.tokens))

    def __len__(self) -> int:
        return len(self.tokens)

    def source_text(self, position: int) -> str:
        """The characters of the text that a source stands for; its token where it has none."""
        span = self.spans[position]
        return self.tokens[position] if span is None else self.texts[span[0]][span[1] : span[2]]


class TopPair(NamedTuple):
    """One row of :meth:`PairExplanation.top`."""

    token_a: str
    token_b: str
    score: float
    position_a: int
    position_b: int


@dataclass(frozen=True, eq=False, repr=False)
class PairExplanation:
    """The scores of the pairs of sources of two texts, or of a text and a picture; their sum and ``offset`` are the
    similarity, up to ``completeness_error``.

    ``scores[k, l] = U[k] . V[l] / (|e_a| |e_b|)``, where the vectors of the sources add up to the texts' vectors,
    ``e_a = sum_k U[k]`` and ``e_b = sum_l V[l]``; of a dot, without the division; of a logit, times the model's scale.

    Args:
        a, b: the texts and their sources; a picture is ``b``.
        scores: ``[k, l]``, float32 or float64, on the CPU.
        value: the similarity that the model itself gives.
        measure: ``cos``, ``dot`` or ``logit``.
        completeness_error: the gap between the sum of the scores, with ``offset``, and the value.
        options: the options that made it; plain JSON values.
        engines: which engine decomposed each text; None for one that was only run.
        time_s: seconds it took; what was reused of another pair is not counted.
        metadata: more about it, for example the name of the model; plain JSON values.
        offset: what the model adds to every logit, whatever the inputs (SigLIP's bias); no source's.

    Raises:
        InputError: if shapes, lengths or spans do not fit together.
    """

    a: PairSide
    b: PairSide
    scores: torch.Tensor
    value: float
    measure: Measure
    completeness_error: float
    options: Mapping[str, Any]
    engines: tuple[str | None, str | None]
    time_s: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
    offset: float = 0.0

    def __post_init__(self) -> None:
        check_choice("measure", self.measure, get_args(Measure))
        object.__setattr__(self, "engines", tuple(self.engines))
        scores, shape = self.scores, (len(self.a), len(self.b))
        if not isinstance(scores, torch.Tensor) or scores.dtype not in (torch.float32, torch.float64):
            found = scores.dtype if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise InputError(f"scores must be a tensor in float32 or float64, got {found}.")
        if tuple(scores.shape) != shape or scores.device.type != "cpu":
            raise InputError(
                f"scores must have the shape {list(shape)}, one for each pair of sources, on the CPU, got "
                f"{list(scores.shape)} on {scores.device}."
            )
        object.__setattr__(self, "scores", owned(scores))

    def __repr__(self) -> str:
        a, b = (count_of(side) for side in (self.a, self.b))
        return (
            f"PairExplanation({a} x {b}, {self.measure}={self.value:.4f}, "
            f"completeness_error={self.completeness_error:.1e})"
        )

    def _repr_html_(self) -> str:
        return self.to_html()

    @property
    def ok(self) -> bool:
        """True: the inputs were explained; see :class:`decompx_fast.Failure`."""
        return True

    @property
    def total(self) -> float:
        """What the scores add up to, in float64, with :attr:`offset`."""
        return float(self.scores.double().sum()) + self.offset

    def sum(self, side: Side) -> torch.Tensor:
        """What each source of a text adds with all of the other text: ``[k]`` of ``a``, ``[l]`` of ``b``, float64."""
        check_choice("side", side, get_args(Side))
        return self.scores.double().sum(1 if side == "a" else 0)

    def patches(self, source: int | None = None) -> torch.Tensor:
        """The scores of the picture's patches, ``[rows, cols]``, from its top left, float64.

        Args:
            source: with this source of the text alone; None: with all of it.

        Raises:
            InputError: for two texts, or a source that does not exist.
        """
        if self.b.picture is None:
            raise InputError("patches() is for pictures, and this compares two texts: use sum('b') or scores.")
        if source is not None and not 0 <= source < len(self.a):
            raise InputError(f"source={source} is beyond the text's sources: use 0 to {len(self.a) - 1}.")
        return self.b.picture.spread(self.sum("b") if source is None else self.scores[source].double())

    def top(
        self,
        n: int = 10,
        by: Literal["magnitude", "positive", "negative"] = "magnitude",
        *,
        special: bool = True,
    ) -> list[TopPair]:
        """The pairs that matter most, in order of how much.

        Args:
            n: at most so many.
            by: ``magnitude``: largest ``|score|`` first; ``positive``: only those that make the texts alike, highest
                first; ``negative``: only those that set them apart, lowest first.
            special: with the pairs of special tokens.

        Returns:
            ``(token_a, token_b, score, position_a, position_b)`` each; equal scores in the order of the texts.

        Raises:
            InputError: for a negative ``n`` or another ``by``.
        """
        check_choice("by", by, ("magnitude", "positive", "negative"))
        if n < 0:
            raise InputError(f"n must be 0 or more, got {n}.")
        sign = {"magnitude": 0, "positive": 1, "negative": -1}[by]
        keys = self.scores.abs() if sign == 0 else sign * self.scores
        allowed = torch.ones_like(keys, dtype=torch.bool) if sign == 0 else keys > 0
        if not special:
            allowed &= ordinary_pairs(self)
        keys = torch.where(allowed, keys, -torch.inf).flatten()
        order = keys.argsort(descending=True, stable=True)[: min(n, int(allowed.sum()))].tolist()
        places = [divmod(index, len(self.b)) for index in order]
        return [TopPair(self.a.tokens[k], self.b.tokens[m], float(self.scores[k, m]), k, m) for k, m in places]

    def words(self) -> PairExplanation:
        """Merge the tokens of each word on both sides; scores add, in float64, so the total is conserved.

        Special tokens stay. Sides whose sources are words already, or the whole text, stay as they are.

        Raises:
            InputError: if sources are sentences or groups, or a text is not known.
        """
        from .merging import merge_words_of_pair

        return merge_words_of_pair(self)

    def to_dataframe(self) -> pd.DataFrame:
        """A pandas table with a row for each pair: positions, tokens and texts of both, and the score.

        Raises:
            MissingPackageError: if pandas is not installed.
        """
        from .pair_file import to_dataframe

        return to_dataframe(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, strings and numbers, ready for JSON. :meth:`from_dict` reads it.

        Raises:
            InputError: if ``options`` or ``metadata`` hold something that JSON cannot.
        """
        from .pair_file import to_dict

        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PairExplanation:
        """What :meth:`to_dict` made, also after JSON. See also ``decompx_fast.read_json``.

        Raises:
            InputError: if a part is missing or does not fit the others.
        """
        from .pair_file import from_dict

        return from_dict(data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one ``.safetensors`` file; an interrupted save leaves an older file as it was.

        Raises:
            OutputError: if it cannot be written there.
            InputError: if ``options`` or ``metadata`` hold something that JSON cannot.
        """
        from .pair_file import save_pair

        save_pair(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PairExplanation:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: if there is no such file, or it is not such a file, or from a newer version.
        """
        from .pair_file import load_pair

        return load_pair(path)

    def show(self, *, console: Console | None = None, width: int | None = None) -> None:
        """Print the texts and the strongest pairs to the terminal.

        Args:
            console: where to print; standard output if None.
            width: in columns; the terminal's if None.
        """
        from .render import show_pair

        show_pair(self, console=console, width=width)

    def to_html(self, *, full: bool = False) -> str:
        """The texts, linked to each other, and the scores as HTML, without scripts or anything to be loaded.

        Args:
            full: a document by itself; otherwise a fragment to be placed in one.
        """
        from .render import render_fragment, render_page

        return render_page([self]) if full else render_fragment(self)


def count_of(side: PairSide) -> str:
    """How many sources a side has, in words."""
    from .display import plural

    return f"{len(side)} {side.source_unit if len(side) == 1 else plural(side.source_unit)}"


def ordinary_pairs(pair: PairExplanation) -> torch.Tensor:
    """``[k, l]``: the pairs of which neither is special."""
    a, b = (torch.tensor([not special for special in side.special]) for side in (pair.a, pair.b))
    return a[:, None] & b
