"""The folder of a run that survives any end of it: it belongs to one job, and to one run at a time.

A file in it is there as a whole or not at all, since it is written beside and renamed
(:func:`decompx_fast.result.file.atomic_write`). ``run.json`` holds the settings of the job; a run with others is
refused, lest results of different kinds be mixed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from .errors import InputError, OutputError
from .result.file import atomic_write

_SHOWN = 60  # characters of a setting in a message

_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")  # what atomic_write leaves when it is killed


_FolderT = TypeVar("_FolderT", bound="RunFolder")


class RunFolder:
    """The folder of a run.

    Args:
        folder: where it is.
        settings: all that the numbers depend on, as JSON has it.
        results: a pattern of the files of results below the folder.
    """

    def __init__(self, folder: str | os.PathLike[str], settings: Mapping[str, Any], *, results: str) -> None:
        self.folder = Path(folder)
        self.settings = json.loads(json.dumps(settings))
        self._results = results

    @contextlib.contextmanager
    def opened(self: _FolderT) -> Iterator[_FolderT]:
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
            try:
                for path in self.folder.rglob(".*.tmp"):
                    if _TEMPORARY.fullmatch(path.name):
                        path.unlink()
            except OSError as error:
                raise self._unwritable(error) from error
            yield self

    def _unwritable(self, error: OSError) -> OutputError:
        return OutputError(
            f"{self.folder} cannot be written: {error.strerror or error}. Choose a folder where you may write and that "
            "has space left"
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock, which the system releases when this process ends, in whatever way."""
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        try:
            lock = open(self.folder / ".lock", "w")
        except OSError as error:
            raise self._unwritable(error) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OutputError(
                    f"another run is at work in {self.folder}: wait for its end, or choose another folder"
                ) from error
            except OSError as error:
                raise OutputError(
                    f"{self.folder} cannot be locked ({error.strerror or error}), so that two runs could disturb each "
                    "other: choose a folder on a file system that has locks"
                ) from error
            yield

    def _check_settings(self) -> None:
        path = self.folder / "run.json"
        if not path.exists():
            if any(self.folder.glob(self._results)):
                raise InputError(f"{self.folder} holds results but no {path.name}: choose an empty folder")
            text = json.dumps(self.settings, indent=1, ensure_ascii=False)
            atomic_write(path, lambda temporary: Path(temporary).write_text(text + "\n", encoding="utf-8"))
            return
        try:
            found = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path} is damaged ({error}): choose another folder, or empty this one") from error
        different = [
            "{}: {} there, {} now".format(name, *_short_pair(found.get(name), self.settings.get(name)))
            for name in sorted({*found, *self.settings})
            if found.get(name) != self.settings.get(name)
        ]
        if different:
            raise InputError(
                f"{self.folder} holds results of other settings ({'; '.join(different)}): choose another folder, or "
                "the settings that it began with"
            )


def _short_pair(there: object, now: object) -> tuple[str, str]:
    """Two values that differ, each cut to what shows where."""
    texts = [json.dumps(value, ensure_ascii=False) for value in (there, now)]
    same = len(os.path.commonprefix(texts))
    start = max(0, same - 20) if max(map(len, texts)) > _SHOWN else 0
    first, second = (
        ("..." if start else "") + text[start : start + _SHOWN] + ("..." if len(text) > start + _SHOWN else "")
        for text in texts
    )
    return first, second
