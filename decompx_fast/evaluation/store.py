"""Results on disk that survive any end of the run: one Parquet file for each method and chunk of texts.

A part is there as a whole or not at all, since it is written beside and renamed. A run computes the parts that are
missing; so no text is computed twice or lost, however often the run was killed. ``run.json`` holds the settings, and a
run with other settings is refused, lest parts of different kinds be mixed. Which methods are asked for is no such
setting: a method's parts do not depend on the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError, OutputError
from ..export import atomic_write
from ..optional import import_optional

FORMAT = "decompx_fast.evaluation, version 1"

Record = dict[str, Any]  # one text and one method: columns and their values

_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")  # what atomic_write leaves when it is killed


class Store:
    """The folder of a run.

    Args:
        folder: where it is.
        settings: all that the numbers depend on, as JSON has it.
    """

    def __init__(self, folder: str | os.PathLike[str], settings: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.settings = json.loads(json.dumps({"format": FORMAT, **settings}))

    @contextlib.contextmanager
    def opened(self) -> Iterator[Store]:
        """Create the folder or check that it belongs to the same settings, and keep others out of it meanwhile.

        Raises:
            InputError: if it holds results of other settings, with what differs.
            OutputError: if it cannot be written, or another run is at work there.
        """
        try:
            (self.folder / "parts").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"out={str(self.folder)!r} cannot be made a folder: {error.strerror or error}") from error
        with self._locked():
            self._check_settings()
            for path in (self.folder / "parts").glob("*/.*.tmp"):
                if _TEMPORARY.fullmatch(path.name):
                    path.unlink()
            yield self

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock, which the system releases when this process ends, in whatever way."""
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        with open(self.folder / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OutputError(
                    f"another run is at work in {self.folder}: wait for its end, or choose another folder"
                ) from error
            yield

    def _check_settings(self) -> None:
        path = self.folder / "run.json"
        if not path.exists():
            if any((self.folder / "parts").glob("*/*.parquet")):
                raise InputError(f"{self.folder} holds results but no {path.name}: choose an empty folder")
            text = json.dumps(self.settings, indent=1, ensure_ascii=False)
            atomic_write(path, lambda temporary: Path(temporary).write_text(text + "\n", encoding="utf-8"))
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path} is damaged ({error}): choose another folder, or empty this one") from error
        different = [
            f"{name}: {_short(found.get(name))} there, {_short(self.settings.get(name))} now"
            for name in sorted({*found, *self.settings})
            if found.get(name) != self.settings.get(name)
        ]
        if different:
            raise InputError(
                f"{self.folder} holds results of other settings ({'; '.join(different)}): choose another folder, or "
                "the settings that it began with"
            )

    def path(self, method: str, chunk: int) -> Path:
        """Where a part is, or will be."""
        return self.folder / "parts" / method / f"{chunk:06d}.parquet"

    def has(self, method: str, chunk: int) -> bool:
        """Whether a part has been computed."""
        return self.path(method, chunk).exists()

    def write(self, method: str, chunk: int, records: Sequence[Record]) -> None:
        """Store a part."""
        path = self.path(method, chunk)
        path.parent.mkdir(exist_ok=True)
        arrow = import_optional("pyarrow", "decompx-fast evaluate")
        parquet = import_optional("pyarrow.parquet", "decompx-fast evaluate")
        table = arrow.Table.from_pylist(list(records))
        atomic_write(path, lambda temporary: parquet.write_table(table, temporary))

    def read(self, method: str, chunks: int) -> Any:
        """All parts of a method as one table (``pyarrow.Table``), in the order of the data.

        Raises:
            InputError: if one cannot be read.
        """
        arrow = import_optional("pyarrow", "decompx-fast evaluate")
        parquet = import_optional("pyarrow.parquet", "decompx-fast evaluate")
        parts = []
        for chunk in range(chunks):
            path = self.path(method, chunk)
            try:
                parts.append(parquet.read_table(path, partitioning=None))
            except (OSError, arrow.ArrowException) as error:
                raise InputError(f"{path} cannot be read ({error}): delete it, and run again") from error
        return arrow.concat_tables(parts, promote_options="permissive").sort_by("index")


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
