"""What a model says of a text besides classes: entities, an answer, what fits at a place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

from ..errors import InputError

#: What a model is asked, by the names that transformers has for its pipelines.
TaskName = Literal[
    "text-classification",
    "token-classification",
    "question-answering",
    "fill-mask",
    "text-generation",
    "text2text-generation",
    "multiple-choice",
    "next-sentence-prediction",
    "image-classification",
]

_ReadingT = TypeVar("_ReadingT", bound="Entity | Answer | Prediction")


@dataclass(frozen=True)
class Entity:
    """Words that belong together and were given one label.

    Attributes:
        entity_group: the label without its scheme: ``PER`` of ``B-PER``.
        word: its characters in the text; its tokens where the text is not known.
        start: of ``word`` in its text, in characters; ``None`` where the text is not known.
        end: the same, excluded.
        score: the mean probability of the words' labels.
        columns: the explanation's columns of its words' labels; their sum explains the entity.
        text: which text of a pair it is in.
    """

    entity_group: str
    word: str
    start: int | None
    end: int | None
    score: float
    columns: tuple[int, ...] = ()
    text: int = 0


@dataclass(frozen=True)
class Answer:
    """The span of the context that answers a question.

    Attributes:
        text: its characters; its tokens where the text is not known.
        start: of ``text`` in the context, in characters; ``None`` where the text is not known.
        end: the same, excluded.
        score: probability of the start times that of the end, among the tokens of the context and the no-answer token.
        no_answer_score: the same of the token that says that there is no answer; ``None`` where there is none. Of a
            context that was read in windows the least of all, unless ``at=`` chose the window.
        tokens: the first and the last token.
    """

    text: str
    start: int | None
    end: int | None
    score: float
    no_answer_score: float | None
    tokens: tuple[int, int]

    @property
    def is_answered(self) -> bool:
        """Whether the answer is likelier than that there is none."""
        return self.no_answer_score is None or self.score >= self.no_answer_score


@dataclass(frozen=True)
class Prediction:
    """What the model gives at one place, one of the likeliest.

    Attributes:
        name: the label, or the token as it is read.
        score: its probability there.
        position: the token that it is given at.
        output: its index among the labels, or its token id.
        place: how the place is called in the columns' names.
    """

    name: str
    score: float
    position: int
    output: int
    place: str


def plain(reading: Any) -> Any:
    """One of these, several, or ``None``, ready for JSON."""
    if isinstance(reading, tuple):
        return [asdict(one) for one in reading]
    return None if reading is None else asdict(reading)


def read_back(kind: type[_ReadingT], data: Any) -> _ReadingT:
    """One of them, from what :func:`plain` made of it or as it is.

    Raises:
        InputError: for anything else.
    """
    if isinstance(data, kind):
        return data
    if not isinstance(data, Mapping):
        raise InputError(f"{kind.__name__} is read from a dictionary, got {type(data).__name__}")
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    try:
        return kind(**fields)
    except TypeError as error:
        raise InputError(f"this is no {kind.__name__}: {error}") from error


def read_all_back(kind: type[_ReadingT], data: Sequence[Any] | None) -> tuple[_ReadingT, ...] | None:
    """Several of them, or ``None``."""
    return None if data is None else tuple(read_back(kind, one) for one in data)
