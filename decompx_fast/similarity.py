"""The similarity of two texts, as a sum over the pairs of their sources.

A sentence encoder gives a text one vector, and the method gives each source its part of it, ``e_a = sum_k U[k]`` and
``e_b = sum_l V[l]``. So their dot is a sum over pairs, and so is the cosine, whose lengths are constants here:

    cos(e_a, e_b) = sum_(k, l) S[k, l],      S[k, l] = U[k] . V[l] / (|e_a| |e_b|)

Where only one side's scores are asked for, ``S[k] = U[k] . e_b / (|e_a| |e_b|)``, the other text is merely run, and
with a rule that is linear in the inputs one direction is pulled back instead of all ``d``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from .config import DecompXConfig
from .engines.accuracy import noteworthy
from .engines.choose import Execution, attribute, cheaper_engine, choose_engine, records
from .engines.shape import ModelShape
from .errors import InputError, NumericalError, OptionError
from .explained_model import ExplainedModel
from .linearize.architectures import unwrap
from .linearize.linearization import linearize
from .linearize.model_run import plain_mode
from .linearize.sentence import SentenceEncoder, embed
from .linearize.terms import Terms
from .precision import warn_of_errors
from .request.encoded import Encoded
from .request.encoding import Reader
from .request.sources import UNITS, Sources, resolve_sources
from .result.explanations import Explanations
from .result.pair import BIAS_TOKEN, Measure, PairExplanation, PairSide

#: Whose sources are told apart: those of both texts, or of one, against all of the other.
Sides = Literal["both", "a", "b"]


@dataclass(frozen=True)
class _Decomposed:
    """A text taken apart.

    Attributes:
        side: its sources.
        parts: ``[k, m]`` float64, the sources' vectors, or their dots with ``m`` directions.
        vector: ``[d]`` float64, the model's own.
        engine: that took it apart; ``None`` if it was only run.
        gap: the largest of a layer, relative.
        dtype: of the parts before they were widened.
        time_s: seconds it took.
    """

    side: PairSide
    parts: Tensor
    vector: Tensor
    engine: str | None
    gap: float
    dtype: torch.dtype
    time_s: float


class Comparison:
    """One call: what is asked of every pair.

    Args:
        explainer: of a sentence encoder.
        config: the options of the method.
        engine, dtype, execution: as for a :class:`.job.Job`.
        measure: ``cos`` or ``dot``.
        side: whose sources are told apart.
        sources: ``token``, ``word`` or ``sentence``.

    Raises:
        OptionError: for what a similarity does not have, or an engine that cannot answer.
    """

    def __init__(
        self,
        *,
        explainer: ExplainedModel,
        config: DecompXConfig,
        engine: str,
        dtype: torch.dtype | None,
        execution: Execution,
        shape: ModelShape,
        measure: Any,
        side: Any,
        sources: Any,
    ) -> None:
        for name, value, allowed in (
            ("measure", measure, get_args(Measure)),
            ("side", side, get_args(Sides)),
            ("sources", sources, UNITS),
        ):
            if not isinstance(value, str) or value not in allowed:
                raise OptionError(f"{name}={value!r}: use one of {', '.join(map(repr, allowed))}")
        for name, wanted in (("head", True), ("aggregation", "vector"), ("stages", ())):
            if getattr(config, name) != wanted:
                raise OptionError(
                    f"{name}={getattr(config, name)!r}: a similarity is of the vectors that the whole model gives, so "
                    f"it needs {name}={wanted!r}"
                )
        self.explainer, self.config, self.dtype, self.execution = explainer, config, dtype, execution
        self.shape, self.measure, self.side, self.sources = shape, measure, side, sources
        self.engine = choose_engine(engine, config, grouped=sources != "token")
        self.chooses = engine == "auto" and self.engine == "adjoint"
        self.normalized = bool(unwrap(explainer.model).normalized)

    def compare(self, reader: Reader, a: Any, b: Any) -> PairExplanation | Explanations[PairExplanation]:
        """One result, or for a list of texts in ``b`` a list.

        Raises:
            InputError: for what cannot be read, naming the argument.
        """
        query, is_single = texts_of(reader, a, "a")
        if not is_single:
            raise InputError("a is a list: give one text as a, and those that it is compared with as a list in b")
        others, is_single = texts_of(reader, b, "b")
        found = Explanations(self.run(query[0], others))
        return found[0] if is_single else found

    def run(self, a: Encoded, others: Sequence[Encoded]) -> Iterator[PairExplanation]:
        """Compare ``a`` with each of the others, in order; what is known of ``a`` is reused.

        Raises:
            NumericalError: where a cosine is asked of a vector of zeros.
        """
        if self.side == "a":
            bare = [self._run_only(b, f"b ({n})" if len(others) > 1 else "b") for n, b in enumerate(others)]
            # All of them at once: a direction each, or all of the vector where those are fewer.
            wanted = torch.stack([self._direction(b.vector, "b") for b in bare])
            few = wanted if len(wanted) < self.shape.classes else None
            first = self._decompose(a, few)
            for n, b in enumerate(bare):
                parts = first.parts @ wanted[n] if few is None else first.parts[:, n]
                yield self._pair(first, b, parts[:, None], a, others[n], first.time_s / len(bare) + b.time_s)
            return
        first = self._decompose(a) if self.side == "both" else self._run_only(a, "a")
        for n, encoded in enumerate(others):
            if self.side == "both":
                second = self._decompose(encoded)
                scores = first.parts @ second.parts.T
            else:
                second = self._decompose(encoded, self._direction(first.vector, "a")[None])
                scores = second.parts.T
            yield self._pair(first, second, scores, a, encoded, second.time_s + (0 if n else first.time_s))

    def _direction(self, vector: Tensor, name: str) -> Tensor:
        """A vector of length 1 that way, so that its size does not matter to what is pulled back."""
        return vector / self._length(vector, name) if bool((vector != 0).any()) else vector

    def _pair(
        self, a: _Decomposed, b: _Decomposed, scores: Tensor, text_a: Encoded, text_b: Encoded, seconds: float
    ) -> PairExplanation:
        """Scores ``[k, l]`` of vectors, of which one may be a direction of length 1, made those of the measure."""
        lengths = (self._length(a.vector, "a"), self._length(b.vector, "b"))
        if self.measure == "cos" or self.normalized:
            if not all(lengths):
                name = "a" if not lengths[0] else "b"
                raise NumericalError(
                    f"the vector of {name} is zero, so it has no direction and no cosine: use measure='dot'"
                )
            divided = {"both": lengths, "a": lengths[:1], "b": lengths[1:]}[self.side]
            value = torch.dot(a.vector / lengths[0], b.vector / lengths[1])
            for length in divided:
                scores = scores / length
        else:
            value = torch.dot(a.vector, b.vector)
            scores = scores * {"both": 1.0, "a": lengths[1], "b": lengths[0]}[self.side]
        dtype = torch.promote_types(a.dtype, b.dtype)
        scores = scores.to(torch.float64 if dtype == torch.float64 else torch.float32)
        if not (torch.isfinite(scores).all() and torch.isfinite(value)):
            raise NumericalError("the scores hold NaN or infinity: use a wider dtype, such as dtype='float64'")
        return PairExplanation(
            a.side,
            b.side,
            scores,
            value.item(),
            self.measure,
            abs(scores.double().sum().item() - value.item()),
            self.config.to_dict(),
            (a.engine, b.engine),
            seconds,
            self._metadata(a, b, text_a, text_b),
        )

    def _length(self, vector: Tensor, name: str) -> float:
        length = vector.norm().item()
        if length != length or length == float("inf"):
            raise NumericalError(f"the vector of {name} holds NaN or infinity: load the model in a wider dtype")
        return length

    def _decompose(self, encoded: Encoded, directions: Tensor | None = None) -> _Decomposed:
        """A text by one engine.

        Args:
            encoded: the text.
            directions: ``[m, d]``, whose dots with the sources' vectors are wanted; ``None``: the vectors themselves.
        """
        start = time.perf_counter()
        explainer, sources = self.explainer, resolve_sources(self.sources, encoded)
        with plain_mode(explainer.device):
            inputs = self._inputs(encoded)
            engine = self._engine_for(encoded, sources, None if directions is None else len(directions))
            constants = torch.float32 if self.dtype is not None and self.dtype.itemsize < 4 else self.dtype
            linearization = linearize(
                explainer.model, inputs, dtype=constants, record=records(engine, len(encoded)), copies=explainer.copies
            )
            found = attribute(
                engine,
                linearization,
                self.config,
                dtype=self.dtype,
                sources=None if sources is None else sources.ids[None].to(explainer.device),
                terms=None if directions is None else Terms.of_classes(1, self.shape.classes, directions),
                execution=self.execution,
            )
        state = linearization.embedding.dtype if self.dtype is None or engine == "adjoint" else self.dtype
        warn_of_errors(found, None, noteworthy(state, linearization.model_dtype))
        parts = found.scores[0].double().cpu()  # [k, m]
        if found.bias_token is not None:
            parts = torch.cat([parts, found.bias_token.double().cpu()])
        side = _side(encoded, sources, has_bias=found.bias_token is not None)
        vector = linearization.logits[0].double().cpu()
        seconds = time.perf_counter() - start
        return _Decomposed(side, parts, vector, engine, linearization.max_gap, state, seconds)

    def _run_only(self, encoded: Encoded, name: str) -> _Decomposed:
        """A text of which only the model's own vector is wanted: one source, all of it."""
        start = time.perf_counter()
        vector = embed(self.explainer.model, self._inputs(encoded))[0].cpu()
        dtype, vector = vector.dtype, vector.double()
        self._length(vector, name)
        names = encoded.texts or (" ".join(encoded.tokens),)
        spans = ((0, 0, len(encoded.texts[0])),) if encoded.texts else (None,)
        side = PairSide(names, None, spans, encoded.texts, (False,), "text")
        return _Decomposed(side, vector[None], vector, None, 0.0, dtype, time.perf_counter() - start)

    def _inputs(self, encoded: Encoded) -> dict[str, Tensor]:
        return {name: value[None].to(self.explainer.device) for name, value in encoded.inputs.items()}

    def _engine_for(self, encoded: Encoded, sources: Sources | None, directions: int | None) -> str:
        """With ``auto``: a pull-back for each direction, or a vector for each source, whichever costs less."""
        if not self.chooses:
            return self.engine
        count = self.shape.classes if directions is None else directions
        groups = None if sources is None else len(sources)
        return cheaper_engine(self.shape, self.config, tokens=len(encoded), sources=groups, directions=count)

    def _metadata(self, a: _Decomposed, b: _Decomposed, text_a: Encoded, text_b: Encoded) -> Mapping[str, Any]:
        model = unwrap(self.explainer.model)
        found: dict[str, Any] = {
            "model": self.explainer.name or getattr(model.config, "name_or_path", "") or type(model.encoder).__name__,
            "architecture": type(model.encoder).__name__,
            "pooling": model.pooling,
            "normalized": self.normalized,
            "dtype": str(torch.promote_types(a.dtype, b.dtype)).removeprefix("torch."),
            "largest_layer_gap": max(a.gap, b.gap),
            "input": text_b.number,
        }
        for name, encoded in (("a", text_a), ("b", text_b)):
            found |= {f"{key}_{name}": value for key, value in encoded.about.items()}
        return found


