"""The heads that families put on their encoders: what they read, their steps, and which modules of the model they are.

A head is a line of data in a family's file: ``{"ForTokenClassification": TOKENS}`` (:func:`headed`). It says its steps
twice: as maps, activations and norms that are decomposed, and as a call of the model's own modules on the rows asked
for, which the first are checked against. So no head is ever run on all positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch import Tensor, nn

from ...activations import get_activation
from ..spec import HeadStepSpec, ModelSpec
from .parts import KNOWN_ACTIVATIONS, Module, Parts

#: What a head reads by itself, as :class:`..spec.ModelSpec` has it.
Read = int | Literal["mean", "averaged", "each"] | Callable[[Mapping[str, Tensor]], Tensor]


#: Describes the encoder of a model, at a path (``""``: the model itself), without a head.
Body = Callable[[Module, str], ModelSpec]

#: Reads the steps of a head, from the parts of a model.
Steps = Callable[[Parts], tuple[HeadStepSpec, ...]]


@dataclass(frozen=True)
class HeadKind:
    """A head, whatever the encoder below it.

    Attributes:
        steps: as data, from the parts of the model.
        call: the outputs ``[r, C]`` of states ``[r, d]``, by the model's own modules.
        read: what is read; ``"each"``: every position by itself.
        read_of: tells that of a model, where its configuration says so.
    """

    steps: Steps
    call: Callable[[Module, Tensor], Tensor]
    read: Read = "each"
    read_of: Callable[[Module], Read] | None = None


#: A step by the paths of its map, its activation (or the name of one) and its norm; what is not there is left out.
Step = tuple[str] | tuple[str, str | None] | tuple[str, str | None, str | None]


def steps_of(*steps: Step) -> Steps:
    """What reads these steps from the parts of a model; each map takes what the one before it gives."""
    return partial(_read_steps, steps=steps)


def _read_steps(parts: Parts, steps: tuple[Step, ...]) -> tuple[HeadStepSpec, ...]:
    found, width = [], parts.width
    for step in steps:
        path, activation, norm = (*step, None, None)[:3]
        map_ = None if isinstance(parts[path], nn.Identity) else parts.affine(path, width)
        name = None if activation is None else _activation(parts, activation)
        found.append(HeadStepSpec(map_, name, None if norm is None else parts.norm(norm)))
        width = width if map_ is None else map_.weight.shape[1]
    return tuple(found)


def _activation(parts: Parts, activation: str) -> str | None:
    if activation in KNOWN_ACTIVATIONS:
        return activation
    return None if isinstance(parts[activation], nn.Identity) else parts.activation(activation)


def in_turn(*steps: Step, calls: tuple[str, ...], pooler: str | None = None, read: Read = "each") -> HeadKind:
    """A head of several modules.

    Args:
        steps: of all of it.
        calls: the modules that the model calls in turn, or the names of activations between them.
        pooler: what it calls before them on the states ``[r, i, d]``, of which it takes one position.
        read: as for :class:`HeadKind`.
    """
    return HeadKind(steps_of(*steps), partial(_called, calls=calls, pooler=pooler), read)


def _called(model: Module, rows: Tensor, calls: tuple[str, ...], pooler: str | None = None) -> Tensor:
    parts = Parts(model, "", rows.shape[-1])
    found: Tensor = rows if pooler is None else parts[pooler](rows.unsqueeze(1))
    for path in calls:
        found = get_activation(path)(found) if path in KNOWN_ACTIVATIONS else parts[path](found)
    return found


def linear(path: str) -> HeadKind:
    """One map, such as ``"classifier"``, on each position."""
    return in_turn((path,), calls=(path,))


def module(path: str, steps: Steps) -> HeadKind:
    """A module that takes the rows and gives the outputs, such as ``"lm_head"``; ``steps`` reads what is in it."""
    return HeadKind(lambda parts: steps(parts.below(path)), partial(_called, calls=(path,)))


def pooled(encoder: str, path: str) -> HeadKind:
    """BERT's pooler at the first position and one map: the score of one choice, or whether a sentence follows."""
    pooler = f"{encoder}.pooler"
    return in_turn((f"{pooler}.dense", f"{pooler}.activation"), (path,), calls=(path,), pooler=pooler, read=0)


