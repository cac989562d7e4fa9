"""What an attribution method is: a function from texts to one score per token, and what has to be known about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import InputError, OptionError
from ..request.encoded import Encoded
from ..request.versions import generator_of


@dataclass(frozen=True)
class Problem:
    """What is to be explained: texts without padding, and of each the class whose prediction is explained.

    Attributes:
        model: a Hugging Face sequence classifier, as its owner left it; a method leaves it so.
        tokenizer: its tokenizer.
        inputs: as :class:`decompx_fast.request.encoding.Reader` reads them, in any order and of any lengths.
        classes: for each input, the class that the scores are about (the one the model predicts, as a rule).
        seed: of methods that draw at random. They draw from :meth:`generator`, so that the scores of a text depend
            on nothing but the text, the model, the method and this.
    """

    model: nn.Module
    tokenizer: Any
    inputs: Sequence[Encoded]
    classes: Sequence[int]
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.classes):
            raise InputError(f"classes holds {len(self.classes)} for {len(self.inputs)} inputs: give one for each")

    def generator(self, index: int, purpose: str) -> torch.Generator:
        """A source of random numbers that is the same whenever this input is seen again for the same purpose."""
        return generator_of(self.inputs[index].inputs["input_ids"].tolist(), self.seed, purpose)


class Scorer(Protocol):
    """Computes the scores of a method."""

    def __call__(self, problem: Problem) -> list[Tensor]:
        """For each input ``[i]`` float64 on the CPU: a score for every token, special ones included."""
        ...


@dataclass(frozen=True)
class Method:
    """An attribution method.

    Attributes:
        name: as users write it, in lower case with hyphens: ``"gradient-x-input"``.
        label: as tables and plots show it.
        signed: whether a negative score speaks against the class. If not, scores are magnitudes, 0 or more.
        about: what it computes, in a sentence, and the source.
        score: computes it.
        needs: names of packages that it imports beyond those that decompx_fast always needs.
    """

    name: str
    label: str
    signed: bool
    about: str
    score: Scorer
    needs: tuple[str, ...] = ()


_methods: dict[str, Method] = {}


def method(name: str, label: str, *, signed: bool, about: str, needs: Sequence[str] = ()) -> Callable[[Scorer], Scorer]:
    """Decorator: this function computes the scores of a method, which is known by ``name`` from now on."""

    def add(score: Scorer) -> Scorer:
        if name in _methods:
            raise ValueError(f"there are two attribution methods named {name!r}")
        _methods[name] = Method(name, label, signed, about, score, tuple(needs))
        return score

    return add


def all_methods() -> dict[str, Method]:
    """Every method by name, in the order of the tables."""
    from . import methods  # noqa: F401  (each of its modules adds methods when it is imported)

    return dict(_methods)


def get_method(name: str) -> Method:
    """The method of that name.

    Raises:
        OptionError: if there is none; it lists what there is.
    """
    known = all_methods()
    if name not in known:
        raise OptionError(f"unknown attribution method {name!r}: use one of {', '.join(known)}")
    return known[name]
