"""Between a task, which asks for columns by name, and the engines, which answer terms of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ..engines.terms import Terms
from ..errors import InputError
from ..request.encoded import Encoded
from ..request.tasks.columns import Asked, Best, Question, Task, Term
from ..result.failure import Failure, attempt


class GivesOutputs(Protocol):
    """A model that has run on a batch, and gives outputs at positions ``[b, p]`` in blocks ``[b, ., C]``."""

    def outputs(self, positions: Tensor) -> Iterator[tuple[slice, Tensor]]: ...


@dataclass(frozen=True)
class AskedOf:
    """What is asked of a batch: of its inputs; or, where a decoder reads the text again, of the text, whose answers are
    read as many places on as the encoder has tokens.

    Attributes:
        inputs: what tasks see.
        first: at which place the model has the outputs of the first token of theirs.
    """

    inputs: Sequence[Encoded]
    first: int = 0

    @classmethod
    def batch(cls, inputs: Sequence[Encoded]) -> AskedOf:
        """Of inputs of the same lengths."""
        first = inputs[0].encoder
        if not inputs[0].reads_again or first is None:
            return cls(inputs)
        return cls([one.read_by_encoder for one in inputs], first)

    def outputs_of(self, model: GivesOutputs) -> GivesOutputs:
        """The model's outputs by the places that tasks see."""
        return _FromPlace(model, self.first) if self.first else model

    def shifted(self, terms: Terms | None) -> Terms | None:
        """Terms at such places as terms of the model."""
        if terms is None or terms.positions is None or not self.first:
            return terms
        return replace(terms, positions=terms.positions + self.first)


@dataclass(frozen=True)
class _FromPlace:
    """A model's outputs, counted from a place on."""

    model: GivesOutputs
    first: int

    def outputs(self, positions: Tensor) -> Iterator[tuple[slice, Tensor]]:
        return self.model.outputs(positions + self.first)


@dataclass(frozen=True)
class Asker:
    """A task with the user's question, for every input of a call.

    Attributes:
        task: what asks.
        question: what for.
        count: how many outputs the model has at a position.
    """

    task: Task
    question: Question
    count: int

    def checked(self, inputs: Iterator[Encoded | Failure], *, skip: bool) -> Iterator[Encoded | Failure]:
        """The inputs of which this can be asked; with ``skip``, a failure in the place of each other."""
        for one in inputs:
            yield one if isinstance(one, Failure) else attempt(partial(self._checked, one), one.number, skip=skip)

    def _checked(self, encoded: Encoded) -> Encoded:
        self.reads([encoded])
        return encoded

    def reads(self, batch: Sequence[Encoded]) -> list[list[int]]:
        """The positions of each input whose outputs are looked at, before the model runs.

        Raises:
            InputError: for what the task cannot be asked of an input, naming it.
        """
        found = []
        for encoded in batch:
            with _named(encoded):
                found.append(list(self.task.reads(encoded, self.question)))
        return found

    def ask(self, batch: Sequence[Encoded], reads: Sequence[Sequence[int]], model: GivesOutputs) -> list[Asked]:
        """The columns of each input.

        Args:
            batch: inputs of one length.
            reads: of :meth:`reads`.
            model: has run on them.

        Raises:
            InputError: for what the task cannot be asked of an input, naming it.
        """
        keep = self.task.keeps(self.question)
        given = [self.task.gives(encoded, self.question) for encoded in batch]
        outputs = _outputs(model, reads, self.count, None if keep is None else min(keep, self.count), given)
        asked = []
        for encoded, of_one in zip(batch, outputs, strict=True):
            with _named(encoded):
                asked.append(self.task.ask(encoded, of_one, self.question))
        return asked


class _named:
    """Says which input an error is about."""

    def __init__(self, encoded: Encoded) -> None:
        self.number = encoded.number

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, InputError):
            raise type(error)(f"input {self.number}: {error}") from error


