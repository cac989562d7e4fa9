"""What DecompX says about one text: a signed score for every source token and class."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..errors import InputError
from .checks import settle
from .finding import column_of, top_sources
from .kinds import EngineName, ProblemType, Site, SourceUnit, Target, TopToken
from .picture import Picture
from .readings import Answer, Entity, Prediction
from .summary import summary
from .words import Span

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from matplotlib.axes import Axes
    from rich.console import Console


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The scores of the source tokens of one text, or pair of texts, for one or more targets.

    ``sum_k scores[k, c] + bias_token[c] + baseline_logits[c] = target_logits[c]``, up to ``completeness_error``.

    Args:
        tokens: the ``k`` sources as the tokenizer writes them, special ones included, padding not.
        token_ids: their ids, if known.
        spans: for each source ``(segment, start, end)`` in ``texts[segment]``; None where unknown, or in ``stretches``.
        texts: none if only ids were given, one for a text, two for a pair; what a decoder reads is after what its
            encoder does, and ``metadata["encoder_sources"]`` says how many of the sources are the encoder's.
        special: for each source, whether the tokenizer added it.
        scores: ``[k, c]``, float32 or float64, on the CPU, never normalised.
        targets: names of the ``c`` columns: class labels, or the name of a direction.
        target_ids: class index of each column; None for a direction.
        target_logits: ``[c]``, the model's own value, which each column must add up to.
        logits: ``[C]``, of all classes, from the user's model; of a model that answers at positions, ``target_logits``.
        labels: names of all ``C`` classes; of a model that answers at positions, ``targets``.
        problem_type: ``single_label``, ``multi_label`` or ``regression``; ``positions`` of a model that answers at
            positions, whose columns are no classes.
        completeness_error: the largest gap between a column's total and its target, in logit units. No bound on the
            error of a single score: errors that cancel in the total do not show in it.
        bias_token: ``[c]``, share of the bias token, where the rule has one.
        options: the options that made it; plain JSON values.
        engine: ``reference``, ``forward`` or ``adjoint``.
        time_s: seconds it took.
        source_unit: what a source is: ``token``, ``word``, ``sentence``, ``group`` or ``patch``.
        stages: intermediate results by name, as ``"attention.0"``.
        bias_sites: what the biases of each place add, where the engine tells; see :meth:`sites`.
        component_shares: what each component carries, where the engine tells; see :meth:`components`.
        metadata: more about it, for example the name of the model; plain JSON values.
        score_error: the largest error of any score, in logit units, measured in float64 (``check="thorough"``) or None.
        task: what the model was asked, as transformers calls it: ``text-classification``, ``token-classification``,
            ``question-answering``, ``fill-mask``, ...
        entities: the words that token classification labelled, grouped.
        answer: what question answering found.
        predictions: what the model gives at each place that was read: the label of each word, or what fits at a mask.
        word_ids: of words that were split before, the number of each token's; None for special tokens.
        picture: what a classifier of pictures saw, and which source each patch belongs to; None for texts.
        baseline_logits: ``[c]``, of scores along paths (``steps=``), the model's value where these end, with none of
            the tokens left: what the scores add up to is the difference.
        stretches: for each source, all spans of its tokens, in order; None where each source is in one stretch.

    Raises:
        InputError: if shapes, lengths, dtypes or spans do not fit together.
    """

    tokens: tuple[str, ...]
    token_ids: tuple[int, ...] | None
    spans: tuple[Span | None, ...]
    texts: tuple[str, ...]
    special: tuple[bool, ...]
    scores: torch.Tensor
    targets: tuple[str, ...]
    target_ids: tuple[int | None, ...]
    target_logits: torch.Tensor
    logits: torch.Tensor
    labels: tuple[str, ...]
    problem_type: ProblemType
    completeness_error: float
    bias_token: torch.Tensor | None
    options: Mapping[str, Any]
    engine: EngineName
    time_s: float
    source_unit: SourceUnit = "token"
    stages: Mapping[str, torch.Tensor] = field(default_factory=dict)
    bias_sites: tuple[Site, ...] | None = None
    component_shares: Mapping[str, torch.Tensor] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    score_error: float | None = None
    task: str = "text-classification"
    entities: tuple[Entity, ...] | None = None
    answer: Answer | None = None
    predictions: tuple[Prediction, ...] | None = None
    word_ids: tuple[int | None, ...] | None = None
    picture: Picture | None = None
    baseline_logits: torch.Tensor | None = None
    stretches: tuple[tuple[Span, ...], ...] | None = None

    def __post_init__(self) -> None:
        settle(self)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return summary(self)

    def _repr_html_(self) -> str:
        return self.to_html()

    @property
    def ok(self) -> bool:
        """True: the input was explained; see :class:`decompx_fast.Failure`."""
        return True

    @property
    def probabilities(self) -> torch.Tensor | None:
        """``[C]``: softmax of the logits for one label, sigmoid for several; None for values that are no classes."""
        if self.problem_type in ("regression", "positions"):
            return None
        return self.logits.softmax(-1) if self.problem_type == "single_label" else self.logits.sigmoid()

    @property
    def predicted(self) -> int | tuple[int, ...] | None:
        """Index of the predicted class; of several labels all those with p > 0.5; None for what is no class."""
        if self.problem_type in ("regression", "positions"):
            return None
        if self.problem_type == "single_label":
            return int(self.logits.argmax())
        return tuple(torch.nonzero(self.logits > 0).flatten().tolist())  # a positive logit is p > 0.5

    @property
    def predicted_label(self) -> str | tuple[str, ...] | None:
        """Name of the predicted class, or names; None for values that are no classes."""
        predicted = self.predicted
        if isinstance(predicted, tuple):
            return tuple(self.labels[index] for index in predicted)
        return None if predicted is None else self.labels[predicted]

    @property
    def totals(self) -> torch.Tensor:
        """``[c]`` float64: what each column adds up to, together with the bias token and the baseline's value."""
        apart = [part.double() for part in (self.bias_token, self.baseline_logits) if part is not None]
        return sum(apart, start=self.scores.double().sum(0))

    def sites(self) -> tuple[Site, ...]:
        """What the biases of each layer and place add to each target, in the order of the forward pass.

        With the rules ``none`` and ``bias_token`` they sum with the scores of the tokens to the logit; with the
        others they are part of the scores already.

        Raises:
            InputError: if the engine does not tell.
        """
        if self.bias_sites is None:
            raise InputError(
                f"the {self.engine} engine does not tell what the biases of each place add: explain with "
                "engine='adjoint' and a rule that it answers, such as bias='none'."
            )
        return self.bias_sites

    def components(self) -> Mapping[str, torch.Tensor]:
        """How much of each target flows from each token through each component of each layer.

        The state of a token before a sublayer goes on in two ways, whose shares sum to what the token's state
        carries: through the attention's value path (``"attention.LAYER"``) or past it (``"attention_residual.LAYER"``),
        and likewise ``"ffn.LAYER"`` and ``"ffn_residual.LAYER"``; each ``[k, c]``. In a decoder beside an encoder
        ``"cross_attention.LAYER"`` is what comes from the encoder's tokens.

        Raises:
            InputError: if the engine does not tell.
        """
        if not self.component_shares:
            raise InputError(
                f"the {self.engine} engine does not tell what each component carries: explain with engine='adjoint' "
                "and a rule that it answers, such as bias='none'."
            )
        return self.component_shares

    def source_text(self, position: int) -> str:
        """The characters of the text that a source stands for; its token where it has none."""
        span = self.spans[position]
        return self.tokens[position] if span is None else self.texts[span[0]][span[1] : span[2]]

    def column(self, target: Target = None) -> int:
        """Find the column of a target.

        Args:
            target: a name in ``targets``, or a class index in ``target_ids``. None means the predicted class
                (of several the surest) if it was explained, else the first column.

        Returns:
            Index into the second axis of ``scores``.

        Raises:
            InputError: if that target was not explained.
        """
        return column_of(self, target)

    def patches(self, target: Target = None) -> torch.Tensor:
        """The signed scores of a picture's patches, ``[rows, cols]``, from its top left.

        A source of several patches has its score in equal parts on them, so the sum is that of the sources that are no
        class and no register.

        Args:
            target: as for :meth:`column`.

        Raises:
            InputError: if a text was explained.
        """
        if self.picture is None:
            raise InputError("patches() is for pictures, and this explains a text: use words() or scores.")
        return self.picture.spread(self.scores[:, self.column(target)])

    def at(self, output: Target) -> Explanation:
        """One column by itself, such as one token of an output.

        Args:
            output: its name in ``targets``; or, of a model that answers at positions, its number, from 0 or from -1
                backwards; of a classifier, the index of the class.

        Raises:
            InputError: if there is no such column.
        """
        from .merging import single_column

        return single_column(self, output)

    def words(self) -> Explanation:
        """Merge the tokens of each word, found by characters of the text; scores add.

        Special tokens stay. Each total is conserved: scores are added in float64 and kept so. ``stages`` are
        left out, since norms do not add. What a word is: see :func:`decompx_fast.result.words.segment_words`.

        Returns:
            A new explanation with ``source_unit="word"``; this one if its sources are words already.

        Raises:
            InputError: if the sources are no tokens, or the text is not known.
        """
        from .merging import merge_words

        return merge_words(self)

    def top(
        self,
        n: int = 10,
        target: Target = None,
        by: Literal["magnitude", "positive", "negative"] = "magnitude",
    ) -> list[TopToken]:
        """The sources that matter most, in order of how much.

        Args:
            n: at most so many.
            target: as for :meth:`column`.
            by: ``magnitude``: largest ``|score|`` first; ``positive``: only those for the target, highest
                first; ``negative``: only those against it, lowest first.

        Returns:
            ``(token, score, position)`` each; equal scores in the order of the text.

        Raises:
            InputError: for a negative ``n`` or another ``by``.
        """
        return top_sources(self, n, target, by)

    def to_dataframe(self) -> pd.DataFrame:
        """A pandas table with a row for each source, and a column ``score_<target>`` for each target.

        Raises:
            MissingPackageError: if pandas is not installed.
        """
        from .file import to_dataframe

        return to_dataframe(self)

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """Plain lists, strings and numbers, ready for JSON; of ``stages`` only the shapes. :meth:`from_dict` reads it.

        Args:
            details: with ``bias_sites`` and ``component_shares``, where the engine tells them: many times longer than
                all the rest.

        Raises:
            InputError: if ``options`` or ``metadata`` hold something that JSON cannot.
        """
        from .file import to_dict

        return to_dict(self, details=details)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Explanation:
        """What :meth:`to_dict` made, also after JSON; ``stages`` are not in it. See also ``decompx_fast.read_json``.

        Raises:
            InputError: if a part is missing or does not fit the others.
        """
        from .readback import from_dict

        return from_dict(data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one ``.safetensors`` file; an interrupted save leaves an older file as it was.

        Raises:
            OutputError: if it cannot be written there.
            InputError: if ``options`` or ``metadata`` hold something that JSON cannot.
        """
        from .file import save_explanation

        save_explanation(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Explanation:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: if there is no such file, or it is not such a file, or from a newer version.
        """
        from .file import load_explanation

        return load_explanation(path)

    def show(
        self, target: Target = None, *, other: Target = None, console: Console | None = None, width: int | None = None
    ) -> None:
        """Print the text and the scores to the terminal; ``show_layers`` prints the layers.

        Args:
            target: as for :meth:`column`.
            other: a second target, whose scores are taken from the first one's, with both beside the difference.
            console: where to print; standard output if None.
            width: in columns; the terminal's if None.
        """
        from .render import show

        show(self, target, other=other, console=console, width=width)

    def to_html(self, target: Target = None, *, full: bool = False) -> str:
        """The text and the scores as HTML, without scripts or anything to be loaded.

        Args:
            target: which one colours the text; as for :meth:`column`.
            full: a document by itself; otherwise a fragment to be placed in one.
        """
        from .render import render_fragment, render_page

        return render_page([self], target=target) if full else render_fragment(self, target)

    def to_png(
        self,
        view: Literal["overlay", "heatmap", "for", "against"] = "overlay",
        *,
        target: Target = None,
        scale: float | None = None,
    ) -> bytes:
        """The picture that the model saw and the scores of its patches, as a PNG file.

        Args:
            view: ``overlay``: scores over the picture; ``heatmap``: scores alone; ``for`` and ``against``: only those.
            target: as for :meth:`column`.
            scale: the ``|score|`` that has the full colour; None: the largest of a patch.

        Raises:
            InputError: if a text was explained, or for another view.
        """
        from .picture_view import draw
        from .png import encode

        return encode(draw(self, view, target, scale=scale))

    def plot(self, ax: Axes | None = None, *, target: Target = None, top: int | None = 40) -> Axes:
        """Draw the scores as horizontal bars with matplotlib; the bars add up to the model's value.

        Args:
            ax: where to draw; a new figure if None.
            target: as for :meth:`column`.
            top: only so many sources with the largest ``|score|``, in the order of the text; all if None. The others
                have one bar together, and so have the bias token and what an option left out.

        Returns:
            The axes drawn on.

        Raises:
            MissingPackageError: if matplotlib is not installed.
        """
        from .render import plot

        return plot(self, ax, target=target, top=top)
