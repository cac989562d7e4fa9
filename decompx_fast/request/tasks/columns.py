"""What is asked of one input, as data: columns made of the numbers that the model gives, and what it says by itself.

A *term* is one output at one position; a *column* is a weighted sum of terms.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ...errors import InputError, OptionError, shown
from ...result.readings import Answer, Entity, Prediction
from ..encoded import Encoded
from ..targets import finite_weight


class Term(NamedTuple):
    """One number that the model gives: an output at a position."""

    position: int
    output: int


@dataclass(frozen=True)
class Column:
    """One column of an explanation.

    Attributes:
        name: what it is called, as ``"B-PER @ Jackson"``.
        terms: what it is the sum of, with weights.
    """

    name: str
    terms: Mapping[Term, float]

    @property
    def position(self) -> int:
        """The first position that it reads."""
        return next(iter(self.terms)).position


@dataclass(frozen=True)
class Asked:
    """What one input is asked, and what the model says of it.

    Attributes:
        columns: at least one, each with a name of its own.
        entities, answer, predictions: as for :class:`decompx_fast.result.explanation.Explanation`.
    """

    columns: tuple[Column, ...]
    entities: tuple[Entity, ...] | None = None
    answer: Answer | None = None
    predictions: tuple[Prediction, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the user asks of each input, besides the options of the method.

    Attributes:
        targets: outputs by name or index, weights of several in a mapping, or a list of these.
        at: places; see :func:`.places.resolve_places`.
        top_k: how many of the likeliest outputs at each place.
        max_answer_tokens: of an answer.
        ignore_labels: of words that are no entities.
        continuation, generate, seed: what follows a prompt, or how it is made; see
            :mod:`decompx_fast.calls.continuing`.
        contrast: ``"mean"``: less the mean of all outputs.
        answer: whether each token of an output is a column, all of it in one, or both.
        max_seq_len, doc_stride: of the windows of a long context: tokens of each, and tokens that two neighbours share.
    """

    targets: Any = None
    at: Any = None
    top_k: int | None = None
    max_answer_tokens: int | None = None
    ignore_labels: Sequence[str] | None = None
    continuation: Any = None
    generate: Any = None
    seed: int | None = None
    contrast: str | None = None
    answer: str | None = None
    max_seq_len: int | None = None
    doc_stride: int | None = None


class Best(NamedTuple):
    """The largest outputs at each of ``r`` positions.

    Attributes:
        values: ``[r, k]``.
        outputs: ``[r, k]``, which they are.
        probabilities: ``[r, k]``, among all outputs at the position.
    """

    values: Tensor
    outputs: Tensor
    probabilities: Tensor


class Outputs(Protocol):
    """What the model gives for one input.

    Attributes:
        count: how many outputs there are at a position, ``C``.
    """

    @property
    def count(self) -> int: ...

    def rows(self, positions: Sequence[int]) -> Tensor:
        """``[r, C]``, on the CPU; for heads of a few outputs."""
        ...

    def best(self, positions: Sequence[int], k: int) -> Best:
        """The ``k`` largest at each position, without ever holding all outputs of all positions."""
        ...

    def probability(self, position: int, output: int) -> float:
        """Of one output at one position, among all; of those that are kept."""
        ...


class Task(Protocol):
    """A task: what is asked of an input if the user names nothing, and what may be named.

    Attributes:
        takes: those of the fields of :class:`Question` that it knows.
    """

    takes: tuple[str, ...]

    def check(self, question: Question, count: int) -> None:
        """Refuse what cannot be asked of any input; ``count``: how many outputs there are at a position.

        Raises:
            InputError: names the argument.
        """
        ...

    def notice(self, question: Question) -> str | None:
        """What is worth a warning in a question, whatever it is asked of."""
        ...

    def reads(self, encoded: Encoded, question: Question) -> Sequence[int]:
        """The positions whose outputs are looked at; known before the model runs."""
        ...

    def keeps(self, question: Question) -> int | None:
        """How many of the largest outputs are looked at; ``None``: all of them."""
        ...

    def gives(self, encoded: Encoded, question: Question) -> Sequence[int] | None:
        """An output at each position that is read, whose probability is looked at besides; ``None``: of no other."""
        ...

    def ask(self, encoded: Encoded, outputs: Outputs, question: Question) -> Asked:
        """The columns of one input."""
        ...


@dataclass(frozen=True)
class Direction:
    """Weights of the outputs at a position; ``name`` is what they are called."""

    name: str
    weights: Mapping[int, float] = field(default_factory=dict)

    def at(self, position: int, place: str) -> Column:
        """The column that it is at one position."""
        return Column(f"{self.name} @ {place}", {Term(position, one): w for one, w in self.weights.items()})


def directions(targets: Any, output_of: Callable[[Any], int], name_of: Callable[[int], str]) -> list[Direction]:
    """What the user asks for at each place.

    Args:
        targets: an output as the user names it, a mapping of outputs to weights, or a list of these.
        output_of: the index of an output that is named so; raises an InputError if there is none.
        name_of: what an output is called.

    Raises:
        InputError: for an empty list or mapping, weights that are no numbers, and what ``output_of`` refuses.
    """
    items = list(targets) if isinstance(targets, (list, tuple)) else [targets]
    if not items:
        raise InputError("targets is an empty list: name at least one, or leave it out")
    return [_direction(item, output_of, name_of) for item in items]


def _direction(target: Any, output_of: Callable[[Any], int], name_of: Callable[[int], str]) -> Direction:
    if getattr(target, "ndim", 0) > 0:
        raise InputError(f"targets holds {shown(target)}: at positions, give a mapping of outputs to weights")
    if not isinstance(target, Mapping):
        output = output_of(target)
        return Direction(name_of(output), {output: 1.0})
    weights: dict[int, float] = {}
    for key, weight in target.items():
        output = output_of(key)
        weights[output] = finite_weight(weights.get(output, 0.0) + finite_weight(weight, key), key)
    weights = {output: weight for output, weight in weights.items() if weight}
    if not weights:
        raise InputError("a direction in targets is empty: give each output its weight")
    return Direction(_written(weights, name_of), weights)


def _written(weights: Mapping[int, float], name_of: Callable[[int], str]) -> str:
    """As ``Paris - London``."""
    parts = []
    for output, weight in weights.items():
        size = "" if abs(weight) == 1 else f"{abs(weight):g} "
        parts.append(("- " if weight < 0 else "+ ") + size + name_of(output))
    return " ".join(parts).removeprefix("+ ")


def with_own_names(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns, each once, of which those that share a name say the numbers of their tokens too, and then of their
    outputs."""
    once = list({(column.name, *column.terms.items()): column for column in columns}.values())
    for kind, sign in (("position", "#"), ("output", "output ")):
        count = Counter(column.name for column in once)
        once = [replace(c, name=f"{c.name} ({_numbers(c, kind, sign)})") if count[c.name] > 1 else c for c in once]
    return tuple(once)


def _numbers(column: Column, kind: str, sign: str) -> str:
    """The positions or the outputs of its terms."""
    return ", ".join(f"{sign}{number}" for number in dict.fromkeys(getattr(term, kind) for term in column.terms))


def index_of(value: Any) -> int | None:
    """A whole number, of Python's, NumPy's or a tensor's; ``None`` for all else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def check_count(name: str, value: Any) -> None:
    """Raise an OptionError unless it is a whole number from 1."""
    count = index_of(value)
    if count is None or count < 1:
        raise OptionError(f"{name}={value!r}: use a whole number from 1")
