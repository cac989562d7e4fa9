"""What readers of pictures and of sounds share: how one input is told from several, each read when its turn comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from ..errors import InputError
from ..result.failure import Failure, attempt
from .encoded import Encoded


class MediaReader(ABC):
    """Turns inputs that are no texts into :class:`.encoded.Encoded`.

    Attributes:
        kind: what they are.
        accepted: what may be given, for messages.
        skip: give a :class:`Failure` for an input that cannot be read, and go on.
    """

    kind: ClassVar[str]
    accepted: ClassVar[str]
    skip: bool

    def read(self, items: Any) -> tuple[Iterator[Encoded | Failure], bool]:
        """All of ``items``, lazily, and whether it was a single one.

        Raises:
            InputError: for what cannot be read, naming which one it is.
        """
        if isinstance(items, Mapping) and not self._is_one(items):
            rows, single = self._prepared(items)
            return self._each(rows, lambda n, row: self._encode(row, f"row {n} of {self._input}", n, {})), single
        if self._is_one(items):
            return self._each([items], lambda n, item: self.read_one(item, "the input", n)), True
        if isinstance(items, (bytes, bytearray, memoryview)) or not isinstance(items, Iterable):
            raise InputError(f"cannot explain a {type(items).__name__} as a {self.kind}: {self.accepted}")
        return self._each(items, lambda n, item: self.read_one(item, f"input {n}", n)), False

    def _each(self, items: Iterable[Any], read: Callable[[int, Any], Encoded]) -> Iterator[Encoded | Failure]:
        for n, item in enumerate(items):
            yield attempt(partial(read, n, item), n, skip=self.skip)

    @abstractmethod
    def read_one(self, item: Any, where: str, number: int = 0) -> Encoded:
        """One input, through the processor."""

    @property
    @abstractmethod
    def _input(self) -> str:
        """What the model calls its input."""

    @staticmethod
    @abstractmethod
    def _is_one(items: Any) -> bool:
        """Whether that is one input, and not several."""

    @abstractmethod
    def _prepared(self, given: Mapping[str, Any]) -> tuple[list[Tensor], bool]:
        """The rows of what the user's own processor gave, and whether it was a single one."""

    @abstractmethod
    def _encode(self, row: Tensor, where: str, number: int, about: dict[str, Any]) -> Encoded:
        """One prepared row."""
