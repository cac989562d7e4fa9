"""Classifiers of a whole text that several encoders have: after a pooler, after a dense layer, after a summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...errors import UnsupportedModelError
from ..spec import HeadStepSpec, ModelSpec
from .heads import Read, in_turn
from .parts import Module, Parts


def pooler_and_classifier(parts: Parts, encoder: str) -> tuple[HeadStepSpec, ...]:
    """Pooler with its activation, then a classifier."""
    pooler = parts.step(f"{encoder}.pooler.dense", parts.activation(f"{encoder}.pooler.activation"))
    return pooler, parts.step("classifier", features=pooler.map.weight.shape[1] if pooler.map else None)


def dense_and_out_proj(parts: Parts, encoder: str) -> tuple[HeadStepSpec, ...]:
    """Dense, tanh or the activation that is there, out_proj."""
    has_activation = hasattr(parts["classifier"], "activation")
    dense = parts.step("classifier.dense", parts.activation("classifier.activation") if has_activation else "tanh")
    return dense, parts.step("classifier.out_proj", features=dense.map.weight.shape[1] if dense.map else None)


def classifier(
    model: Module,
    encoder: str,
    head: Callable[[Parts, str], tuple[HeadStepSpec, ...]],
    body: Callable[[Module, str], ModelSpec],
) -> ModelSpec:
    """A sequence classifier, which is run as a whole.

    Args:
        model: the whole.
        encoder: where its encoder is.
        head: reads its steps, from the parts of the model and that path.
        body: describes the encoder.
    """
    spec = body(model, encoder)
    return replace(spec, head=head(Parts(model, "", spec.width), encoder))


#: The score of a choice: a summary of the sequence and one map.
SUMMARY = in_turn(
    ("sequence_summary.summary", "sequence_summary.activation"),
    ("classifier",),
    calls=("classifier",),
    pooler="sequence_summary",
)


def summary_read(model: Module) -> Read:
    """What a summary of the sequence reads. Padding is never there, so the last token is the text's.

    Raises:
        UnsupportedModelError: for a kind of summary that is none of :data:`SUMMARY_READ`.
    """
    kind = model.sequence_summary.summary_type
    if kind not in SUMMARY_READ:
        raise UnsupportedModelError(f"sequence_summary.summary_type={kind!r}: supported are {', '.join(SUMMARY_READ)}")
    return SUMMARY_READ[kind]


#: What is read, by the option ``summary_type``.
SUMMARY_READ: dict[str, Read] = {"first": 0, "last": -1, "cls_index": -1, "mean": "mean"}