def pooled_classes(encoder: str) -> Steps:
    """What reads the steps of a classifier after BERT's pooler."""
    return pooled(encoder, "classifier").steps


def pooled_beside(pooler: str, activation: str, path: str) -> HeadKind:
    """The same of a model whose pooler and its activation stand side by side, by their paths, and are no module."""
    return in_turn((pooler, activation), (path,), calls=(pooler, activation, path), read=0)


#: No head: the state itself, at the first position, or what the caller says.
BARE = HeadKind(lambda parts: (HeadStepSpec(),), lambda model, rows: rows, read=0)

#: The heads that encoders share: token classification, question answering (outputs: start, end).
TOKENS, SPANS = linear("classifier"), linear("qa_outputs")

#: Masked language models with BERT's names, and with RoBERTa's.
PREDICTIONS = module(
    "cls.predictions",
    steps_of(("transform.dense", "transform.transform_act_fn", "transform.LayerNorm"), ("decoder",)),
)
LM_HEAD = module("lm_head", steps_of(("dense", "gelu", "layer_norm"), ("decoder",)))

#: The classes whose head says whether a sentence follows, alone or beside a masked language model.
FOLLOWS = ("ForNextSentencePrediction", "ForPreTraining")


def text_heads(
    masked: HeadKind, choice: HeadKind | None = None, follows: HeadKind | None = None
) -> dict[str, HeadKind]:
    """The heads that most encoders of texts have, as :func:`headed` takes them.

    Args:
        masked: the masked language model.
        choice: the score of one choice, if there is such a head.
        follows: whether a sentence follows another, if there is such a head.
    """
    found = {"ForTokenClassification": TOKENS, "ForQuestionAnswering": SPANS, "ForMaskedLM": masked, "Model": BARE}
    if choice is not None:
        found["ForMultipleChoice"] = choice
    return found if follows is None else found | dict.fromkeys(FOLLOWS, follows)


def pooled_heads(encoder: str, masked: HeadKind, *, follows: bool = False) -> dict[str, HeadKind]:
    """The same where choices, and perhaps whether a sentence ``follows``, are read from the :func:`pooled` state."""
    return text_heads(
        masked, pooled(encoder, "classifier"), pooled(encoder, "cls.seq_relationship") if follows else None
    )


def headed(
    name: str, body: Body, encoder: str, heads: Mapping[str, HeadKind], classes: Steps | None = None
) -> dict[str, Callable[[Module], ModelSpec]]:
    """The classes of an architecture by their names.

    Args:
        name: what they begin with, such as ``"Bert"``.
        body: describes the encoder of a model without a head.
        encoder: where it is in a model with one.
        heads: by what the names end with, such as ``"ForTokenClassification"``; ``"Model"`` is the encoder itself.
        classes: reads the steps of the sequence classifier, where it is described so.
    """
    found: dict[str, Callable[[Module], ModelSpec]] = {
        f"{name}{suffix}": partial(_headed, body=body, encoder="" if suffix == "Model" else encoder, head=head)
        for suffix, head in heads.items()
    }
    if classes is not None:
        found[f"{name}ForSequenceClassification"] = partial(classifier, body=body, encoder=encoder, head=classes)
    return found


def classifier(model: Module, body: Body, encoder: str, head: Steps) -> ModelSpec:
    """A sequence classifier, which is run as a whole, with arguments as for :func:`headed`."""
    spec = body(model, encoder)
    return replace(spec, head=head(Parts(model, "", spec.width)))


def _headed(model: Module, body: Body, encoder: str, head: HeadKind) -> ModelSpec:
    spec = body(model, encoder)
    return with_head(spec, Parts(model, "", spec.width), head, encoder or None)


def with_head(body: ModelSpec, parts: Parts, head: HeadKind, encoder: str | None) -> ModelSpec:
    """A model of an encoder's layers and a head.

    Args:
        body: the layers, with any head or none.
        parts: of the whole model.
        head: what is put on them.
        encoder: where the encoder is in the model; ``None``: it is the model.
    """
    backbone = parts.module if encoder is None else parts[encoder]
    read = head.read if head.read_of is None else head.read_of(parts.module)
    return replace(body, head=head.steps(parts), read=read, backbone=backbone, outputs_of=head.call)
