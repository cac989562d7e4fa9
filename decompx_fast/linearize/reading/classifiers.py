"""Classifiers of a whole text that several encoders have: after a dense layer, after a summary."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from ...activations import get_activation
from ...errors import UnsupportedModelError
from ..spec import HeadStepSpec, ModelSpec
from .heads import Body, HeadKind, Read, in_turn
from .parts import Module, Parts, activation_name


def dense_and_out_proj(parts: Parts) -> tuple[HeadStepSpec, ...]:
    """Dense, tanh or the activation that is there, out_proj."""
    has_activation = hasattr(parts["classifier"], "activation")
    dense = parts.step("classifier.dense", parts.activation("classifier.activation") if has_activation else "tanh")
    return dense, parts.step("classifier.out_proj", features=dense.map.weight.shape[1] if dense.map else None)


def dense_and_activation(parts: Parts) -> tuple[HeadStepSpec, ...]:
    """Dense, the activation of the layers, out_proj."""
    name = get_activation(parts["config"].hidden_act).name
    return parts.step("classifier.dense", name), parts.step("classifier.out_proj")


def summarized(path: str) -> HeadKind:
    """The score of a choice: a summary of the sequence and one map, by its path."""
    summary = "sequence_summary"
    steps = (f"{summary}.summary", f"{summary}.activation"), (path,)
    return replace(in_turn(*steps, calls=(path,), pooler=summary), read_of=summary_read)


def summary_classifier(model: Module, encoder: str, body: Body) -> ModelSpec:
    """A sequence classifier whose logits are a summary of the sequence; arguments as for :func:`.heads.classifier`."""
    spec = body(model, encoder)
    return replace(spec, head=(_summary(Parts(model, "", spec.width), model.num_labels),), read=summary_read(model))


def _summary(parts: Parts, labels: int) -> HeadStepSpec:
    """A map to the labels, and perhaps an activation after it."""
    activation = parts["sequence_summary.activation"]
    name = None if isinstance(activation, nn.Identity) else activation_name(activation, "sequence_summary.activation")
    if isinstance(parts["sequence_summary.summary"], nn.Identity):
        raise UnsupportedModelError(
            "sequence_summary has no projection (summary_use_proj): it gives no logits of labels"
        )
    step = parts.step("sequence_summary.summary", name)
    if step.map is not None and step.map.weight.shape[1] != labels:
        raise UnsupportedModelError(
            f"sequence_summary projects to {step.map.weight.shape[1]} numbers, not to the {labels} labels "
            "(summary_proj_to_labels): it gives no logits of labels"
        )
    return step


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
