"""Sentence encoders: a model without a head, as its own family describes it, with a pooling and steps after that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from torch import Tensor

from ...errors import UnsupportedModelError
from ..readers import affine, layer_norm
from ..reading.parts import Module, activation_name
from ..spec import HeadStepSpec, ModelSpec
from . import BARE_MODELS

#: What each pooling reads.
READ: dict[str, int | Literal["mean"]] = {"mean": "mean", "cls": 0, "lasttoken": -1}


def sentence_encoder(model: Module) -> ModelSpec:
    """:class:`..sentence.SentenceEncoder`: the encoder, what its pooling reads, and its steps.

    It is run as a whole. What some models have after their last layer, a map to narrower states, comes before the
    steps: a pooling is linear, so that it does not matter that such a map is after it here.

    Raises:
        UnsupportedModelError: for an encoder that is none of :data:`BARE_MODELS`.
    """
    names = [cls.__name__ for cls in type(model.encoder).__mro__ if cls.__name__ in BARE_MODELS]
    if not names:
        supported = ", ".join(sorted(BARE_MODELS))
        raise UnsupportedModelError(
            f"{type(model.encoder).__name__} is no encoder that can be explained: supported are {supported}"
        )
    spec = BARE_MODELS[names[0]](model.encoder)
    limits, width = spec.limits, spec.classes
    if model.max_tokens is not None:
        limits = replace(limits, positions=min(model.max_tokens, limits.positions or model.max_tokens))
    steps = [step for step in spec.head if step != HeadStepSpec()]
    if any(step.activation or step.norm for step in steps):
        raise UnsupportedModelError(
            f"{type(model.encoder).__name__} has more than a map after its last layer, which a pooling cannot be "
            "exchanged with"
        )
    for n, step in enumerate(model.steps):
        steps.append(_step(step, f"steps.{n}", width))
        map_ = steps[-1].map
        width = width if map_ is None else map_.weight.shape[1]
    return replace(
        spec,
        head=tuple(steps) or (HeadStepSpec(),),
        read=READ[model.pooling],
        limits=limits,
        prepare=None if spec.prepare is None else partial(_prepare_encoder, prepare=spec.prepare),
        backbone=None,
        outputs_of=None,
    )


def _prepare_encoder(
    model: Module, inputs: Mapping[str, Tensor], *, prepare: Callable[[Module, Mapping[str, Tensor]], None]
) -> None:
    prepare(model.encoder, inputs)


def _step(step: Module, name: str, features: int) -> HeadStepSpec:
    """A step after the pooling, of a vector of so many numbers."""
    return HeadStepSpec(
        None if step.linear is None else affine(step.linear, f"{name}.linear", features),
        None if step.activation is None else activation_name(step.activation, f"{name}.activation"),
        None if step.norm is None else layer_norm(step.norm, f"{name}.norm"),
    )


#: What gives one vector of a text, of whatever encoder (:mod:`..sentence`).
SENTENCE_ENCODERS: dict[str, Callable[[Module], ModelSpec]] = {"SentenceEncoder": sentence_encoder}
