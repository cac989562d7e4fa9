"""One call of the explainer: what is asked of every batch, and the way from a batch to explanations."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from ..config import DecompXConfig
from ..engines.accuracy import noteworthy
from ..engines.adjoint.plan import AdjointPlan
from ..engines.adjoint.run import GRADIENTS_HELD
from ..engines.attribution import Attribution
from ..engines.choose import (
    CHECKS,
    Execution,
    attribute,
    cheaper_engine,
    choose_engine,
    measure_error,
    records,
    without_shares,
)
from ..engines.forward.plan import ModelShape
from ..engines.terms import Terms
from ..errors import InputError, OptionError
from ..linearize.linearization import HuggingFaceLinearization, linearize
from ..linearize.model_run import plain_mode
from ..models.tasks import PICTURES, SOUNDS
from ..request.batching import BATCH_BYTES, Pair
from ..request.encoded import Encoded
from ..request.sources import SINGLE_UNITS, Sources
from ..request.targets import Targets
from ..request.tasks.columns import Asked
from ..result.explanation import Explanation
from ..result.failure import OF_AN_INPUT, OF_THE_SETTING, Failure
from .asking import AskedOf, Asker, terms_of
from .compiling import outside_compiler
from .composing import Answers, Computed
from .explained_model import ExplainedModel
from .forked import use_own_threads
from .precision import warn_of_errors

#: Columns of a model that answers at positions are known when it has run; before, so many are reckoned with.
COLUMNS_RECKONED = 8

#: Of a picture's or a sound's classes, where they are more than so many, only so many are explained by themselves: the
#: likeliest.
MANY_CLASSES, LIKELIEST = 100, 5


class Job:
    """One call: what is asked of every batch."""

    def __init__(
        self,
        *,
        explainer: ExplainedModel,
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
        warns: bool = True,
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
        self.warns = warns
        many = targets.is_all and config.head and explainer.task in (PICTURES, SOUNDS) and shape.classes > MANY_CLASSES
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

    def engine_for(self, tokens: int, groups: int | None) -> str:
        """The engine that answers for inputs of so many tokens, in groups or each by itself: with ``auto``, the one
        that costs less."""
        if not self.chooses:
            return self.engine
        if self.asker is not None and self.config.bias_token_split is not None:
            return "forward"  # may weigh by all outputs, of which the other forms only those that are asked for
        return cheaper_engine(self.shape, self.config, tokens=tokens, sources=groups, directions=self.columns)

    def bytes_of(self, pair: Pair) -> int:
        """What one such input takes while it is computed, roughly."""
        return self.bytes_of_size(*_size(pair))

    def bytes_of_size(self, n: int, groups: int | None) -> int:
        """The same of so many tokens and groups: the state, or all that the adjoint engine holds."""
        constants = torch.float64 if self.dtype is torch.float64 else torch.float32
        if self.engine_for(n, groups) == "adjoint":
            directions = self.columns
            plan = AdjointPlan(self.shape, n, 1, directions, constants, self.config, self.explainer.device)
            gradients = directions * GRADIENTS_HELD * n * self.shape.d * constants.itemsize
            return plan.states_bytes + plan.results_bytes + gradients
        k = (n if groups is None else groups) + (self.config.bias == "bias_token")
        return n * k * self.shape.d * (self.dtype or constants).itemsize

    def run_all(self, batches: Sequence[Sequence[Pair]], *, skip: bool) -> list[Sequence[Explanation | Failure]]:
        """Explain batches, each of inputs of the same length and the same number of sources.

        Where several processes are given the same batches, they divide the sources of each, or, of batches that fit in
        one process and of engines that know no sources, the batches. All get all results.

        Args:
            batches: if there are several processes, as many at the most.
            skip: whether failures stand in place of what cannot be explained.
        """
        run, exchange = self.run_or_fail if skip else self.run, self.execution.exchange
        if exchange is None or exchange.ranks == 1:
            return [run(batch) for batch in batches]
        if self._is_sharded(batches):
            return [run(batch) for batch in batches]
        alone = copy.copy(self)
        alone.execution = replace(self.execution, exchange=None)
        with exchange.together():
            mine = batches[exchange.rank : exchange.rank + 1]
            found = exchange.gather_objects(alone.run_all(mine, skip=skip))
        return [results for one in found for results in one]

    def _is_sharded(self, batches: Sequence[Sequence[Pair]]) -> bool:
        """Whether processes divide the sources of these batches: of one by itself, and where one process would hold
        more than a batch may take."""
        carried = [batch for batch in batches if self.engine_for(*_size(batch[0])) == "forward"]
        return bool(carried) and (len(batches) == 1 or any(self.bytes_of(batch[0]) > BATCH_BYTES for batch in carried))

    @outside_compiler
    def run(self, batch: Sequence[Pair]) -> list[Explanation]:
        """Explain inputs of the same length and the same number of sources."""
        use_own_threads()
        exchange = self.execution.exchange
        with nullcontext() if exchange is None else exchange.together():
            return self._run(batch)

    def _run(self, batch: Sequence[Pair]) -> list[Explanation]:
        start = time.perf_counter()
        engine = self.engine_for(*_size(batch[0]))
        inputs = [encoded for encoded, _ in batch]
        asked_of = AskedOf.batch(inputs)
        reads = [] if self.asker is None else self.asker.reads(asked_of.inputs)
        with plain_mode(self.explainer.device):
            linearization = self._linearize(inputs, engine)
            asked = None
            if self.asker is not None:
                asked = self.asker.ask(asked_of.inputs, reads, asked_of.outputs_of(linearization))
            terms = asked_of.shifted(self._terms(linearization, asked))
            groups = self._groups([sources for _, sources in batch], linearization.embedding.device)
            attribution = self._attribute(linearization, groups, engine, terms)
            errors = self._errors(attribution, linearization, groups, engine, terms)
            answers = self._answers(linearization, terms, asked)
        dtype = linearization.embedding.dtype  # the adjoint engine has no decomposed state of another dtype
        if self.dtype is not None and engine != "adjoint":
            dtype = self.dtype
        if self.warns:
            warn_of_errors(attribution, errors, noteworthy(dtype, linearization.model_dtype))
        computed = Computed(
            explainer=self.explainer,
            config=self.config,
            engine=engine,
            dtype=dtype,
            linearization=linearization,
            attribution=attribution,
            answers=answers,
            errors=errors,
            biased=self.shape.biased,
            seconds=(time.perf_counter() - start) / len(batch),
        )
        return [computed.explanation(n, encoded, sources) for n, (encoded, sources) in enumerate(batch)]

    def run_or_fail(self, batch: Sequence[Pair]) -> list[Explanation | Failure]:
        """The same, with failures in place: if a batch fails as a whole, its inputs are explained one by one."""
        return run_or_fail(self.run, batch)

    def of_column(self, column: int) -> Job:
        """The same question of one column alone."""
        job = copy.copy(self)
        job.targets = self.targets.only(column)
        return job

    def of_likeliest(self) -> Job:
        """The same question, of the likeliest classes alone where all of many were asked for."""
        job = copy.copy(self)
        if self.asker is None and self.targets.is_all and self.shape.classes > COLUMNS_RECKONED:
            job.likeliest = LIKELIEST
        return job

    def run_model(self, batch: Sequence[Encoded]) -> torch.Tensor:
        """What the model says of inputs of the same length, ``[b, C]``, without explanations."""
        with plain_mode(self.explainer.device):
            return self._linearize(batch, "reference").logits  # which records nothing of the layers

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
    ) -> list[Answers]:
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
            found.append(Answers(names, (None,) * len(names), own, own, names, said))
        return found

    def _some_classes(self, logits: torch.Tensor, ids: list[int]) -> Answers:
        """The columns of one input over these classes."""
        labels = self.explainer.labels
        return Answers(tuple(labels[k] for k in ids), tuple(ids), logits[ids], logits, labels)

    def _classes(self, logits: torch.Tensor) -> Answers:
        """The columns of one input over classes; without a head there is one, of norms."""
        labels, targets = self.explainer.labels, self.targets
        if not self.config.head:
            return Answers(("norm",), (None,), None, logits, labels)
        return Answers(targets.names, targets.ids, targets.select(logits), logits, labels)


def _size(pair: Pair) -> tuple[int, int | None]:
    """How many tokens an input has, and in how many groups, if they are in any."""
    encoded, sources = pair
    return len(encoded), None if sources is None else len(sources)


def run_or_fail(
    run: Callable[[Sequence[Pair]], Sequence[Explanation]], batch: Sequence[Pair]
) -> list[Explanation | Failure]:
    """As :meth:`Job.run_or_fail`, of any job's ``run``."""
    try:
        return [*run(batch)]
    except OF_AN_INPUT as error:
        if len(batch) == 1 or isinstance(error, OF_THE_SETTING):
            return [Failure.of(batch[0][0].number, error)]
    return [found for pair in batch for found in run_or_fail(run, [pair])]