def check_encoder(model: nn.Module) -> None:
    """Raise an InputError for a model that gives no vector, saying what does."""
    model = unwrap(model)
    if not isinstance(model, SentenceEncoder):
        raise InputError(
            f"{type(model).__name__} gives classes and not one vector for a text: similarity needs a sentence encoder, "
            "or an encoder without a head and its pooling, as DecompX(model, tokenizer, pooling='mean')"
        )


def texts_of(reader: Reader, items: Any, name: str) -> tuple[list[Encoded], bool]:
    """The texts of one argument, and whether it was a single one.

    Raises:
        InputError: for what cannot be read, naming the argument; a pair is none of them, since a sentence encoder makes
            no vector of two texts.
    """
    try:
        found, is_single = reader.read(items)
        texts = [encoded for encoded in found if isinstance(encoded, Encoded)]
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    if any(len(encoded.texts) > 1 for encoded in texts):
        raise InputError(f"{name} holds a pair of texts, as a tuple: give one text, or several as a list")
    return texts, is_single


def _side(encoded: Encoded, sources: Sources | None, *, has_bias: bool) -> PairSide:
    """A text's sources as a result has them."""
    if sources is None:
        tokens, spans, special = encoded.tokens, encoded.spans, encoded.special
    else:
        tokens, spans = sources.names, tuple(group.span for group in sources.groups)
        special = tuple(all(encoded.special[p] for p in group.positions) for group in sources.groups)
    return PairSide(
        (*tokens, *([BIAS_TOKEN] if has_bias else [])),
        tuple(encoded.inputs["input_ids"].tolist()) if sources is None else None,
        (*spans, *([None] if has_bias else [])),
        encoded.texts,
        (*special, *([True] if has_bias else [])),
        "token" if sources is None else sources.unit,
        has_bias,
    )
