"""One call of the explainer: what is asked of every batch, and the way from a batch to explanations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .asking import Asker, terms_of
from .compiling import outside_compiler
from .config import DecompXConfig
from .engines.accuracy import largest_share, noteworthy
from .engines.adjoint.plan import AdjointPlan
from .engines.adjoint.run import GRADIENTS_HELD
from .engines.attribution import Attribution
from .engines.choose import (
    CHECKS,
    Execution,
    attribute,
    cheaper_engine,
    choose_engine,
    measure_error,
    records,
    without_shares,
)
from .engines.forward.plan import ModelShape
from .engines.terms import Terms
from .errors import InputError, OptionError, PrecisionWarning, warn_user
from .linearize.linearization import HuggingFaceLinearization, linearize, unwrap
from .linearize.model_run import plain_mode
from .models.tasks import PICTURES
from .request.batching import Pair
from .request.encoding import Encoded
from .request.sources import SINGLE_UNITS, Sources
from .request.targets import Targets
from .request.tasks.columns import Asked
from .result.explanation import Explanation, Site
from .result.failure import OF_AN_INPUT, Failure

if TYPE_CHECKING:
    from .explainer import DecompX

#: Columns of a model that answers at positions are known when it has run; before, so many are reckoned with.
COLUMNS_RECKONED = 8

#: Of a picture's classes, where they are more than so many, only so many are explained by themselves: the likeliest.
MANY_CLASSES, LIKELIEST = 100, 5


@dataclass(frozen=True)
class _Answers:
    """What the model gives for the columns of one input.

    Attributes:
        names, ids: of the columns.
        values: ``[m]``, of the columns; ``None`` for norms, which have none.
        logits, labels: of all classes; at positions those of the columns.
        said: what the model says besides: entities, an answer, predictions.
    """

    names: tuple[str, ...]
    ids: tuple[int | None, ...]
    values: torch.Tensor | None
    logits: torch.Tensor
    labels: tuple[str, ...]
    said: Mapping[str, Any] = field(default_factory=dict)


def _source_fields(encoded: Encoded, sources: Sources | None) -> dict[str, Any]:
    """What an explanation says of its sources: the tokens, or groups of them."""
    picture = encoded.picture
    if picture is not None:
        names = encoded.tokens if sources is None else sources.names
        special = range(len(encoded) - picture.groups.numel())
        return {
            "tokens": names,
            "token_ids": None,
            "spans": (None,) * len(names),
            "texts": (),
            "special": tuple(k in special for k in range(len(names))),
            "source_unit": "patch" if sources is None else sources.unit,
            "picture": picture if sources is None else picture.regrouped(sources.ids),
        }
    if sources is None:
        return {
            "tokens": encoded.tokens,
            "token_ids": tuple(encoded.inputs["input_ids"].tolist()),
            "spans": encoded.spans,
            "texts": encoded.texts,
            "special": encoded.special,
            "source_unit": "token",
            "word_ids": encoded.words,
        }
    return {
        "tokens": sources.names,
        "token_ids": None,
        "spans": tuple(group.span for group in sources.groups),
        "texts": encoded.texts,
        "special": tuple(all(encoded.special[p] for p in group.positions) for group in sources.groups),
        "source_unit": sources.unit,
    }


class Job:
    """One call: what is asked of every batch."""

    def __init__(
        self,
        *,
        explainer: DecompX,
        config: DecompXConfig,
        engine: str,
        dtype: torch.dtype | None,
        targets: Targets,
        sources: Any,
        execution: Execution,
        shape: ModelShape,
        positions: Sequence[int] = (),
        check: str = "standard",
        asker: Asker | None = None,
    ) -> None:
        if asker is not None and not config.head:
            raise OptionError(
                f"head=False gives norms of what the head's position is made of, and {explainer.task} reads many: "
                "leave it out"
            )
        if check not in CHECKS:
            raise OptionError(f"check={check!r} is not a check: use one of {', '.join(map(repr, CHECKS))}")
        if not config.head and not targets.is_all:
            raise OptionError("targets needs head=True: without the head, scores are norms and belong to no class")
        self.explainer = explainer
        self.config = config
        grouped = not (isinstance(sources, str) and sources in SINGLE_UNITS)
        self.engine = choose_engine(engine, config, grouped=grouped, rows=bool(positions), biased=shape.biased)
        self.chooses = engine == "auto" and self.engine == "adjoint"
        self.shape = shape
        self.dtype = dtype
        self.targets = targets
        self.execution = execution
        self.positions = tuple(positions)
        self.check = check
        self.asker = asker
        many = targets.is_all and config.head and explainer.task == PICTURES and shape.classes > MANY_CLASSES
        self.likeliest = LIKELIEST if many else None

    @property
    def columns(self) -> int:
        """How many directions the adjoint engine pulls back, as far as that is known before a model has run."""
        if self.asker is not None:
            return COLUMNS_RECKONED
        return self.likeliest or self.targets.pulled(self.config)

    def _asked(self, engine: str) -> DecompXConfig:
        """The options as this engine answers them."""
        return without_shares(self.config, biased=self.shape.biased) if engine == "adjoint" else self.config

    def engine_for(self, pair: Pair) -> str:
        """The engine that answers for inputs of this length: with ``auto``, the one that costs less."""
        encoded, sources = pair
        if not self.chooses:
            return self.engine
        if self.asker is not None and self.config.bias_token_split is not None:
            return "forward"  # may weigh by all outputs, of which the other forms only those that are asked for
        groups = None if sources is None else len(sources)
        return cheaper_engine(self.shape, self.config, tokens=len(encoded), sources=groups, directions=self.columns)

    def bytes_of(self, pair: Pair) -> int:
        """What one such input takes while it is computed, roughly: the state, or all that the adjoint engine holds."""
        encoded, sources = pair
        n, constants = len(encoded), torch.float64 if self.dtype is torch.float64 else torch.float32
        if self.engine_for(pair) == "adjoint":
            directions = self.columns
            plan = AdjointPlan(self.shape, n, 1, directions, constants, self.config, self.explainer.device)
            gradients = directions * GRADIENTS_HELD * n * self.shape.d * constants.itemsize
            return plan.states_bytes + plan.results_bytes + gradients
        k = (n if sources is None else len(sources)) + (self.config.bias == "bias_token")
        return n * k * self.shape.d * (self.dtype or constants).itemsize

    @outside_compiler
    def run(self, batch: Sequence[Pair]) -> list[Explanation]:
        """Explain inputs of the same length and the same number of sources."""
        start = time.perf_counter()
        engine = self.engine_for(batch[0])
        inputs = [encoded for encoded, _ in batch]
        reads = [] if self.asker is None else self.asker.reads(inputs)
        with plain_mode(self.explainer.device):
            linearization = self._linearize(inputs, engine)
            asked = None
            if self.asker is not None:
                asked = self.asker.ask(inputs, reads, linearization)
            terms = self._terms(linearization, asked)
            groups = self._groups([sources for _, sources in batch], linearization.embedding.device)
            attribution = self._attribute(linearization, groups, engine, terms)
            errors = self._errors(attribution, linearization, groups, engine, terms)
            answers = self._answers(linearization, terms, asked)
        dtypes = (self._state_dtype(linearization, engine), linearization.model_dtype)
        _warn_of_errors(attribution, errors, noteworthy(*dtypes))
        seconds = (time.perf_counter() - start) / len(batch)
        return [
            self._explanation(
                n,
                encoded,
                sources,
                linearization,
                attribution,
                answer,
                None if errors is None else errors[n],
                seconds,
                engine,
            )
            for n, ((encoded, sources), answer) in enumerate(zip(batch, answers, strict=True))
        ]

    def run_or_fail(self, batch: Sequence[Pair]) -> list[Explanation | Failure]:
        """The same, with failures in place: if a batch fails as a whole, its inputs are explained one by one."""
        try:
            return [*self.run(batch)]
        except OF_AN_INPUT as error:
            if len(batch) == 1:
                return [Failure.of(batch[0][0].number, error)]
        return [found for pair in batch for found in self.run_or_fail([pair])]

    def _linearize(self, batch: Sequence[Encoded], engine: str) -> HuggingFaceLinearization:
        device = self.explainer.device
        names = batch[0].inputs.keys()
        inputs = {name: torch.stack([encoded.inputs[name] for encoded in batch]).to(device) for name in names}
        model_dtype = next(self.explainer.model.parameters()).dtype
        inputs = {name: x.to(model_dtype) if x.is_floating_point() else x for name, x in inputs.items()}
        constants = self.dtype
        if constants is not None and constants.itemsize < 4:
            constants = torch.float32
        record = records(engine, len(batch[0]))
        copies = self.explainer.copies
        linearization = linearize(self.explainer.model, inputs, dtype=constants, record=record, copies=copies)
        labels = self.explainer.labels
        classes = self.shape.classes if self.asker is None else self.asker.count
        if labels and classes != len(labels):
            raise InputError(
                f"the model has {classes} classes, but its configuration names {len(labels)}: set "
                "model.config.id2label to one name for each"
            )
        return linearization

    @staticmethod
    def _groups(sources: Sequence[Sources | None], device: torch.device) -> torch.Tensor | None:
        """``[b, i]``, the source of each token, or ``None`` where each is its own."""
        return None if sources[0] is None else torch.stack([s.ids for s in sources if s is not None]).to(device)

    def _attribute(
        self,
        linearization: HuggingFaceLinearization,
        sources: torch.Tensor | None,
        engine: str,
        terms: Terms | None,
    ) -> Attribution:
        return attribute(
            engine,
            linearization,
            self._asked(engine),
            dtype=self.dtype,
            sources=sources,
            terms=terms,
            execution=self.execution,
            positions=self.positions,
        )

    def _errors(
        self,
        attribution: Attribution,
        linearization: HuggingFaceLinearization,
        sources: torch.Tensor | None,
        engine: str,
        terms: Terms | None,
    ) -> list[float] | None:
        """What the scores of each input are wrong by, if that is to be measured."""
        if self.check == "standard":
            return None
        return measure_error(
            attribution,
            engine,
            linearization,
            self._asked(engine),
            sources=sources,
            terms=terms,
            execution=self.execution,
        ).tolist()

    def _terms(self, linearization: HuggingFaceLinearization, asked: Sequence[Asked] | None) -> Terms | None:
        """What is asked of the batch; ``None``: all classes."""
        device = linearization.embedding.device
        if asked is not None:
            return terms_of(asked, device)
        if self.likeliest is not None:
            return Terms(None, linearization.logits.topk(self.likeliest).indices)
        if self.targets.is_all or not self.config.head:
            return None
        b, classes = linearization.logits.shape
        return Terms.of_classes(b, classes, self.targets.directions.to(device))

    def _answers(
        self, linearization: HuggingFaceLinearization, terms: Terms | None, asked: Sequence[Asked] | None
    ) -> list[_Answers]:
        """The model's own values of the columns of each input, and what it says by itself."""
        if asked is None or terms is None:
            if self.likeliest is not None and terms is not None:
                rows = zip(linearization.logits.cpu(), terms.outputs.tolist(), strict=True)
                return [self._some_classes(logits, ids) for logits, ids in rows]
            return [self._classes(logits) for logits in linearization.logits.cpu()]
        values = terms.combine(linearization.values(terms)).cpu()
        found = []
        for one, row in zip(asked, values, strict=True):
            names, own = tuple(column.name for column in one.columns), row[: len(one.columns)]
            said = {"entities": one.entities, "answer": one.answer, "predictions": one.predictions}
            found.append(_Answers(names, (None,) * len(names), own, own, names, said))
        return found

    def _some_classes(self, logits: torch.Tensor, ids: list[int]) -> _Answers:
        """The columns of one input over these classes."""
        labels = self.explainer.labels
        return _Answers(tuple(labels[k] for k in ids), tuple(ids), logits[ids], logits, labels)

    def _classes(self, logits: torch.Tensor) -> _Answers:
        """The columns of one input over classes; without a head there is one, of norms."""
        labels, targets = self.explainer.labels, self.targets
        if not self.config.head:
            return _Answers(("norm",), (None,), None, logits, labels)
        return _Answers(targets.names, targets.ids, targets.select(logits), logits, labels)

    def _explanation(
        self,
        n: int,
        encoded: Encoded,
        sources: Sources | None,
        linearization: HuggingFaceLinearization,
        attribution: Attribution,
        answers: _Answers,
        score_error: float | None,
        seconds: float,
        engine: str,
    ) -> Explanation:
        config, own = self.config, slice(0, len(answers.names))  # a batch may have more columns than this input
        scores = attribution.scores[n, :, own].cpu()
        bias_token = None if attribution.bias_token is None else attribution.bias_token[n, own].cpu()
        target_logits = answers.values
        if target_logits is not None:
            total = scores.double().sum(0) if bias_token is None else scores.double().sum(0) + bias_token.double()
            error = (total - target_logits.double()).abs().max().item()
        else:
            bias_token = None
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
            target_logits = scores.sum(0)
            error = attribution.gap[n].item()
        if config.bias == "bias_token" and not config.head:
            scores, bias_token = scores[:-1], scores[-1]
        sites = None
        if attribution.sites is not None:
            sites = tuple(Site(s.layer, s.place, s.value[n, own].cpu()) for s in attribution.sites)
        return Explanation(
            **_source_fields(encoded, sources),
            scores=scores,
            targets=answers.names,
            target_ids=answers.ids,
            target_logits=target_logits,
            logits=answers.logits,
            labels=answers.labels,
            problem_type=self.explainer.problem_type,
            completeness_error=error,
            score_error=score_error,
            bias_token=bias_token,
            options=config.to_dict(),
            engine=engine,  # type: ignore[arg-type]
            time_s=seconds,
            stages={name: value[n].cpu() for name, value in attribution.stages.items()},
            bias_sites=sites,
            component_shares={name: value[n, :, own].cpu() for name, value in attribution.components.items()},
            metadata=self._metadata(linearization, encoded, engine, attribution, n),
            task=self.explainer.task,
            **answers.said,
        )

    def _state_dtype(self, linearization: HuggingFaceLinearization, engine: str) -> torch.dtype:
        constants = linearization.embedding.dtype  # the adjoint engine has no decomposed state of another dtype
        return constants if self.dtype is None or engine == "adjoint" else self.dtype

    def _metadata(
        self,
        linearization: HuggingFaceLinearization,
        encoded: Encoded,
        engine: str,
        attribution: Attribution,
        n: int,
    ) -> Mapping[str, Any]:
        model, expected = unwrap(self.explainer.model), attribution.expected_error
        return {
            "model": self.explainer.name or getattr(model.config, "name_or_path", "") or type(model).__name__,
            "architecture": type(model).__name__,
            "dtype": str(self._state_dtype(linearization, engine)).removeprefix("torch."),
            "largest_layer_gap": linearization.max_gap,
            **({} if expected is None else {"expected_error": float(f"{expected[n].item():.2g}")}),
            **({} if self.shape.biased else {"biases": "none, so that every rule gives the same scores"}),
            "input": encoded.number,
            **encoded.about,
        }


