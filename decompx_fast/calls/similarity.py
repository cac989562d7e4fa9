"""The similarity of two texts, or of a text and a picture, as a sum over the pairs of their sources.

An encoder gives an input one vector, and the method gives each source its part of it, ``e_a = sum_k U[k]`` and
``e_b = sum_l V[l]``. So their dot is a sum over pairs, and so is the cosine, whose lengths are constants here:

    cos(e_a, e_b) = sum_(k, l) S[k, l],      S[k, l] = U[k] . V[l] / (|e_a| |e_b|)

The logit of a model of texts and pictures is the cosine times a number, and another number added, which is no source's.

Where only one side's scores are asked for, ``S[k] = U[k] . e_b / (|e_a| |e_b|)``, the other text is merely run, and
with a rule that is linear in the inputs one direction is pulled back instead of all ``d``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..config import DecompXConfig
from ..engines.accuracy import noteworthy
from ..engines.choose import Execution, attribute, cheaper_engine, choose_engine, records
from ..engines.shape import ModelShape
from ..errors import InputError, NumericalError, OptionError, shown
from ..linearize.architectures import unwrap
from ..linearize.linearization import linearize
from ..linearize.model_run import plain_mode
from ..linearize.sentence import SentenceEncoder, embed
from ..linearize.terms import Terms
from ..linearize.towers import TwoTowers
from ..request.encoded import Encoded
from ..request.encoding import Reader
from ..request.pictures import is_picture
from ..request.sources import UNITS, Sources, resolve_sources
from ..result.explanations import Explanations
from ..result.pair import BIAS_TOKEN, Measure, PairExplanation, PairSide, Side, SideUnit
from .encoders import Encoder, texts_of
from .explained_model import ExplainedModel
from .forked import use_own_threads
from .precision import warn_of_errors

#: Whose sources are told apart: those of both texts, or of one, against all of the other.
Sides = Literal["both", "a", "b"]


@dataclass(frozen=True)
class _Decomposed:
    """An input taken apart.

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
        explainer: of a sentence encoder, or of a model of texts and pictures.
        encoders: of ``a`` and of ``b``; the same for two texts.
        config: the options of the method.
        engine, dtype, execution: as for a :class:`.job.Job`.
        measure: ``cos``, ``dot`` or, of a model of texts and pictures, ``logit``.
        side: whose sources are told apart.
        sources: ``token``, ``word`` or ``sentence``; of a picture also ``(rows, columns)`` of blocks.

    Raises:
        OptionError: for what a similarity does not have, or an engine that cannot answer.
    """

    def __init__(
        self,
        *,
        explainer: ExplainedModel,
        encoders: tuple[Encoder, Encoder],
        config: DecompXConfig,
        engine: str,
        dtype: torch.dtype | None,
        execution: Execution,
        measure: Any,
        side: Any,
        sources: Any,
    ) -> None:
        model = unwrap(explainer.model)
        self.line = model.line if isinstance(model, TwoTowers) else None
        measures = [name for name in get_args(Measure) if name != "logit" or self.line is not None]
        choices = [("measure", measure, measures), ("side", side, get_args(Sides))]
        if self.line is None or not isinstance(sources, (tuple, list)):
            choices.append(("sources", sources, UNITS))
        for name, value, allowed in choices:
            if not isinstance(value, str) or value not in allowed:
                raise OptionError(f"{name}={value!r}: use one of {', '.join(map(repr, allowed))}")
        for name, wanted in (("head", True), ("aggregation", "vector"), ("stages", ())):
            if getattr(config, name) != wanted:
                raise OptionError(
                    f"{name}={getattr(config, name)!r}: a similarity is of the vectors that the whole model gives, so "
                    f"it needs {name}={wanted!r}"
                )
        self.explainer, self.config, self.dtype, self.execution = explainer, config, dtype, execution
        self.encoders: dict[Side, Encoder] = {"a": encoders[0], "b": encoders[1]}
        self.measure, self.side, self.sources = measure, side, sources
        self.engine = choose_engine(engine, config, grouped=sources != "token")
        self.chooses = engine == "auto" and self.engine == "adjoint"
        self.normalized = self.line is not None or bool(model.normalized)

    def compare(self, a: Any, b: Any) -> PairExplanation | Explanations[PairExplanation]:
        """One result, or for a list in ``b`` a list; of a text and a picture, for a list in either.

        Raises:
            InputError: for what cannot be read, naming the argument.
        """
        use_own_threads()
        first, a_is_single = self._read(a, "a")
        if not a_is_single and self.line is None:
            raise InputError("a is a list: give one text as a, and those that it is compared with as a list in b")
        second, b_is_single = self._read(b, "b")
        if not a_is_single and not b_is_single:
            raise InputError(
                "a and b are lists: give one text with several pictures, or one picture with several texts"
            )
        runs = self.run(first[0], second) if a_is_single else self.run(second[0], first, one_is="b")
        found = Explanations(runs)
        return found[0] if a_is_single and b_is_single else found

    def _read(self, items: Any, name: Side) -> tuple[list[Encoded], bool]:
        reader = self.encoders[name].reader
        if isinstance(reader, Reader):
            if self.line is not None and (is_picture(items) and not isinstance(items, str)):
                raise InputError(f"{name} is a picture ({shown(items)}): give the text as a, and the picture as b")
            return texts_of(reader, items, name)
        try:
            found, is_single = reader.read(items)
            return [encoded for encoded in found if isinstance(encoded, Encoded)], is_single
        except InputError as error:
            raise InputError(f"{name}: {error}") from error

    def run(self, one: Encoded, others: Sequence[Encoded], *, one_is: Side = "a") -> Iterator[PairExplanation]:
        """Compare an input with each of the others, in order; what is known of it is reused.

        Args:
            one: of the side ``one_is``.
            others: of the other side.
            one_is: which of them it is.

        Raises:
            NumericalError: where a cosine is asked of a vector of zeros.
        """
        other_is: Side = "b" if one_is == "a" else "a"
        if self.side == one_is:
            names = [f"{other_is} ({n})" if len(others) > 1 else other_is for n in range(len(others))]
            bare = [self._run_only(other, other_is, name) for other, name in zip(others, names, strict=True)]
            # All of them at once: a direction each, or all of the vector where those are fewer.
            wanted = torch.stack([self._direction(other.vector, other_is) for other in bare])
            few = wanted if len(wanted) < self.encoders[one_is].shape.classes else None
            first = self._decompose(one, one_is, few)
            for n, other in enumerate(bare):
                parts = first.parts @ wanted[n] if few is None else first.parts[:, n]
                seconds = first.time_s / len(bare) + other.time_s
                yield self._pair(first, other, parts[:, None], one, others[n], seconds, one_is)
            return
        first = self._decompose(one, one_is) if self.side == "both" else self._run_only(one, one_is, one_is)
        for n, encoded in enumerate(others):
            if self.side == "both":
                second = self._decompose(encoded, other_is)
                scores = first.parts @ second.parts.T
            else:
                second = self._decompose(encoded, other_is, self._direction(first.vector, one_is)[None])
                scores = second.parts.T
            seconds = second.time_s + (0 if n else first.time_s)
            yield self._pair(first, second, scores, one, encoded, seconds, one_is)

    def _direction(self, vector: Tensor, name: str) -> Tensor:
        """A vector of length 1 that way, so that its size does not matter to what is pulled back."""
        return vector / self._length(vector, name) if bool((vector != 0).any()) else vector

    def _pair(
        self,
        one: _Decomposed,
        other: _Decomposed,
        scores: Tensor,
        input_one: Encoded,
        input_other: Encoded,
        seconds: float,
        one_is: Side,
    ) -> PairExplanation:
        """Scores ``[k, l]`` of vectors, of which one may be a direction of length 1, made those of the measure."""
        number = input_other.number
        (a, b), (input_a, input_b) = (one, other), (input_one, input_other)
        if one_is == "b":
            (a, b), (input_a, input_b), scores = (other, one), (input_other, input_one), scores.T
        offset = 0.0
        lengths = (self._length(a.vector, "a"), self._length(b.vector, "b"))
        if self.measure != "dot" or self.normalized:
            if not all(lengths):
                name = "a" if not lengths[0] else "b"
                raise NumericalError(
                    f"the vector of {name} is zero, so it has no direction and no cosine: use measure='dot'"
                )
            divided = {"both": lengths, "a": lengths[:1], "b": lengths[1:]}[self.side]
            value = torch.dot(a.vector / lengths[0], b.vector / lengths[1])
            for length in divided:
                scores = scores / length
            if self.measure == "logit" and self.line is not None:
                factor, offset = self.line
                scores, value = scores * factor, value * factor + offset
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
            abs(scores.double().sum().item() + offset - value.item()),
            self.config.to_dict(),
            (a.engine, b.engine),
            seconds,
            {**self._metadata(a, b, input_a, input_b), "input": number},
            offset,
        )

    def _length(self, vector: Tensor, name: str) -> float:
        length = vector.norm().item()
        if length != length or length == float("inf"):
            raise NumericalError(f"the vector of {name} holds NaN or infinity: load the model in a wider dtype")
        return length

    def _decompose(self, encoded: Encoded, side: Side, directions: Tensor | None = None) -> _Decomposed:
        """An input by one engine.

        Args:
            encoded: the input.
            side: which it is.
            directions: ``[m, d]``, whose dots with the sources' vectors are wanted; ``None``: the vectors themselves.
        """
        start = time.perf_counter()
        explainer, encoder, sources = self.explainer, self.encoders[side], self._sources_of(encoded)
        with plain_mode(explainer.device):
            inputs = self._inputs(encoded)
            count = encoder.shape.classes if directions is None else len(directions)
            engine = self._engine_for(encoder.shape, encoded, sources, count)
            constants = torch.float32 if self.dtype is not None and self.dtype.itemsize < 4 else self.dtype
            linearization = linearize(
                encoder.model, inputs, dtype=constants, record=records(engine, len(encoded)), copies=encoder.copies
            )
            found = attribute(
                engine,
                linearization,
                self.config,
                dtype=self.dtype,
                sources=None if sources is None else sources.ids[None].to(explainer.device),
                terms=None if directions is None else Terms.of_classes(1, encoder.shape.classes, directions),
                execution=self.execution,
            )
        state = linearization.embedding.dtype if self.dtype is None or engine == "adjoint" else self.dtype
        warn_of_errors(found, None, noteworthy(state, linearization.model_dtype))
        parts = found.scores[0].double().cpu()  # [k, m]
        if found.bias_token is not None:
            parts = torch.cat([parts, found.bias_token.double().cpu()])
        own = _side(encoded, sources, has_bias=found.bias_token is not None)
        vector = linearization.logits[0].double().cpu()
        seconds = time.perf_counter() - start
        return _Decomposed(own, parts, vector, engine, linearization.max_gap, state, seconds)

    def _sources_of(self, encoded: Encoded) -> Sources | None:
        """The sources asked for: units are of texts, blocks are of pictures, and what is not asked for stays single."""
        blocks = not isinstance(self.sources, str)
        if (encoded.picture is not None) != blocks:
            return None if blocks or encoded.picture is not None else resolve_sources(self.sources, encoded)
        return resolve_sources(tuple(self.sources) if blocks else self.sources, encoded)

    def _run_only(self, encoded: Encoded, side: Side, name: str) -> _Decomposed:
        """An input of which only the model's own vector is wanted: one source, all of it."""
        start = time.perf_counter()
        vector = embed(self.encoders[side].model, self._inputs(encoded))[0].cpu()
        dtype, vector = vector.dtype, vector.double()
        self._length(vector, name)
        if encoded.picture is not None:
            whole = encoded.picture.regrouped(torch.zeros(len(encoded), dtype=torch.int64))
            own = PairSide(("picture",), None, (None,), (), (False,), "picture", picture=whole)
            return _Decomposed(own, vector[None], vector, None, 0.0, dtype, time.perf_counter() - start)
        names = encoded.texts or (" ".join(encoded.tokens),)
        spans = ((0, 0, len(encoded.texts[0])),) if encoded.texts else (None,)
        own = PairSide(names, None, spans, encoded.texts, (False,), "text")
        return _Decomposed(own, vector[None], vector, None, 0.0, dtype, time.perf_counter() - start)

    def _inputs(self, encoded: Encoded) -> dict[str, Tensor]:
        model = self.explainer.model
        device, dtype = self.explainer.device, next(model.parameters()).dtype
        inputs = {name: value[None].to(device) for name, value in encoded.inputs.items()}
        return {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}

    def _engine_for(self, shape: ModelShape, encoded: Encoded, sources: Sources | None, directions: int) -> str:
        """With ``auto``: a pull-back for each direction, or a vector for each source, whichever costs less."""
        if not self.chooses:
            return self.engine
        groups = None if sources is None else len(sources)
        return cheaper_engine(shape, self.config, tokens=len(encoded), sources=groups, directions=directions)

    def _metadata(self, a: _Decomposed, b: _Decomposed, input_a: Encoded, input_b: Encoded) -> dict[str, Any]:
        model = unwrap(self.explainer.model)
        architecture = type(model.model if isinstance(model, TwoTowers) else model.encoder).__name__
        found: dict[str, Any] = {
            "model": self.explainer.name or getattr(model.config, "name_or_path", "") or architecture,
            "architecture": architecture,
            **({"pooling": model.pooling} if isinstance(model, SentenceEncoder) else {}),
            "normalized": self.normalized,
            "dtype": str(torch.promote_types(a.dtype, b.dtype)).removeprefix("torch."),
            "largest_layer_gap": max(a.gap, b.gap),
        }
        for name, encoded in (("a", input_a), ("b", input_b)):
            found |= {f"{key}_{name}": value for key, value in encoded.about.items()}
        return found


def _side(encoded: Encoded, sources: Sources | None, *, has_bias: bool) -> PairSide:
    """An input's sources as a result has them."""
    picture = encoded.picture
    if picture is not None and sources is not None:
        picture = picture.regrouped(sources.ids)
    unit: SideUnit = "token" if picture is None else "patch"
    if sources is None:
        tokens, spans, special = encoded.tokens, encoded.spans, encoded.special
    else:
        tokens, spans = sources.names, tuple(group.span for group in sources.groups)
        special = tuple(all(encoded.special[p] for p in group.positions) for group in sources.groups)
    return PairSide(
        (*tokens, *([BIAS_TOKEN] if has_bias else [])),
        tuple(encoded.inputs["input_ids"].tolist()) if sources is None and picture is None else None,
        (*spans, *([None] if has_bias else [])),
        encoded.texts,
        (*special, *([True] if has_bias else [])),
        unit if sources is None else sources.unit,
        has_bias,
        picture,
    )
