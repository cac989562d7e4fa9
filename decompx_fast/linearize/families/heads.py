"""The heads that families put on their encoders: what they read, their steps, and which modules of the model they are.

A head is a line of data in a family's file: ``with_head(body(model), parts, TOKENS, "bert")``. It says its steps twice:
as maps, activations and norms that are decomposed, and as a call of the model's own modules on the rows asked for,
which the first are checked against. So no head is ever run on all positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch import Tensor

from ..spec import HeadStepSpec, ModelSpec
from .parts import Module, Parts

#: What a head reads by itself, as :class:`..spec.ModelSpec` has it.
Read = int | Literal["mean", "each"] | Callable[[Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class HeadKind:
    """A head, whatever the encoder below it.

    Attributes:
        steps: as data, from the parts of the model.
        call: the outputs ``[r, C]`` of states ``[r, d]``, by the model's own modules.
        read: what is read; ``"each"``: every position by itself.
    """

    steps: Callable[[Parts], tuple[HeadStepSpec, ...]]
    call: Callable[[Module, Tensor], Tensor]
    read: Read = "each"


def linear(path: str, read: Read = "each") -> HeadKind:
    """One map, such as ``"classifier"``."""
    return HeadKind(partial(_linear_steps, path=path), partial(_called, path=path), read)


def _linear_steps(parts: Parts, path: str) -> tuple[HeadStepSpec, ...]:
    return (parts.step(path),)


def _called(model: Module, rows: Tensor, path: str) -> Tensor:
    for name in path.split("."):
        model = getattr(model, name)
    found: Tensor = model(rows)
    return found


def module(path: str, steps: Callable[[Parts], tuple[HeadStepSpec, ...]], read: Read = "each") -> HeadKind:
    """A module that takes the rows and gives the outputs, such as ``"lm_head"``; ``steps`` reads what is in it."""
    return HeadKind(lambda parts: steps(parts.below(path)), partial(_called, path=path), read)


#: No head: the state itself, at the first position, or what the caller says.
BARE = HeadKind(lambda parts: (HeadStepSpec(),), lambda model, rows: rows, read=0)

#: The heads that encoders share: token classification, question answering (outputs: start, end).
TOKENS, SPANS = linear("classifier"), linear("qa_outputs")


def with_head(body: ModelSpec, parts: Parts, head: HeadKind, encoder: str | None) -> ModelSpec:
    """A model of an encoder's layers and a head.

    Args:
        body: the layers, with any head or none.
        parts: of the whole model.
        head: what is put on them.
        encoder: where the encoder is in the model; ``None``: it is the model.
    """
    backbone = parts.module if encoder is None else parts[encoder]
    return replace(body, head=head.steps(parts), read=head.read, backbone=backbone, outputs_of=head.call)
