"""Results on disk that survive any end of the run: one Parquet file for each method and chunk of texts.

A part is there as a whole or not at all, since it is written beside and renamed. A run computes the parts that are
missing; so no text is computed twice or lost, however often the run was killed. ``run.json`` holds the settings, and a
run with other settings is refused, lest parts of different kinds be mixed. Which methods are asked for is no such
setting: a method's parts do not depend on the others, and the report is of all that are finished. ``methods.json`` says
how tables show each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..folder import RunFolder
from ..optional import import_optional
from ..result.file import atomic_write

FORMAT = "decompx_fast.evaluation, version 1"

Record = dict[str, Any]  # one text and one method: columns and their values


class Store(RunFolder):
    """The folder of a run.

    Args:
        folder: where it is.
        settings: all that the numbers depend on, as JSON has it.
    """

    def __init__(self, folder: str | os.PathLike[str], settings: Mapping[str, Any]) -> None:
        super().__init__(folder, {"format": FORMAT, **settings}, results="parts/*/*.parquet")

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

    def finished(self, chunks: int) -> list[str]:
        """The methods of which every part is there, in the order of their names."""
        folders = sorted(path.name for path in (self.folder / "parts").iterdir() if path.is_dir())
        return [name for name in folders if all(self.has(name, chunk) for chunk in range(chunks))]

    def remember_labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Add how tables show these methods to what earlier runs said of theirs, and return it all."""
        path = self.folder / "methods.json"
        known: dict[str, str] = {}
        if path.exists():
            try:
                known = dict(json.loads(path.read_text(encoding="utf-8")))
            except ValueError as error:
                raise InputError(f"{path} is damaged ({error}): delete it, and run again") from error
        known |= labels
        text = json.dumps(known, indent=1, ensure_ascii=False) + "\n"
        atomic_write(path, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))
        return known

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