@dataclass(frozen=True)
class _Kept:
    """What is kept of one input's outputs: all of each position, or the best.

    Attributes:
        count: how many outputs there are at a position.
        row: where each position is.
        whole: ``[p, C]``, or ``None`` where only ``few`` are kept.
        few: the best of each position.
        given: probabilities of outputs that were named before, by position and output.
    """

    count: int
    row: dict[int, int]
    whole: Tensor | None
    few: Best | None
    given: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def rows(self, positions: Sequence[int]) -> Tensor:
        """``[r, C]``."""
        if self.whole is None:
            raise ValueError("only the best outputs are kept: the task says so by keeps()")
        return self.whole[[self.row[position] for position in positions]]

    def best(self, positions: Sequence[int], k: int) -> Best:
        """The ``k`` largest at each position."""
        rows = [self.row[position] for position in positions]
        if self.few is not None:
            return Best(*(part[rows, :k] for part in self.few))
        whole = self.rows(positions)
        values, outputs = whole.topk(k)
        return Best(values, outputs, whole.double().softmax(-1).gather(1, outputs))

    def probability(self, position: int, output: int) -> float:
        """Of one output at one position."""
        if (position, output) in self.given:
            return self.given[position, output]
        best = self.best([position], 1 if self.few is None else self.few.outputs.shape[1])
        (place,) = (best.outputs[0] == output).nonzero()[0].tolist()
        return float(best.probabilities[0, place])


def _outputs(
    model: GivesOutputs,
    reads: Sequence[Sequence[int]],
    count: int,
    keep: int | None,
    given: Sequence[Sequence[int] | None],
) -> list[_Kept]:
    """The outputs of each input at its own positions.

    Args:
        model: has run.
        reads: the positions of each input.
        count: how many outputs there are at a position.
        keep: only so many of the largest at each position; ``None``: all.
        given: of each input, an output at each of its positions whose probability is kept too.
    """
    most = max(len(positions) for positions in reads)
    padded = torch.tensor([[*positions, *[positions[0]] * (most - len(positions))] for positions in reads])
    named = torch.tensor([[*(one or ()), *[0] * (most - len(one or ()))] for one in given])  # [b, p]
    parts: list[tuple[Tensor, ...]] = []
    for span, block in model.outputs(padded):  # [b, ., C]
        if keep is None:
            parts.append((block.cpu(),))
            continue
        values, outputs = block.topk(keep)
        wide = block if block.dtype == torch.float64 else block.float()  # exact enough to be shown
        total = wide.logsumexp(-1, keepdim=True).double()
        own = block.gather(-1, named[:, span, None].to(block.device))
        probabilities = [(one.double() - total).exp().cpu() for one in (values, own)]
        parts.append((values.cpu(), outputs.cpu(), *probabilities))
    whole = [torch.cat(part, dim=1) for part in zip(*parts, strict=True)]
    found = []
    for n, positions in enumerate(reads):
        kept = [part[n, : len(positions)] for part in whole]
        row = {position: place for place, position in enumerate(positions)}
        if keep is None:
            found.append(_Kept(count, row, kept[0], None))
            continue
        own_named = given[n]
        shares = {}
        if own_named is not None:
            shares = dict(zip(zip(positions, own_named, strict=True), kept[3][:, 0].tolist(), strict=True))
        found.append(_Kept(count, row, None, Best(*kept[:3]), shares))
    return found


def terms_of(asked: Sequence[Asked], device: torch.device) -> Terms:
    """What the engines are asked for a batch: each input's terms, and its columns made of them.

    Inputs with fewer terms or columns than others have some again, of weight 0.
    """
    rows: list[list[Term]] = []
    for one in asked:
        rows.append(list(dict.fromkeys(term for column in one.columns for term in column.terms)))
    t, m = max(map(len, rows)), max(len(one.columns) for one in asked)
    weights = torch.zeros(len(asked), m, t, dtype=torch.float64)
    for n, (one, terms) in enumerate(zip(asked, rows, strict=True)):
        place = {term: index for index, term in enumerate(terms)}
        for c, column in enumerate(one.columns):
            for term, weight in column.terms.items():
                weights[n, c, place[term]] = weight
        terms += terms[:1] * (t - len(terms))
    numbers = torch.tensor(rows, dtype=torch.int64)  # [b, t, 2]
    is_plain = m == t and bool((weights == torch.eye(t, dtype=torch.float64)).all())
    terms_and_columns = Terms(numbers[..., 0].contiguous(), numbers[..., 1].contiguous(), None if is_plain else weights)
    return terms_and_columns.to(device)