#: A measured error of this share of the largest score is worth a warning: the measure is closer than an estimate.
MEASURED_NOTEWORTHY = 0.01


def _warn_of_errors(attribution: Attribution, errors: Sequence[float] | None, least: float) -> None:
    """Say where scores are probably wrong by much, from an estimate of ``least`` on, though they may add up to the
    logit exactly."""
    ways = "use dtype='float64', and a model in float64 where it is the model's own rounding that is magnified"
    if errors is not None:
        largest = largest_share(attribution).tolist()
        share, error = max((error / size if size else 0.0, error) for error, size in zip(errors, largest, strict=True))
        if share > MEASURED_NOTEWORTHY:
            warn_user(
                f"scores are wrong by up to {error:.2g} ({share:.0%} of the largest), as measured in float64, whatever "
                f"completeness_error says: {ways}",
                PrecisionWarning,
            )
        return
    expected = 0.0 if attribution.expected_error is None else attribution.expected_error.max().item()
    if expected > least:
        warn_user(
            f"scores may be wrong by {min(expected, 1.0):.1%} of the largest or more, whatever completeness_error "
            "says: saturated attention or norms of tiny variance magnify rounding in this model, or its vectors are "
            f"too small for the dtype. check='thorough' measures it; {ways}",
            PrecisionWarning,
        )
