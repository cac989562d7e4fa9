"""What the process that listens and those that compute say to each other: light, so that neither loads the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Text = str | tuple[str, str]

#: In which form an explanation is wanted: a dictionary; as HTML; with its scores apart, for tensors.
Form = Literal["dictionary", "page", "tensors"]


@dataclass(frozen=True)
class Wanted:
    """One text, and the form of its explanation.

    Attributes:
        text: the text, or the pair.
        number: its place in its request.
        alone: whether its request has no other.
        form: see :data:`Form`.
        words: merge the tokens of each word.
        details: as for ``Explanation.to_dict``.
    """

    text: Text
    number: int
    alone: bool
    form: Form = "dictionary"
    words: bool = False
    details: bool = False

    @property
    def size(self) -> int:
        """How many characters it has: about in proportion to its tokens."""
        return sum(map(len, self.text)) if isinstance(self.text, tuple) else len(self.text)


@dataclass(frozen=True)
class Outcome:
    """What became of one text.

    Attributes:
        body: the explanation as JSON.
        prediction: what the model says, as JSON.
        html: the explanation as HTML; empty unless that was asked for.
        scores: row by row; empty unless they were asked for.
        shape: of the scores.
        tokens: how many sources there are.
        completeness_error: the largest gap between a column's total and its target.
        error: why there is no explanation; empty if there is one.
        error_type: the name of its class.
    """

    body: bytes = b""
    prediction: bytes = b""
    html: str = ""
    scores: tuple[float, ...] = ()
    shape: tuple[int, int] = (0, 0)
    tokens: int = 0
    completeness_error: float = 0.0
    error: str = ""
    error_type: str = ""


@dataclass(frozen=True)
class Work:
    """A batch of one call.

    Attributes:
        arguments: of :meth:`DecompX.explain_iter`.
        texts: what is explained.
    """

    arguments: Mapping[str, Any]
    texts: tuple[Wanted, ...]


@dataclass(frozen=True)
class Load:
    """What a process is to load, and how.

    Attributes:
        name: of the model.
        path: a folder or the id of a hub; ``None``: the demo model.
        task: which head.
        devices: where to compute, in turn for each process; empty for the CPU.
        dtype: of the decomposition.
        arguments: of every call that says nothing else.
        threads: to compute with on the CPU.
        tokens: of a text at most.
    """

    name: str
    path: str | None = None
    task: str | None = None
    devices: tuple[str, ...] = ()
    dtype: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    tokens: int = 1024
