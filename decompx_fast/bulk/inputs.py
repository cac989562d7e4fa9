"""Which files are read, in an order that stays: files, folders, patterns, standard input."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import InputError, OptionError, shown
from ..request.tables import ENDINGS, FORMATS, STANDARD_INPUT, Row, format_of, is_regular, read_rows
from ..result.file import atomic_write

#: In the folder of results: the files in the order in which they were read.
INPUTS = "inputs.json"

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Inputs:
    """What is read.

    Attributes:
        files: in order.
        format: of all of them, where their names do not say it.
        rows: given by a program, in the place of files.
    """

    files: tuple[str, ...]
    format: str | None = None
    rows: Iterable[Any] | None = None

    @classmethod
    def find(cls, data: Any, format: str | None = None, *, without: str | os.PathLike[str] = "") -> Inputs:
        """The files that are named, those in folders that are named, and those that patterns match, each once.

        Args:
            data: as for :func:`decompx_fast.bulk.explain_dataset`.
            format: of all files.
            without: a folder whose files are not read: the results of the run, below a folder of data.

        Raises:
            InputError: where there is no such file, or none in a folder.
            OptionError: for what is neither.
        """
        if format is not None and format not in FORMATS:
            raise OptionError(f"format={format!r}: use one of {', '.join(map(repr, FORMATS))}")
        if hasattr(data, "columns"):
            raise OptionError(
                f"data is a table ({type(data).__name__}): give its rows, as data.to_dict('records') of pandas or "
                "data.to_pylist() of Arrow"
            )
        if isinstance(data, (str, os.PathLike)):
            data = [data]
        if not isinstance(data, Iterable) or isinstance(data, (bytes, Mapping)):
            raise OptionError(f"data={shown(data)}: give a path, a list of paths, or rows as mappings of columns")
        if not isinstance(data, Sequence) or (data and isinstance(data[0], Mapping)):
            return cls((), rows=data)
        names = [os.fspath(one) for one in data if isinstance(one, (str, os.PathLike))]
        if len(names) < len(data) or not names:
            raise OptionError(f"data={shown(data)}: give a path, a list of paths, or rows as mappings of columns")
        results = os.path.join(os.path.realpath(without), "") if without else None
        files: dict[str, str] = {}
        for file in chain.from_iterable(map(_files_of, names)):
            real = file if file == STANDARD_INPUT else os.path.realpath(file)
            if results is None or not real.startswith(results):
                files.setdefault(real, file)
        if not files:
            raise InputError(f"data={shown(data)}: there is nothing but results of the run itself: name other files")
        for file in files.values():
            format_of(file, format)
        return cls(tuple(files.values()), format)

    def in_order_of(self, folder: Path) -> Inputs:
        """The same with those first that an earlier run into this folder has read, in its order, and remembered there.

        Raises:
            InputError: if one of those is missing now.
        """
        if self.rows is not None:
            return self
        path = folder / INPUTS
        known: list[str] = []
        if path.exists():
            try:
                known = list(json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, TypeError) as error:
                raise InputError(f"{path} is damaged ({error}): choose another folder") from error
        missing = [file for file in known if file not in self.files]
        if missing:
            raise InputError(
                f"{folder} holds results of {', '.join(missing[:3])}, which is not among the input now: files may be "
                "added, but those that were there must stay. Name them as before, or choose another folder"
            )
        files = (*known, *(file for file in self.files if file not in known))
        if list(files) != known:
            text = json.dumps(files, indent=1) + "\n"  # ASCII: a name may be no UTF-8
            atomic_write(path, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))
        return Inputs(files, self.format)

    def read(self) -> Iterator[Row]:
        """The rows, one file after another.

        Raises:
            InputError: for a file that cannot be read.
        """
        if self.rows is not None:
            for number, values in enumerate(self.rows):
                if isinstance(values, os.PathLike):
                    raise OptionError(f"data yields paths ({shown(values)}), and is no list: give a list of them")
                values = {"text": values} if isinstance(values, str) else values
                problem = None if isinstance(values, Mapping) else f"row {number} is {shown(values)}: give a mapping"
                yield Row("data", "row", number, {} if problem else values, problem)
        for file in self.files:
            yield from read_rows(file, format_of(file, self.format))

    def about(self) -> int | None:
        """About how many rows there are, from the ends of lines, which cells may hold too; ``None`` if unknown."""
        if self.rows is not None:
            return len(self.rows) if isinstance(self.rows, Sequence) else None
        counts = [_rows_of(file, format_of(file, self.format)) for file in self.files]
        return None if None in counts else sum(count for count in counts if count is not None)


def _files_of(name: str) -> list[str]:
    if name == STANDARD_INPUT or os.path.isfile(name):
        return [name]
    if os.path.isdir(name):
        below = sorted(_below(name))
        files = [path for path in below if os.path.splitext(path)[1].lower() in ENDINGS]
        for path in below:
            if os.path.splitext(os.path.splitext(path)[0])[1].lower() in ENDINGS:
                format_of(path)  # refuses a.csv.gz, lest it be left out in silence
        if not files:
            raise InputError(
                f"{name} holds no file that ends in {', '.join(ENDINGS)}: name the files, and their format"
            )
        return files
    files = sorted(path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
    if not files and not glob.has_magic(name):
        return [name]  # a pipe, or what cannot be read, which is said where it is read
    if not files:
        raise InputError(f"no file matches {name}")
    return files


def _below(folder: str) -> Iterator[str]:
    """All files in a folder and those below it, but for hidden ones and what is in hidden folders."""

    def unreadable(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror or error}") from error

    for top, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = [one for one in folders if not one.startswith(".")]
        yield from (os.path.join(top, one) for one in files if not one.startswith("."))


def _rows_of(file: str, format: str) -> int | None:
    if not is_regular(file):
        return None
    if format == "parquet":
        from pyarrow import ArrowException, parquet  # type: ignore[import-untyped]

        try:
            return int(parquet.ParquetFile(file).metadata.num_rows)
        except (OSError, ArrowException):
            return None  # said where it is read
    with open(file, "rb") as stream:
        lines = sum(block.count(b"\n") for block in iter(lambda: stream.read(_BLOCK), b""))
    return lines - (format in ("csv", "tsv"))
