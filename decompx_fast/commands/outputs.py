"""Where the results of many inputs go, each as it is done: tables, JSON, a page; and what is kept of an ended run."""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol

from ..errors import OutputError
from ..result.display import printable
from ..result.explanation import Explanation
from ..result.failure import Failure
from ..result.file import flush_to_disk
from ..result.kinds import Target
from ..result.layer_terminal import show_layers
from ..result.pair import PairExplanation

_LINE_ENDS = re.compile("[\x85\u2028\u2029]")

#: Stands for standard output, in the place of a file.
STANDARD_OUTPUT = "-"


@dataclass(frozen=True)
class Result:
    """What came of one input.

    Attributes:
        outcome: its explanation, or why there is none.
        place: where the input is, for people; empty if there is nothing to say.
        about: the same for programs: ``input``, its number from 0, and the ``file``, ``line`` or ``row``, and ``id``
            that it has.
    """

    outcome: Explanation | PairExplanation | Failure
    place: str
    about: Mapping[str, Any]

    def to_dict(self, *, details: bool = False) -> dict[str, Any]:
        """The outcome with what names its input, ready for JSON; ``details`` as for an explanation's ``to_dict``."""
        outcome = self.outcome
        data = outcome.to_dict(details=details) if isinstance(outcome, Explanation) else outcome.to_dict()
        return {**self.about, **{k: v for k, v in data.items() if k not in self.about}}


class Sink(Protocol):
    """A place where results go."""

    def add(self, result: Result) -> None:
        """Take one more."""

    def end(self, *, complete: bool) -> None:
        """No more come: all are there, or the run has ended early."""

    def kept(self) -> str | None:
        """Where those of a run that ended early are, if they are in a file."""


class Tables:
    """Prints each explanation to the terminal, below the name of its input.

    Args:
        difference: two targets that are shown beside each other; ``None``: the predicted one.
        layers: whether maps of the layers come after the table.
    """

    def __init__(self, *, difference: Sequence[Target] | None = None, layers: bool = False) -> None:
        self._first, self._second = (None, None) if difference is None else difference
        self._layers = layers
        self._any = False

    def add(self, result: Result) -> None:
        if isinstance(result.outcome, Failure):
            return
        if self._any:
            sys.stdout.write("\n")
        self._any = True
        if result.place:
            sys.stdout.write(f"{printable(result.place)}\n")
        if not isinstance(result.outcome, Explanation):
            result.outcome.show()
            return
        result.outcome.show(self._first, other=self._second)
        if self._layers:
            sys.stdout.write("\n")
            show_layers(result.outcome)

    def end(self, *, complete: bool) -> None:
        pass

    def kept(self) -> str | None:
        return None


class JsonLines:
    """Writes an object on each line, which is in the file as soon as its input is done."""

    def __init__(self, path: str, *, details: bool = False) -> None:
        self.path = path
        self._details = details
        self._stream: IO[str] | None = None

    def add(self, result: Result) -> None:
        with writing(self.path):
            if self._stream is None:
                self._stream = _opened(self.path, "w") if self.path != STANDARD_OUTPUT else sys.stdout
            self._stream.write(_json(result, self._stream, self._details) + "\n")
            self._stream.flush()

    def end(self, *, complete: bool) -> None:
        if self._stream is not None and self.path != STANDARD_OUTPUT:
            with writing(self.path):
                self._stream.close()

    def kept(self) -> str | None:
        return self.path if self._stream is not None and os.path.isfile(self.path) else None  # a pipe keeps nothing


class JsonArray:
    """Writes an array, one element per line; it is closed however the run ends."""

    def __init__(self, path: str, *, details: bool = False) -> None:
        self._details = details
        self._file = None if path == STANDARD_OUTPUT else WholeFile(path)
        self._separator = "[\n"

    def add(self, result: Result) -> None:
        stream = sys.stdout if self._file is None else self._file.stream()
        with writing(STANDARD_OUTPUT if self._file is None else self._file.path):
            stream.write(self._separator + _json(result, stream, self._details))
        self._separator = ",\n"

    def end(self, *, complete: bool) -> None:
        if self._separator == "[\n":
            return  # nothing was explained
        if self._file is None:
            sys.stdout.write("\n]\n")
        else:
            self._file.end("\n]\n", complete=complete)

    def kept(self) -> str | None:
        return None if self._file is None else self._file.kept()


