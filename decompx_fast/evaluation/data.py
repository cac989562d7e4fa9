"""The texts of an evaluation, and their labels: read from a file, or the held-out movie snippets."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, OptionError, shown
from ..optional import import_optional

#: Stands for the held-out movie snippets, in the place of a file.
SNIPPETS = "snippets"

#: Names of the column of texts, and of that of labels, where none is given; the first that is there.
TEXT_COLUMNS = ("text", "sentence")
LABEL_COLUMNS = ("label",)

Row = tuple[str, Mapping[str, Any]]  # where it is, for messages, and what it holds


@dataclass(frozen=True)
class Dataset:
    """Texts and what is known of them.

    Attributes:
        name: of the file.
        texts: a text or a pair of texts each.
        labels: the index of the right class of each, or ``None`` if they are not known.
    """

    name: str
    texts: tuple[str | tuple[str, str], ...]
    labels: tuple[int, ...] | None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def is_pairs(self) -> bool:
        """Whether each is a pair of texts."""
        return isinstance(self.texts[0], tuple)

    @property
    def sha256(self) -> str:
        """A digest of the texts and the labels."""
        return hashlib.sha256(json.dumps([self.texts, self.labels]).encode()).hexdigest()


def read_dataset(
    path: str | os.PathLike[str],
    labels: Sequence[str],
    *,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    limit: int | None = None,
) -> Dataset:
    """Read texts and labels.

    Args:
        path: a file whose name ends in ``.csv``, ``.tsv`` (tabs between columns, quotes are ordinary characters),
            ``.jsonl`` (an object on each line) or ``.parquet``; or ``"snippets"``: the held-out movie snippets, which
            are fetched once.
        labels: the names of the model's classes. A label in the data is one of them, or an index.
        text_column: the column of the texts; ``None``: ``text``, or else ``sentence``.
        pair_column: the column of the second texts, if they are pairs.
        label_column: the column of the labels; ``None``: ``label`` if there is one, otherwise labels are not known.
        limit: read so many rows at most.

    Raises:
        OptionError: for a column that is not there, or a limit below 1.
        InputError: for a file or a row that cannot be used, with its line.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise OptionError(f"limit={limit!r}: use a whole number from 1, or None for all rows")
    name = os.fspath(path)
    if name == SNIPPETS and not os.path.exists(name):
        if text_column or pair_column or label_column:
            raise OptionError(f"{SNIPPETS!r} has no columns to choose from: leave the column options out")
        from .snippets import heldout_snippets

        snippets = heldout_snippets()[:limit]
        if len(labels) != 2:
            raise InputError(
                f"the movie snippets are negative or positive, and the model has {len(labels)} classes: use a "
                "sentiment classifier with the classes negative and positive, in this order"
            )
        return Dataset(SNIPPETS, tuple(s.text for s in snippets), tuple(s.label for s in snippets))
    rows = _open(name)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{name} holds no rows: there is nothing to evaluate")
    columns = list(first[1])
    text_column = _choose(name, columns, text_column or _first_of(TEXT_COLUMNS, columns), "text_column", TEXT_COLUMNS)
    label_column = label_column or _first_of(LABEL_COLUMNS, columns)
    if label_column is not None:
        _choose(name, columns, label_column, "label_column")
    if pair_column is not None:
        _choose(name, columns, pair_column, "pair_column")
    texts: list[str | tuple[str, str]] = []
    found: list[int] = []
    for where, row in itertools.islice(itertools.chain([first], rows), limit):
        text = _text(where, row, text_column)
        texts.append(text if pair_column is None else (text, _text(where, row, pair_column)))
        if label_column is not None:
            found.append(_label(where, row, label_column, labels))
    return Dataset(os.path.basename(name), tuple(texts), tuple(found) if label_column is not None else None)


def _first_of(wanted: Sequence[str], columns: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in columns), None)


