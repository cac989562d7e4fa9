"""One call of the explainer: what is asked of every batch, and the way from a batch to explanations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .compiling import outside_compiler
from .config import DecompXConfig
from .engines.accuracy import largest_share, noteworthy
from .engines.adjoint.plan import AdjointPlan
from .engines.adjoint.run import GRADIENTS_HELD
from .engines.attribution import Attribution
from .engines.choose import CHECKS, Execution, attribute, cheaper_engine, choose_engine, measure_error, records
from .engines.forward.plan import ModelShape
from .engines.terms import Terms
from .errors import InputError, OptionError, PrecisionWarning, warn_user
from .linearize.linearization import HuggingFaceLinearization, linearize, unwrap
from .linearize.model_run import plain_mode
from .request.batching import Pair
from .request.encoding import Encoded
from .request.sources import Sources
from .request.targets import Targets
from .result.explanation import Explanation, Site
from .result.failure import OF_AN_INPUT, Failure

if TYPE_CHECKING:
    from .explainer import DecompX


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
    ) -> None:
        if check not in CHECKS:
            raise OptionError(f"check={check!r} is not a check: use one of {', '.join(map(repr, CHECKS))}")
        if not config.head and not targets.is_all:
            raise OptionError("targets needs head=True: without the head, scores are norms and belong to no class")
        self.explainer = explainer
        self.config = config
        grouped = not (isinstance(sources, str) and sources == "token")
        self.engine = choose_engine(engine, config, grouped=grouped, rows=bool(positions))
        self.chooses = engine == "auto" and self.engine == "adjoint"
        self.shape = shape
        self.dtype = dtype
        self.targets = targets
        self.execution = execution
        self.positions = tuple(positions)
        self.check = check

    def engine_for(self, pair: Pair) -> str:
        """The engine that answers for inputs of this length: with ``auto``, the one that costs less."""
        encoded, sources = pair
        if not self.chooses:
            return self.engine
        groups = None if sources is None else len(sources)
        return cheaper_engine(
            self.shape, self.config, tokens=len(encoded), sources=groups, directions=self.targets.pulled(self.config)
        )

    def bytes_of(self, pair: Pair) -> int:
        """What one such input takes while it is computed, roughly: the state, or all that the adjoint engine holds."""
        encoded, sources = pair
        n, constants = len(encoded), torch.float64 if self.dtype is torch.float64 else torch.float32
        if self.engine_for(pair) == "adjoint":
            directions = self.targets.pulled(self.config)
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
        with plain_mode(self.explainer.device):
            linearization = self._linearize([encoded for encoded, _ in batch], engine)
            groups = self._groups([sources for _, sources in batch], linearization.embedding.device)
            attribution = self._attribute(linearization, groups, engine)
            errors = self._errors(attribution, linearization, groups, engine)
        _warn_of_errors(attribution, errors, self._state_dtype(linearization, engine))
        seconds = (time.perf_counter() - start) / len(batch)
        return [
            self._explanation(
                n, encoded, sources, linearization, attribution, None if errors is None else errors[n], seconds, engine
            )
            for n, (encoded, sources) in enumerate(batch)
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
        constants = self.dtype
        if constants is not None and constants.itemsize < 4:
            constants = torch.float32
        record = records(engine, len(batch[0]))
        linearization = linearize(self.explainer.model, inputs, dtype=constants, record=record)
        classes, labels = linearization.logits.shape[1], self.explainer.labels
        if classes != len(labels):
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
        self, linearization: HuggingFaceLinearization, sources: torch.Tensor | None, engine: str
    ) -> Attribution:
        return attribute(
            engine,
            linearization,
            self.config,
            dtype=self.dtype,
            sources=sources,
            terms=self._terms(linearization),
            execution=self.execution,
            positions=self.positions,
        )

    def _errors(
        self,
        attribution: Attribution,
        linearization: HuggingFaceLinearization,
        sources: torch.Tensor | None,
        engine: str,
    ) -> list[float] | None:
        """What the scores of each input are wrong by, if that is to be measured."""
        if self.check == "standard":
            return None
        return measure_error(
            attribution,
            engine,
            linearization,
            self.config,
            sources=sources,
            terms=self._terms(linearization),
            execution=self.execution,
        ).tolist()

    def _terms(self, linearization: HuggingFaceLinearization) -> Terms | None:
        """What is asked of the batch; ``None``: all classes."""
        if self.targets.is_all or not self.config.head:
            return None
        b, classes = linearization.logits.shape
        return Terms.of_classes(b, classes, self.targets.directions.to(linearization.embedding.device))

    def _explanation(
        self,
        n: int,
        encoded: Encoded,
        sources: Sources | None,
        linearization: HuggingFaceLinearization,
        attribution: Attribution,
        score_error: float | None,
        seconds: float,
        engine: str,
    ) -> Explanation:
        config, targets = self.config, self.targets
        logits = linearization.logits[n].cpu()
        if config.head:
            names, ids = targets.names, targets.ids
            target_logits = targets.select(logits)
            scores = attribution.scores[n].cpu()
            bias_token = None if attribution.bias_token is None else attribution.bias_token[n].cpu()
            total = scores.double().sum(0) if bias_token is None else scores.double().sum(0) + bias_token.double()
            error = (total - target_logits.double()).abs().max().item()
        else:
            names, ids = ("norm",), (None,)
            scores, bias_token = attribution.scores[n].cpu(), None
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
            target_logits = scores.sum(0)
            error = attribution.gap[n].item()
        if config.bias == "bias_token" and not config.head:
            scores, bias_token = scores[:-1], scores[-1]
        sites = None
        if attribution.sites is not None:
            sites = tuple(Site(s.layer, s.place, s.value[n].cpu()) for s in attribution.sites)
        return Explanation(
            tokens=encoded.tokens if sources is None else sources.names,
            token_ids=tuple(encoded.inputs["input_ids"].tolist()) if sources is None else None,
            spans=encoded.spans if sources is None else tuple(group.span for group in sources.groups),
            texts=encoded.texts,
            special=encoded.special
            if sources is None
            else tuple(all(encoded.special[p] for p in group.positions) for group in sources.groups),
            scores=scores,
            targets=names,
            target_ids=ids,
            target_logits=target_logits,
            logits=logits,
            labels=self.explainer.labels,
            problem_type=self.explainer.problem_type,
            completeness_error=error,
            score_error=score_error,
            bias_token=bias_token,
            options=config.to_dict(),
            engine=engine,  # type: ignore[arg-type]
            time_s=seconds,
            source_unit="token" if sources is None else sources.unit,
            stages={name: value[n].cpu() for name, value in attribution.stages.items()},
            bias_sites=sites,
            component_shares={name: value[n].cpu() for name, value in attribution.components.items()},
            metadata=self._metadata(linearization, encoded, engine),
        )

    def _state_dtype(self, linearization: HuggingFaceLinearization, engine: str) -> torch.dtype:
        constants = linearization.embedding.dtype  # the adjoint engine has no decomposed state of another dtype
        return constants if self.dtype is None or engine == "adjoint" else self.dtype

    def _metadata(self, linearization: HuggingFaceLinearization, encoded: Encoded, engine: str) -> Mapping[str, Any]:
        model = unwrap(self.explainer.model)
        return {
            "model": self.explainer.name or getattr(model.config, "name_or_path", "") or type(model).__name__,
            "architecture": type(model).__name__,
            "dtype": str(self._state_dtype(linearization, engine)).removeprefix("torch."),
            "largest_layer_gap": linearization.max_gap,
            "input": encoded.number,
            **encoded.about,
        }


#: A measured error of this share of the largest score is worth a warning: the measure is closer than an estimate.
MEASURED_NOTEWORTHY = 0.01


def _warn_of_errors(attribution: Attribution, errors: Sequence[float] | None, dtype: torch.dtype) -> None:
    """Say where scores are probably wrong by much, though they may add up to the logit exactly."""
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
    if expected > noteworthy(dtype):
        warn_user(
            f"scores may be wrong by {min(expected, 1.0):.1%} of the largest or more, whatever completeness_error "
            "says: saturated attention or norms of tiny variance magnify rounding in this model. check='thorough' "
            f"measures it; {ways}",
            PrecisionWarning,
        )
