"""What ``decompx-fast explain`` does: inputs with names, their results, and the places where these go."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError, OptionError
from ..request.tables import STANDARD_INPUT, Columns, Row, format_of, is_regular, read_rows
from ..result.failure import Failure
from .outputs import STANDARD_OUTPUT, JsonArray, JsonLines, Page, Result, Sink, Tables, deliver, partial_of

if TYPE_CHECKING:
    from ..explainer import DecompX

_LINES_ENDINGS = (".jsonl", ".ndjson")

#: Names of standard output as a file: tables printed between the lines of such a file would be in it.
_STANDARD_OUTPUTS = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


@dataclass(frozen=True)
class Input:
    """A text with its name.

    Attributes:
        number: its place among all inputs, from 0.
        place: where it is, for people.
        about: the same for programs.
        text: the text, or the pair; ``None`` if there is none.
        problem: why there is none.
    """

    number: int
    place: str
    about: Mapping[str, Any]
    text: str | tuple[str, str] | None
    problem: str | None = None


@dataclass(frozen=True)
class Source:
    """What is to be explained: texts of the command line, and the rows of a file.

    Attributes:
        texts: of the command line; a pair of them each where there are second ones.
        file: ``None`` for none, ``"-"`` for standard input.
        format: of the file, where its name does not say it.
        columns: the names of the columns of texts, second texts and ids, as they were given.
        kind: ``"picture"``, ``"sound"``: what is on the command line are paths of such files.
    """

    texts: tuple[str | tuple[str, str], ...]
    file: str | None = None
    format: str | None = None
    columns: Mapping[str, str | None] = field(default_factory=dict)
    kind: str = "text"

    def check_model(self, explainer: DecompX) -> None:
        """Refuse pictures or sounds for a model of texts, and the other way round.

        Raises:
            UsageError: says which option to use.
        """
        from ..models.tasks import PICTURES, SOUNDS

        reads = {PICTURES: "picture", SOUNDS: "sound"}.get(explainer.task, "text")
        if reads != self.kind:
            ways = {"picture": "give --image FILE", "sound": "give --audio FILE", "text": "give a TEXT, or --file FILE"}
            way = ways[reads]
            raise click.UsageError(f"the task of this model is {explainer.task}, and it reads {reads}s: {way}")

    def check(self) -> None:
        """Refuse what does not fit together, as a wrong use of the command."""
        if self.file is None:
            if self.format or any(self.columns.values()):
                raise click.UsageError("--format and the names of columns are for a file: give --file FILE")
        elif format_of(self.file, self.format) == "text" and any(self.columns.values()):
            raise click.UsageError(
                f"{self.file} is read as plain text, which has no columns: leave them out, or say by --format what "
                "it is"
            )

    def inputs(self) -> Iterator[Input]:
        """One after another, read as they are asked for.

        Raises:
            InputError: if the file cannot be read, or holds nothing.
            OptionError: for a column that is not there.
        """
        for number, text in enumerate(self.texts):
            file = {} if self.kind == "text" else {"file": text}
            yield Input(number, f"{self.kind} {number + 1}", {"input": number, **file}, text)
        if self.file is None:
            return
        rows = read_rows(self.file, format_of(self.file, self.format))
        columns: Columns | None = None
        empty = True
        for number, row in enumerate(rows, start=len(self.texts)):
            empty = False
            if columns is None and row.problem is None:
                columns = Columns.choose(row, **self.columns)
            yield _input(number, row, columns)
        if empty:
            self._refuse_empty()

    def count(self, *, skip: bool) -> int | None:
        """How many inputs there are, where that can be known before they are explained.

        Raises:
            InputError: for the first row that cannot be read, unless ``skip``.
        """
        if self.file is not None and not is_regular(self.file):
            return None
        count = 0
        for one in self.inputs():
            if one.problem is not None and not skip:
                raise InputError(one.problem)
            count += 1
        return count

    def _refuse_empty(self) -> None:
        name = "standard input" if self.file == STANDARD_INPUT else self.file
        size = f" ({os.path.getsize(self.file)} bytes)" if self.file and is_regular(self.file) else ""
        if format_of(self.file or "", self.format) == "text":
            raise InputError(f"{name} is empty{size}: it needs one text per line")
        raise InputError(f"{name} holds no rows: there is nothing to explain")


def _input(number: int, row: Row, columns: Columns | None) -> Input:
    about = {"input": number, "file": row.file, row.unit: row.number}
    place, text, problem = row.place, None, row.problem
    if columns is not None and row.problem is None:
        if columns.id is not None:
            about["id"] = _plain(row.values.get(columns.id))
            place = f"{place} (id {about['id']})"
        try:
            text = columns.read(row)
        except InputError as error:
            problem = str(error)
    return Input(number, place, about, text, problem)


def _plain(value: Any) -> str | int | None:
    """An id as JSON has it: dates and the like as they are written."""
    return value if value is None or isinstance(value, (str, int)) else str(value)


def explain_all(
    explainer: DecompX,
    source: Source,
    *,
    skip: bool,
    words: bool,
    options: Mapping[str, Any],
    phrase: Callable[[str], str] = str,
) -> Iterator[Result]:
    """The results of all inputs in their order, as they are done.

    Args:
        explainer: the model.
        source: the inputs.
        skip: whether to go on after one that cannot be explained.
        words: whether to merge the tokens of each word.
        options: as for :meth:`DecompX.explain_iter`.
        phrase: puts an error in the words of the command line.

    Raises:
        InputError: for the first input that cannot be explained, unless ``skip``; it names the input.
    """
    waiting: deque[Input] = deque()  # read, and not explained yet
    names: dict[int, str] = {}  # of those that the explainer was given, by its own count

    def texts() -> Iterator[str | tuple[str, str]]:
        count = 0
        for one in source.inputs():
            waiting.append(one)
            if one.text is not None:
                names[count] = one.place
                count += 1
                yield one.text
            elif not skip:
                return  # those before it are explained, and then it is refused

    with _named_warnings(names):
        for count, outcome in enumerate(explainer.explain_iter(texts(), on_error="skip", **options)):
            yield from _unreadable(waiting, skip, phrase)
            one = waiting.popleft()
            name = names.pop(count)
            if isinstance(outcome, Failure):
                error = phrase(_named(outcome.error, {outcome.input: name}))
                yield _failed(one, error, outcome.error_type, skip)
                continue
            if words:
                outcome = outcome.words()
            known = {**outcome.metadata, **one.about}
            place = one.place if source.file is not None else ""
            yield Result(replace(outcome, metadata=known), place, one.about)
        yield from _unreadable(waiting, skip, phrase)


def _unreadable(waiting: deque[Input], skip: bool, phrase: Callable[[str], str]) -> Iterator[Result]:
    """Those at the front that have no text."""
    while waiting and waiting[0].text is None:
        one = waiting.popleft()
        yield _failed(one, phrase(one.problem or ""), "InputError", skip)


def _failed(one: Input, error: str, error_type: str, skip: bool) -> Result:
    if not skip:
        raise (OptionError if error_type == "OptionError" else InputError)(error)
    return Result(Failure(one.number, error, error_type), one.place, one.about)


def _named(message: str, names: Mapping[int, str]) -> str:
    """A message of the explainer, which counts inputs from 0, with an input's own name."""
    return re.sub(r"\binput (\d+)\b", lambda found: names.get(int(found[1]), found[0]), message, count=1)


