"""The parts of a folder of results: one record for each row of the input, as Parquet or as JSON Lines.

Every part has the same columns (:data:`COLUMNS`), whatever the task. Its name says which rows are in it and what they
held: ``part-000000001024-00512-<digest>.parquet`` has 512 rows from row 1024 on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..optional import import_optional
from ..result.explanation import Explanation
from ..result.failure import Failure
from ..result.file import atomic_write
from .carried import writable
from .units import Item, Span

#: What a column holds; Arrow's names of types. Of a row with an error, those from ``tokens`` on are null.
COLUMNS = {
    "row": "int64",  # the number of the row in the input, from 0, over all files
    "file": "string",
    "line": "int64",  # where the row begins in its file: a line from 1, or a row of Parquet from 0
    "id": "string",
    "columns": "string",  # all other columns of the input, as a JSON object
    "error": "string",  # why it could not be explained; null where it was
    "error_type": "string",
    "texts": "list<string>",  # one, or two of a pair
    "tokens": "list<string>",  # of each source k
    "token_ids": "list<int64>",
    "text_of": "list<int32>",  # which of the texts it is a part of, null for special tokens
    "start": "list<int32>",  # and where, in characters
    "end": "list<int32>",
    "special": "list<bool>",
    "scores": "list<list<double>>",  # [k, c]: of each source to each target
    "targets": "list<string>",  # the names of the columns c of the scores
    "target_ids": "list<int32>",
    "target_logits": "list<double>",  # what the scores of each target add up to
    "bias_token": "list<double>",
    "logits": "list<double>",
    "labels": "list<string>",
    "predicted_label": "list<string>",
    "completeness_error": "double",
    "score_error": "double",
    "engine": "string",
    "time_s": "double",
    "more": "string",  # the rest of Explanation.to_dict(), as JSON: task, entities, answer, predictions, metadata, ...
}

#: Of them, those that say which row it is; the others say what came of it.
OF_THE_ROW = ("row", "file", "line", "id", "columns")

#: In run.json, and not in each record.
_OF_THE_RUN = ("options",)

#: Made from the others.
_DERIVED = ("stages", "probabilities", "predicted", "predicted_label", "spans")

_NAME = re.compile(r"part-(\d{12})-(\d+)-([0-9a-f]{16})\.(parquet|jsonl)")

Record = dict[str, Any]


def record_of(item: Item, outcome: Explanation | Failure, *, alone: bool = False) -> Record:
    """One row with what came of it.

    Args:
        item: the row.
        outcome: what came of it.
        alone: whether the record is all that there will be, with no ``run.json`` beside it: then options are in it.
    """
    record: Record = dict.fromkeys(COLUMNS)
    record |= {"row": item.number, "file": writable(item.file), "line": item.line, "columns": item.carried}
    record["id"] = None if item.id is None else writable(item.id)
    if item.text is not None:
        record["texts"] = [item.text] if isinstance(item.text, str) else list(item.text)
    if isinstance(outcome, Failure):
        return record | {"error": writable(outcome.error), "error_type": outcome.error_type}
    data = outcome.to_dict()
    label, spans = data["predicted_label"], [span or (None, None, None) for span in data["spans"]]
    record["predicted_label"] = [label] if isinstance(label, str) else label
    record["text_of"], record["start"], record["end"] = ([span[n] for span in spans] for n in range(3))
    record |= {name: data.pop(name) for name in COLUMNS if name in data and name not in _DERIVED}
    metadata = {key: value for key, value in data["metadata"].items() if key != "input"}
    rest = {key: value for key, value in data.items() if key not in (*_DERIVED, *(() if alone else _OF_THE_RUN))}
    record["more"] = json.dumps({**rest, "unit": item.unit, "metadata": metadata}, ensure_ascii=False)
    return record


def outcome_of(record: Record, options: Mapping[str, Any] | None = None) -> Explanation | Failure:
    """What :func:`record_of` was given; ``metadata`` says which row it is.

    Args:
        record: of all columns.
        options: of the run, where they are not in the record.

    Raises:
        InputError: for a record that is damaged.
    """
    try:
        if record["error"] is not None:
            return Failure(record["row"], record["error"], record["error_type"])
        more = json.loads(record["more"])
        about = {"input": record["row"], "file": record["file"], more.pop("unit"): record["line"], "id": record["id"]}
        about = {name: value for name, value in about.items() if value is not None}
        places = zip(record["text_of"], record["start"], record["end"], strict=True)
        spans = [None if place[0] is None else place for place in places]
        if record["columns"] is not None:
            about["columns"] = json.loads(record["columns"])
        metadata = {**more.pop("metadata"), **about}
        found = {**record, **more, "spans": spans, "metadata": metadata}
        return Explanation.from_dict(found if options is None else {**found, "options": options})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"a record is damaged: {error!r}") from error


@dataclass(frozen=True)
class Parts:
    """The parts in a folder.

    Attributes:
        folder: where they are.
        format: ``"parquet"`` or ``"jsonl"``.
        about: what the metadata of a Parquet file says besides its schema, under ``decompx_fast``.
    """

    folder: Path
    format: str
    about: Mapping[str, Any]

    def path(self, span: Span) -> Path:
        """Where a part is, or will be."""
        return self.folder / f"{span.name}.{self.format}"

    def spans(self) -> dict[int, Span]:
        """The parts that are there, by their first rows, in the order of these.

        Raises:
            InputError: if two of them hold the same rows, as where one was copied there by hand.
        """
        names = sorted(path.name for path in self.folder.iterdir())
        matches = [match for match in map(_NAME.fullmatch, names) if match and match[4] == self.format]
        spans = [Span(int(match[1]), int(match[2]), match[3]) for match in matches]
        for one, other in pairwise(spans):
            if other.first < one.first + one.count:
                raise InputError(
                    f"{self.folder} has two parts with row {other.first:,}, {self.path(one).name} and "
                    f"{self.path(other).name}: delete the one that is not of this data, or both, and run again"
                )
        return {span.first: span for span in spans}

    def write(self, span: Span, records: Sequence[Record]) -> None:
        """Put a part in its place, as a whole, in the place of an older one.

        Raises:
            OutputError: if it cannot be written.
        """
        if self.format == "jsonl":
            lines = "".join(json.dumps(record) + "\n" for record in records)
            atomic_write(self.path(span), lambda temporary: Path(temporary).write_text(lines, encoding="utf-8"))
            return
        arrow, parquet = _arrow()
        schema = schema_of(self.about)
        table = arrow.Table.from_pylist(list(records), schema=schema)
        atomic_write(
            self.path(span),
            lambda temporary: parquet.write_table(
                table,
                temporary,
                compression="zstd",
                # Numbers of float32 in a double leave the last bytes empty, which so are next to each other.
                use_dictionary=_TEXTS,
                use_byte_stream_split=_NUMBERS,
            ),
        )

    def read(self, span: Span, columns: Sequence[str] | None = None) -> list[Record]:
        """The records of a part, with these columns.

        Raises:
            InputError: if it cannot be read.
        """
        path = self.path(span)
        try:
            if self.format == "jsonl":
                records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            else:
                _, parquet = _arrow()
                table = parquet.read_table(path, columns=None if columns is None else list(columns), partitioning=None)
                records = table.to_pylist()
        except (OSError, ValueError) as error:  # Arrow's errors are ValueErrors or OSErrors
            raise InputError(f"{path} cannot be read ({error}): delete it, and run again") from error
        if len(records) != span.count:
            raise InputError(f"{path} has {len(records)} of {span.count} rows: delete it, and run again")
        return records

    def errors(self, span: Span) -> list[int]:
        """The numbers of the rows of a part that have an error."""
        return [record["row"] for record in self.read(span, ("row", "error")) if record["error"] is not None]

    def outcomes(self, options: Mapping[str, Any]) -> Iterator[Explanation | Failure]:
        """All, in the order of the rows."""
        for span in self.spans().values():
            for record in self.read(span):
                try:
                    yield outcome_of(record, options)
                except InputError as error:
                    raise InputError(f"{self.path(span)}: {error}; delete the part, and run again") from error


def schema_of(about: Mapping[str, Any]) -> Any:
    """The schema of every part (``pyarrow.Schema``), with metadata."""
    arrow, _ = _arrow()
    types = {"string": arrow.string(), "double": arrow.float64(), "bool": arrow.bool_()}
    types |= {"int64": arrow.int64(), "int32": arrow.int32()}

    def type_of(name: str) -> Any:
        return arrow.list_(type_of(name[5:-1])) if name.startswith("list<") else types[name]

    fields = [arrow.field(name, type_of(kind)) for name, kind in COLUMNS.items()]
    return arrow.schema(fields, metadata={"decompx_fast": json.dumps(about, ensure_ascii=False)} if about else None)


def _leaves(*kinds: str) -> list[str]:
    """The paths of the columns of some types, as Parquet names them."""
    return [
        name + ".list.element" * kind.count("list<")
        for name, kind in COLUMNS.items()
        if kind.replace("list<", "").rstrip(">") in kinds
    ]


_NUMBERS = _leaves("double")
_TEXTS = _leaves("string")


def _arrow() -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        MissingPackageError: if it is not installed.
    """
    return import_optional("pyarrow", "bulk", extra="bulk"), import_optional("pyarrow.parquet", "bulk", extra="bulk")
