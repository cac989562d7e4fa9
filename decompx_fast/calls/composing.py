"""From what an engine gives for a batch to an explanation of each input."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..config import DecompXConfig
from ..engines.attribution import Attribution
from ..linearize.architectures import unwrap
from ..linearize.linearization import HuggingFaceLinearization
from ..request.encoded import Encoded
from ..request.sources import Sources, blocks_of, places_of
from ..result.explanation import Explanation
from ..result.kinds import Site
from .explained_model import ExplainedModel


@dataclass(frozen=True)
class Answers:
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


def source_fields(encoded: Encoded, sources: Sources | None) -> dict[str, Any]:
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
            "source_unit": encoded.unit if sources is None else sources.unit,
            "picture": picture if sources is None else picture.regrouped(sources.ids),
        }
    if sources is None:
        return {
            "tokens": encoded.tokens,
            "token_ids": tuple(encoded.ids),
            "spans": encoded.spans,
            "texts": encoded.texts,
            "special": encoded.special,
            "source_unit": "token",
            "word_ids": encoded.words,
        }
    places = tuple(places_of(group, encoded) for group in sources.groups)
    return {
        "tokens": sources.names,
        "token_ids": None,
        "spans": tuple(group.span for group in sources.groups),
        "stretches": places if any(len(own) > 1 for own in places) else None,
        "texts": encoded.texts,
        "special": tuple(all(encoded.special[p] for p in group.positions) for group in sources.groups),
        "source_unit": sources.unit,
    }


@dataclass(frozen=True)
class Computed:
    """A batch that an engine has answered.

    Attributes:
        explainer: of the model.
        config: what was asked.
        engine: that answered.
        dtype: of the decomposed state.
        linearization: of the batch, after the engine has read it.
        attribution: what the engine gives.
        answers: what the model gives, for each input.
        errors: what the scores of each input are wrong by, where that was measured.
        biased: whether the model adds biases.
        seconds: each input took.
    """

    explainer: ExplainedModel
    config: DecompXConfig
    engine: str
    dtype: torch.dtype
    linearization: HuggingFaceLinearization
    attribution: Attribution
    answers: Sequence[Answers]
    errors: Sequence[float] | None
    biased: bool
    seconds: float

    # Dozens of sites and components of a few numbers each: what can be is done with all of them together.

    @functools.cached_property
    def _sites(self) -> torch.Tensor | None:
        """``[b, s, m]``, what the sites add; ``None`` without any."""
        sites = self.attribution.sites
        return torch.stack([site.value for site in sites], dim=1).cpu() if sites else None

    @functools.cached_property
    def _shares(self) -> torch.Tensor | None:
        """``[b, q, k, m]``, what the components carry; ``None`` without any."""
        components = self.attribution.components
        return torch.stack([*components.values()], dim=1).cpu() if components else None

    def explanation(self, n: int, encoded: Encoded, sources: Sources | None) -> Explanation:
        """Of input ``n`` of the batch."""
        config, attribution, answers = self.config, self.attribution, self.answers[n]
        own = slice(0, len(answers.names))  # a batch may have more columns than this input
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
        return Explanation(
            **source_fields(encoded, sources),
            scores=scores,
            targets=answers.names,
            target_ids=answers.ids,
            target_logits=target_logits,
            logits=answers.logits,
            labels=answers.labels,
            problem_type=self.explainer.problem_type,
            completeness_error=error,
            score_error=None if self.errors is None else self.errors[n],
            bias_token=bias_token,
            options=config.to_dict(),
            engine=self.engine,  # type: ignore[arg-type]
            time_s=self.seconds,
            stages={name: value[n].cpu() for name, value in attribution.stages.items()},
            bias_sites=self._sites_of(n, own),
            component_shares=self._shares_of(n, own),
            metadata=self._metadata(n, encoded) | blocks_of(encoded, sources),
            task=self.explainer.task,
            **answers.said,
        )

    def _sites_of(self, n: int, own: slice) -> tuple[Site, ...] | None:
        sites = self.attribution.sites
        if self._sites is None:
            return None if sites is None else ()
        named = zip(sites or (), self._sites[n, :, own].unbind(), strict=True)
        return tuple(Site(site.layer, site.place, value.clone()) for site, value in named)

    def _shares_of(self, n: int, own: slice) -> dict[str, torch.Tensor]:
        if self._shares is None:
            return {}
        named = zip(self.attribution.components, self._shares[n, ..., own].unbind(), strict=True)
        return {name: value.clone() for name, value in named}

    def _metadata(self, n: int, encoded: Encoded) -> dict[str, Any]:
        model, expected = unwrap(self.explainer.model), self.attribution.expected_error
        return {
            "model": self.explainer.name or getattr(model.config, "name_or_path", "") or type(model).__name__,
            "architecture": type(model).__name__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "largest_layer_gap": self.linearization.max_gap,
            **({} if expected is None else {"expected_error": float(f"{expected[n].item():.2g}")}),
            **({} if self.biased else {"biases": "none, so that every rule gives the same scores"}),
            "input": encoded.number,
            **encoded.about,
        }
