"""The rows of the files that people keep texts in: plain text, CSV, TSV, JSONL and Parquet, read as they are needed."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from ..errors import InputError, OptionError, counted, shown
from ..optional import import_optional

#: Stands for standard input, in the place of a file.
STANDARD_INPUT = "-"

#: What a file is by the ending of its name.
ENDINGS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}

FORMATS = ("text", "csv", "tsv", "jsonl", "parquet")

#: Names of the column of texts where none is given; the first that is there.
TEXT_COLUMNS = ("text", "sentence")

#: Files with columns that are not read, and what to do with them.
_OTHER_ENDINGS = {
    ".json": "write one object on each line, and name it .jsonl",
    ".xlsx": "save it as CSV",
    ".xls": "save it as CSV",
    ".ods": "save it as CSV",
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".tar"), "unpack it first"),
}

_ROWS_OF_A_BATCH = 256  # of a Parquet file


@dataclass(frozen=True)
class Row:
    """One row of a file.

    Attributes:
        file: the name of the file.
        unit: what is counted: ``"line"``, from 1, or ``"row"`` of a Parquet file, from 0.
        number: where it begins.
        values: by the names of the columns; a line of plain text is the column ``text``.
        problem: why it cannot be read, if it cannot.
    """

    file: str
    unit: str
    number: int
    values: Mapping[str, Any]
    problem: str | None = None

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.unit} {self.number} of {self.file}"


@dataclass(frozen=True)
class Columns:
    """Which columns are read: the texts, the second texts of pairs, and the names of the rows."""

    text: str
    pair: str | None = None
    id: str | None = None

    @classmethod
    def choose(cls, row: Row, *, text: str | None = None, pair: str | None = None, id: str | None = None) -> Columns:
        """Those that were asked for, which must be there; the usual column of texts where none was.

        Raises:
            OptionError: for a column that the first row does not have.
        """
        names = list(row.values)
        if text is None:
            text = next((name for name in TEXT_COLUMNS if name in names), None)
        if text is None:
            raise OptionError(
                f"{row.file} has no column named {' or '.join(TEXT_COLUMNS)}: say by text_column which of "
                f"{', '.join(names)} it is"
            )
        for argument, name in (("text_column", text), ("pair_column", pair), ("id_column", id)):
            if name is not None:
                check_column(row, name, argument)
        return cls(text, pair, id)

    def read(self, row: Row) -> str | tuple[str, str]:
        """The text of a row, or its pair of texts.

        Raises:
            InputError: if there is none.
        """
        if row.problem is not None:
            raise InputError(row.problem)
        text = _text(row, self.text)
        return text if self.pair is None else (text, _text(row, self.pair))


def check_column(row: Row, name: str, argument: str) -> None:
    """Raise an OptionError, with the columns that there are, if this one is not among them."""
    if name not in row.values:
        raise OptionError(f"{argument}={name!r}: {row.file} has the columns {', '.join(map(repr, row.values))}")


def _text(row: Row, column: str) -> str:
    text = row.values.get(column)
    if not isinstance(text, str):
        raise InputError(f"{row.place} has {shown(text)} in the column {column!r}: it must be a text")
    if not text.strip():
        raise InputError(f"{row.place} has an empty text in the column {column!r}: drop the row")
    return text


def format_of(path: str, format: str | None = None) -> str:
    """What a file is: as it is said, or else by the ending of its name, plain text where that says nothing.

    Raises:
        InputError: for a file whose ending says that it has columns, but that cannot be read.
    """
    if format is not None:
        return format
    ending = os.path.splitext(path)[1].lower()
    if ending in _OTHER_ENDINGS:
        raise InputError(f"{path} is neither plain text nor one of {', '.join(ENDINGS)}: {_OTHER_ENDINGS[ending]}")
    return ENDINGS.get(ending, "text")


def read_rows(path: str, format: str) -> Iterator[Row]:
    """The rows of a file, one after another, and blank lines left out.

    Plain text has a row on each line, and a line ends at a line feed, with or without a carriage return before it; no
    other character ends one. In CSV the first line names the columns, and so it does in TSV, which has tabs between
    columns and where quotes are ordinary characters. JSONL has an object on each line.

    Args:
        path: of the file, in UTF-8; ``"-"`` for standard input.
        format: one of :data:`FORMATS`.

    Raises:
        InputError: if the file cannot be read. A single row that cannot be read comes with its ``problem``.
    """
    name = "standard input" if path == STANDARD_INPUT else path
    with _opened(path) as stream:
        if format == "parquet":
            yield from _read_parquet(name, stream)
        else:
            yield from _READERS[format](_Lines(stream, name, at_returns=format != "text"))


def is_regular(path: str) -> bool:
    """Whether this is a file on a disk, which can be read twice."""
    try:
        return path != STANDARD_INPUT and stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise InputError("standard input is closed: give a file")
        yield sys.stdin.buffer
        return
    if os.path.isdir(path):
        raise InputError(f"{path} is a directory: give a file")
    try:
        stream = open(path, "rb")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    with stream:
        yield stream


class _Lines:
    """The lines of a stream of UTF-8 with their ends; goes on after one that cannot be decoded."""

    def __init__(self, stream: BinaryIO, name: str, *, at_returns: bool) -> None:
        self.name = name
        self.number = 0  # of the last line
        self._stream = stream
        self._at_returns = at_returns  # whether a lone carriage return ends a line too, as in tables from old Macs
        self._offset = 0
        self._waiting: deque[bytes] = deque()

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if not self._waiting:
            try:
                data = self._stream.readline()
            except OSError as error:
                raise InputError(f"{self.name} cannot be read: {error.strerror or error}") from error
            if not data:
                raise StopIteration
            self._waiting.extend(re.split(rb"(?<=\r)(?!\n)", data) if self._at_returns else [data])
            if not self._waiting[-1]:
                self._waiting.pop()
        line, start = self._waiting.popleft(), self._offset
        self.number += 1
        self._offset += len(line)
        try:
            return line.decode("utf-8-sig" if start == 0 else "utf-8")
        except UnicodeDecodeError as error:
            raise _UndecodedLine(
                f"{self.name} is not UTF-8 (line {self.number}, byte {start + error.start}): convert it first"
            ) from error


class _UndecodedLine(InputError):
    """A line that is not UTF-8; the next may be."""


def _read_text(lines: _Lines) -> Iterator[Row]:
    return _each_line(lines, lambda place, line: {"text": line.removesuffix("\n").removesuffix("\r")})


def _read_jsonl(lines: _Lines) -> Iterator[Row]:
    def parse(place: str, line: str) -> Mapping[str, Any]:
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{place} is no JSON: {error.msg} (at character {error.pos + 1})") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place} is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise InputError(f'{place} is {shown(values)}: it must be an object, such as {{"text": "..."}}')
        return values

    return _each_line(lines, parse)


def _each_line(lines: _Lines, parse: Callable[[str, str], Mapping[str, Any]]) -> Iterator[Row]:
    while True:
        try:
            line = next(lines, None)
        except _UndecodedLine as error:
            yield Row(lines.name, "line", lines.number, {}, str(error))
            continue
        if line is None:
            return
        if not line.strip():
            continue
        values: Mapping[str, Any] = {}
        problem = None
        try:
            values = parse(f"line {lines.number} of {lines.name}", line)
        except InputError as error:
            problem = str(error)
        yield Row(lines.name, "line", lines.number, values, problem)


def _read_csv(lines: _Lines) -> Iterator[Row]:
    return _read_columns(lines, csv.reader(lines, strict=True))


def _read_tsv(lines: _Lines) -> Iterator[Row]:
    return _read_columns(lines, csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def _read_columns(lines: _Lines, reader: Any) -> Iterator[Row]:
    """The rows below a line that names the columns."""
    header: list[str] | None = None
    while True:
        number, problem = lines.number + 1, None
        place = f"line {number} of {lines.name}"
        try:
            cells = next(reader, None)
        except csv.Error as error:
            cells, problem = [], _quoting_problem(lines, number, error)
        except _UndecodedLine as error:
            cells, problem = [], str(error)
        if cells is None:
            return
        if header is None:
            if problem is not None:
                raise InputError(problem)
            if any(cells):
                header = cells
                _check_header(header, place)
            continue
        if problem is None and not any(cells):
            continue
        if problem is None and len(cells) != len(header):
            problem = f"{place} has {counted(len(cells), 'column')}, and the first line names {len(header)}"
        yield Row(lines.name, "line", number, {} if problem else dict(zip(header, cells, strict=True)), problem)


def _quoting_problem(lines: _Lines, first: int, error: csv.Error) -> str:
    """Why a row that begins at the line ``first`` cannot be read: a cell, or lines that an open quote has taken."""
    where = f"line {first} of {lines.name}"
    if lines.number > first:
        return (
            f"{where} opens a quote that is not closed where a cell ends, and what follows up to line {lines.number} "
            f"is lost in it ({error}): close it, and write a quote within a quoted cell twice"
        )
    if "limit" in str(error):
        return f"{where} has a cell of more than {csv.field_size_limit():,} characters: shorten it, or drop the row"
    return f"{where} cannot be read: {error}; write a quote within a quoted cell twice"


def _check_header(header: Sequence[str], place: str) -> None:
    if len(set(header)) < len(header):
        raise InputError(f"{place} names a column twice: {', '.join(header)}")


def _read_parquet(name: str, stream: BinaryIO) -> Iterator[Row]:
    arrow = import_optional("pyarrow", "reading Parquet", extra="parquet")
    parquet = import_optional("pyarrow.parquet", "reading Parquet", extra="parquet")
    number = 0
    try:
        source = stream if stream.seekable() else io.BytesIO(stream.read())
        file = parquet.ParquetFile(source)
        _check_header(file.schema_arrow.names, name)
        for batch in file.iter_batches(_ROWS_OF_A_BATCH):
            for values, problem in _values_of(batch):
                place = f"row {number} of {name}"
                yield Row(name, "row", number, values, problem and f"{place} {problem}")
                number += 1
    except (OSError, arrow.ArrowException) as error:
        raise InputError(f"{name} cannot be read as Parquet: {' '.join(str(error).split())}") from error


#: What Arrow raises for such a value: a date of the year 10,000, text that is no UTF-8, a time zone that is unknown.
_NOT_OF_PYTHON = (ValueError, TypeError, ArithmeticError, LookupError, ImportError, NotImplementedError)


def _values_of(batch: Any) -> Iterator[tuple[Mapping[str, Any], str | None]]:
    """The rows of a batch of Arrow, each with what is wrong with it: not every value of Arrow's is one of Python's."""
    try:
        rows = batch.to_pylist()
    except _NOT_OF_PYTHON:
        pass
    else:
        yield from ((values, None) for values in rows)
        return
    for row in range(batch.num_rows):
        values, problem = {}, None
        for column, cells in zip(batch.schema.names, batch.columns, strict=True):
            try:
                values[column] = cells[row].as_py()
            except _NOT_OF_PYTHON as error:
                problem = f"has a value in the column {column!r} that cannot be read: {' '.join(str(error).split())}"
        yield ({} if problem else values), problem


_READERS: dict[str, Callable[[_Lines], Iterator[Row]]] = {
    "text": _read_text,
    "csv": _read_csv,
    "tsv": _read_tsv,
    "jsonl": _read_jsonl,
}
