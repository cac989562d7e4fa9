"""What is to be done: rows with a number each, cut into units of work, of which each becomes one part on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..errors import InputError
from ..request.tables import Columns, Row
from .carried import as_json, is_writable

#: Rows of one unit: enough that most have others of their length, few enough that little is lost with a worker.
UNIT_ROWS = 1024

#: Characters of one unit, beyond which it ends early: so that memory depends neither on the number nor on the size of
#: rows.
UNIT_CHARACTERS = 1 << 24


@dataclass(frozen=True)
class Item:
    """One row of the input.

    Attributes:
        number: its place among all rows of the job, from 0.
        file, unit, line: where it is, as :class:`decompx_fast.request.tables.Row` says it.
        id: what the user calls it, if there is a column of ids.
        carried: the other columns, as JSON.
        text: the text, or the pair; ``None`` if there is none.
        problem: why there is none.
    """

    number: int
    file: str
    unit: str
    line: int
    id: str | None
    carried: str
    text: str | tuple[str, str] | None
    problem: str | None = None

    @property
    def size(self) -> int:
        """How many characters it has."""
        texts = (self.text,) if isinstance(self.text, str) else self.text or ()
        return len(self.carried) + sum(map(len, texts))

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        name = "" if self.id is None else f" (id {self.id})"
        return f"{self.unit} {self.line} of {self.file}{name}"


@dataclass(frozen=True)
class Span:
    """The rows that a part holds, which its name says.

    Attributes:
        first, count: from which row on, and how many.
        digest: of what the rows held when they were explained.
    """

    first: int
    count: int
    digest: str

    @property
    def name(self) -> str:
        """Of its part, less the ending."""
        return f"part-{self.first:012d}-{self.count:05d}-{self.digest}"


@dataclass(frozen=True)
class Unit:
    """One piece of work.

    Attributes:
        span: the rows of the part.
        items: those of them that are to be explained: all, or those that a part has errors for.
        careful: explain them one by one, and say before each which it is: to find the one that ends the process.
        marked: why some are not to be tried, by their numbers.
    """

    span: Span
    items: tuple[Item, ...]
    careful: bool = False
    marked: Mapping[int, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether no row of the part is there yet."""
        return len(self.items) == self.span.count

    def watched(self, row: int | None = None, problem: str = "") -> Unit:
        """The same, to be done carefully, and without a row that ended a process."""
        marked = self.marked if row is None else {**self.marked, row: problem}
        return replace(self, careful=True, marked=marked)


def number_rows(rows: Iterable[Row], names: Mapping[str, str | None]) -> Iterator[Item]:
    """Rows of files, one file after another, as items.

    Args:
        rows: of all files.
        names: the columns ``text``, ``pair`` and ``id``, as they were given.

    Raises:
        OptionError: for a column that the first row of a file does not have.
    """
    columns: Columns | None = None
    file: str | None = None
    for number, row in enumerate(rows):
        if row.file != file:
            columns, file = None, row.file
        if columns is None and row.problem is None:
            columns = Columns.choose(row, **names)
        yield item_of(number, row, columns)


def item_of(number: int, row: Row, columns: Columns | None) -> Item:
    """A row of a file; ``columns`` are not known as long as none of its rows could be read."""
    text, problem, name = None, row.problem, None
    values = dict(row.values)
    if columns is not None and problem is None:
        if columns.id is not None:
            found = values.pop(columns.id, None)
            name = None if found is None else str(found)
        try:
            text = _encodable(columns.read(row), row)
        except InputError as error:
            problem = str(error)
        else:
            values = {key: value for key, value in values.items() if key not in (columns.text, columns.pair)}
    try:
        carried = as_json(values)
    except RecursionError:
        carried, problem, text = (
            "{}",
            problem or f"{row.place} has columns that are nested too deeply: flatten them",
            None,
        )
    return Item(number, row.file, row.unit, row.number, name, carried, text, problem)


def _encodable(text: str | tuple[str, str], row: Row) -> str | tuple[str, str]:
    for one in (text,) if isinstance(text, str) else text:
        if not is_writable(one):
            raise InputError(f"{row.place} has half of a surrogate pair in its text, which is no character: repair it")
    return text


def digest_of(items: Iterable[Item]) -> str:
    """Of what rows hold, and not of where they are."""
    digest = hashlib.sha256()
    for item in items:
        held = json.dumps([item.text, item.id, item.carried, item.problem is None])
        digest.update(held.encode())
    return digest.hexdigest()[:16]


def cut(items: Iterable[Item], done: Mapping[int, Span], size: int) -> Iterator[tuple[Span, tuple[Item, ...]]]:
    """The spans of all rows: those that are done, as they are, and between them those to be done.

    A span ends where the number of its next row is a multiple of ``size``, or where it holds :data:`UNIT_CHARACTERS`,
    so that spans are the same however often a run was ended; or where the input ended once, if it has grown since.

    Args:
        items: all rows, in order.
        done: the spans of parts that are there, by their first rows.
        size: the rows of a span at most.

    Raises:
        InputError: if a part was made of other rows than there are now.
    """
    waiting: list[Item] = []
    ahead: Span | None = None  # the part that the waiting rows belong to, if there is one
    total = held = 0
    for item in items:
        total = item.number + 1
        if item.number in done:
            if waiting:
                yield _checked(waiting, ahead)
            waiting, ahead, held = [], done[item.number], 0
        waiting.append(item)
        held += item.size
        if ahead is None:
            full = (item.number + 1) % size == 0 or held >= UNIT_CHARACTERS
        else:
            full = len(waiting) == ahead.count
        if full:
            yield _checked(waiting, ahead)
            waiting, ahead, held = [], None, 0
    if waiting:
        yield _checked(waiting, ahead)
    if any(first >= total for first in done):
        raise InputError(
            f"there are {total:,} rows, and later ones were explained before: rows may be added to the end of the last "
            "file, but what was there must stay. Choose another folder for other data"
        )


def _checked(items: list[Item], expected: Span | None) -> tuple[Span, tuple[Item, ...]]:
    found = Span(items[0].number, len(items), digest_of(items))
    if expected is not None and found != expected:
        raise InputError(
            f"rows {expected.first:,} to {expected.first + expected.count - 1:,} (the first is {items[0].place}) were "
            "others when they were explained: rows may be added to the end of the last file, and files may be added, "
            "but what was there must stay. Choose another folder for other data; or, to have these rows explained "
            f"anew, delete {expected.name}"
        )
    return found, tuple(items)