class WholeFile:
    """A file that takes its place when it is complete, and is beside it, named ``.partial``, until then.

    What was in its place before stays if the run ends early, and what was written by then is kept beside it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._place = os.path.realpath(path)
        self.partial = partial_of(path)
        self._stream: IO[str] | None = None
        self._complete = False

    def stream(self) -> IO[str]:
        """To be written to; opened when it is first asked for."""
        if self._stream is None:
            with writing(self.partial):
                with suppress(FileNotFoundError):
                    os.unlink(self.partial)  # of a run that ended early; another that still writes keeps its own
                self._stream = _opened(self.partial, "x")
        return self._stream

    def cut(self, position: int, last: str) -> None:
        """Leave what is before a position, and put this behind it; where it cannot be written, leave it as it is."""
        if self._stream is not None:
            with suppress(OSError):
                self._stream.seek(position)
                self._stream.truncate()
                self._stream.write(last)

    def end(self, last: str = "", *, complete: bool) -> None:
        """Write the last part, and put the file in its place if it is complete."""
        if self._stream is None:
            return
        with writing(self.path):
            self._stream.write(last)
            self._stream.close()
            if not complete:
                return
            if os.path.exists(self._place):
                os.chmod(self.partial, stat.S_IMODE(os.stat(self._place).st_mode))
            flush_to_disk(self.partial)
            os.replace(self.partial, self._place)
            self._complete = True

    def kept(self) -> str | None:
        """Where the part that was written is, if it is not whole."""
        return None if self._stream is None or self._complete else self.partial


def partial_of(path: str) -> str:
    """Where a file is until it is complete."""
    stem, ending = os.path.splitext(os.path.realpath(path))
    return f"{stem}.partial{ending}"


class Page:
    """Writes a page with all explanations, which is closed however the run ends."""

    def __init__(self, path: str) -> None:
        self._file = WholeFile(path)

    def fill(self, results: Iterator[Result]) -> None:
        """Write them all as they come; no file is begun before the first is there."""
        from ..result.render import page_chunks, page_end

        first = next(results, None)
        if first is None:
            return
        whole = 0  # where the last explanation that is there as a whole ends

        def entries() -> Iterator[tuple[str, Any]]:
            nonlocal whole
            for one in itertools.chain([first], results):
                whole = self._file.stream().tell()
                yield one.place, one.outcome

        try:
            for chunk in page_chunks(entries()):
                stream = self._file.stream()
                with writing(self._file.path):
                    stream.write(chunk)
        except BaseException:
            self._file.cut(whole, page_end())
            raise

    def end(self, *, complete: bool) -> None:
        """Put it in its place if it is complete."""
        self._file.end(complete=complete)

    def kept(self) -> str | None:
        """Where the part that was written is, if it is not whole."""
        return self._file.kept()


def deliver(results: Iterable[Result], sinks: Sequence[Sink], page: Page | None = None) -> None:
    """Hand every result to all places as it is done, and close these in any case.

    Args:
        results: as they come; an error or an interrupt ends them.
        sinks: where they go.
        page: a page that shall have them too.
    """
    ended: list[BaseException] = []

    def each() -> Iterator[Result]:
        """The results until there are no more: what ends them early is raised when all is closed."""
        try:
            for result in results:
                for sink in sinks:
                    sink.add(result)
                yield result
        except GeneratorExit:
            raise
        except BaseException as error:
            ended.append(error)

    try:
        if page is not None:
            page.fill(each())
        else:
            for _ in each():
                pass
    except BaseException as error:
        ended.append(error)
    for place in (*sinks, page):
        try:
            if place is not None:
                place.end(complete=not ended)
        except OSError as error:
            ended.append(error)
    if ended:
        raise ended[0]


def is_utf8(stream: IO[str]) -> bool:
    """Whether any character can be written to it."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"


def _json(result: Result, stream: IO[str], details: bool) -> str:
    """One line, whatever its reader takes for the end of a line: some cut at characters that JSON lets stand."""
    text = json.dumps(result.to_dict(details=details), ensure_ascii=not is_utf8(stream))
    return _LINE_ENDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _opened(path: str, mode: str) -> IO[str]:
    # What is no character, as half of a pair of surrogates, is escaped in the way that JSON has for it.
    return open(path, mode, encoding="utf-8", errors="backslashreplace")


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Name the file that cannot be written; what is wrong with standard output is named where a program ends.

    Raises:
        OutputError: in the place of the system's error.
    """
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        if path == STANDARD_OUTPUT:
            raise
        raise OutputError(
            f"{path} cannot be written: {error.strerror or error}. Choose a path where you may write and that has "
            "space left."
        ) from error