def _choose(name: str, columns: Sequence[str], wanted: str | None, argument: str, usual: Sequence[str] = ()) -> str:
    """The column, which must be there."""
    if wanted is None:
        raise OptionError(
            f"{name} has no column named {' or '.join(usual)}: say by {argument} which of {', '.join(columns)} it is"
        )
    if wanted not in columns:
        raise OptionError(f"{argument}={wanted!r}: {name} has the columns {', '.join(map(repr, columns))}")
    return wanted


def _text(where: str, row: Mapping[str, Any], column: str) -> str:
    text = row.get(column)
    if not isinstance(text, str):
        raise InputError(f"{where} has {shown(text)} in the column {column!r}: it must be a text")
    if not text.strip():
        raise InputError(f"{where} has an empty text in the column {column!r}: drop the row")
    return text


def _label(where: str, row: Mapping[str, Any], column: str, labels: Sequence[str]) -> int:
    """The index of a class given by name or by index."""
    value = row.get(column)
    if isinstance(value, str):
        if value in labels:
            return labels.index(value)
        index = int(value) if value.isascii() and value.isdigit() else -1
    else:
        index = value if isinstance(value, int) and not isinstance(value, bool) else -1
    if not 0 <= index < len(labels):
        raise InputError(
            f"{where} has the label {shown(value)}, and the classes of the model are {', '.join(labels)}: give one of "
            f"these names, or an index from 0 to {len(labels) - 1}"
        )
    return index


def _open(name: str) -> Iterator[Row]:
    """The rows of a file, with the place of each."""
    ending = os.path.splitext(name)[1].lower()
    if ending not in (*_READERS, ".parquet"):
        raise InputError(f"data={name!r} must end in {', '.join(_READERS)} or .parquet, or be {SNIPPETS!r}")
    if os.path.isdir(name):
        raise InputError(f"{name} is a directory: give a file")
    try:
        with open(name, "rb") as stream:
            data = stream.read()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from error
    if ending == ".parquet":
        return _read_parquet(name, data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(f"{name} is not UTF-8 (line {line}, byte {error.start}): convert it first") from error
    # Only the line breaks of files: str.splitlines would also cut at breaks that belong to a text.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return _READERS[ending](name, lines)


def _read_csv(name: str, lines: list[str]) -> Iterator[Row]:
    return _read_columns(name, csv.reader((f"{line}\n" for line in lines), strict=True))


def _read_tsv(name: str, lines: list[str]) -> Iterator[Row]:
    return _read_columns(name, csv.reader((f"{line}\n" for line in lines), delimiter="\t", quoting=csv.QUOTE_NONE))


def _read_columns(name: str, reader: Any) -> Iterator[Row]:
    """The rows below a line that names the columns."""
    header: list[str] | None = None
    while True:
        where = f"line {reader.line_num + 1} of {name}"
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise InputError(f"{where} cannot be read: {error}") from error
        if cells is None:
            return
        if not any(cells):
            continue
        if header is None:
            header = cells
            if len(set(header)) < len(header):
                raise InputError(f"{where} names a column twice: {', '.join(header)}")
        elif len(cells) != len(header):
            raise InputError(f"{where} has {len(cells)} columns, and the first line names {len(header)}")
        else:
            yield where, dict(zip(header, cells, strict=True))


def _read_jsonl(name: str, lines: list[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"line {number} of {name}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where} is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(f'{where} is {shown(row)}: it must be an object, such as {{"text": "..."}}')
        yield where, row


def _read_parquet(name: str, data: bytes) -> Iterator[Row]:
    arrow = import_optional("pyarrow", "reading Parquet")
    parquet = import_optional("pyarrow.parquet", "reading Parquet")
    try:
        table = parquet.read_table(arrow.BufferReader(data))
    except (OSError, arrow.ArrowException) as error:
        raise InputError(f"{name} cannot be read as Parquet: {' '.join(str(error).split())}") from error
    return ((f"row {number} of {name}", row) for number, row in enumerate(table.to_pylist()))


_READERS: dict[str, Callable[[str, list[str]], Iterator[Row]]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
}