@contextmanager
def _named_warnings(names: Mapping[int, str]) -> Iterator[None]:
    """Warnings name an input as people know it."""
    show = warnings.showwarning

    def show_named(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        text = _named(str(message), names)
        show(category(text) if isinstance(message, Warning) else text, category, *rest, **more)

    warnings.showwarning = show_named
    try:
        yield
    finally:
        warnings.showwarning = show


@dataclass(frozen=True)
class Outputs:
    """The files of the results: a page, an array, and lines; the last two also ``"-"`` for standard output.

    Attributes:
        details: whether the objects of the last two hold what is many times longer than all the rest.
    """

    html: str | None
    array: str | None
    lines: str | None
    details: bool = False

    def check(self, file: str | None) -> None:
        """Refuse places that cannot be written, or that are each other's or the input's, before any work is done.

        Raises:
            UsageError: for a file that is named twice, or options that do not fit.
            OutputError: for a place that cannot be written.
        """
        from ..result.file import check_place

        if self.array is not None and self.array.lower().endswith(_LINES_ENDINGS):
            raise click.UsageError(
                f"--json writes one array, and {self.array} is for an object on each line: use --jsonl"
            )
        if self.html == STANDARD_OUTPUT:
            raise click.UsageError("--html needs a file: standard output is for --json and --jsonl")
        if self.details and self.array is None and self.lines is None:
            raise click.UsageError("--details are written as JSON: give --json or --jsonl too")
        named = (("--html", self.html, "html"), ("--json", self.array, "json"), ("--jsonl", self.lines, "jsonl"))
        seen: dict[str, str] = {}
        for option, path, ending in named:
            if path is None:
                continue
            place = path if path == STANDARD_OUTPUT else os.path.realpath(path)
            if place in seen:
                raise click.UsageError(f"{seen[place]} and {option} are both {path}: give each a file of its own")
            seen[place] = option
            if place == STANDARD_OUTPUT:
                continue
            check_place(path, example=f"explanations.{ending}", grows=option == "--jsonl")
            if any(_is_input(one, file) for one in (path, partial_of(path))):
                raise click.UsageError(f"{option} {path} would overwrite the input: give it another file")

    @classmethod
    def named(cls, html: str | None, array: str | None, lines: str | None, *, details: bool) -> Outputs:
        """As they were given; a name that the system has for standard output is ``"-"``."""
        html, array, lines = (STANDARD_OUTPUT if path in _STANDARD_OUTPUTS else path for path in (html, array, lines))
        return cls(html, array, lines, details)

    @property
    def to_screen(self) -> bool:
        """Whether standard output is for a result."""
        return STANDARD_OUTPUT in (self.array, self.lines)


def _is_input(path: str, file: str | None) -> bool:
    """Whether this is the file that is read, by whatever name, or as standard input."""
    try:
        if file is None:
            return False
        there = os.fstat(sys.stdin.fileno()) if file == STANDARD_INPUT else os.stat(file)
        return os.path.samestat(os.stat(path), there)
    except (OSError, ValueError, AttributeError):
        return False


class _Count:
    """Counts what has been delivered, and says which inputs failed."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self.done = 0
        self.failed = 0
        self._say = say

    def add(self, result: Result) -> None:
        self.done += 1
        if isinstance(result.outcome, Failure):
            self.failed += 1
            self._say(result.outcome.error)

    def end(self, *, complete: bool) -> None:
        pass

    def kept(self) -> str | None:
        return None


def run(
    results: Iterator[Result],
    outputs: Outputs,
    *,
    tables: Tables | None,
    say: Callable[[str], object],
    keep: Callable[[str], object],
    total: int | None,
) -> None:
    """Deliver every result, and say what failed, or what is kept if something ends the run early.

    Args:
        results: of all inputs.
        outputs: the files.
        tables: prints them; ``None``: nothing is printed.
        say: tells the user something, on a line.
        keep: is told what is done and where it is, if the run ends early; to be said with the error.
        total: how many inputs there are, if it is known.

    Raises:
        InputError: if not a single input could be explained, or what ended the run early.
    """
    count = _Count(say)
    sinks: list[Sink] = [] if tables is None else [tables]
    if outputs.array is not None:
        sinks.append(JsonArray(outputs.array, details=outputs.details))
    if outputs.lines is not None:
        sinks.append(JsonLines(outputs.lines, details=outputs.details))
    page = None if outputs.html is None else Page(outputs.html)
    try:
        deliver(results, [*sinks, count], page)
    except BaseException:
        if count.done:
            files = [found for found in (one.kept() for one in (*sinks, page) if one is not None) if found is not None]
            whole = "" if total is None else f" of {total}"
            where = f", and kept in {' and '.join(files)}" if files else ""
            inputs = "input" if (count.done if total is None else total) == 1 else "inputs"
            keep(f"{count.done}{whole} {inputs} {'was' if count.done == 1 else 'were'} done before{where}")
        raise
    if count.failed == count.done:
        which = "the input could not" if count.done == 1 else f"none of the {count.done} inputs could"
        raise InputError(f"{which} be explained")
    if count.failed:
        say(f"{count.failed} of {count.done} inputs could not be explained")
