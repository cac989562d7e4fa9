"""The data sets that the field compares on, by their names: from a hub, or from files of the format they come in.

``NAME`` loads the rows through the ``datasets`` package; ``NAME:PATH`` reads the same rows from a file (Parquet or
JSONL, as ``Dataset.to_parquet`` and ``to_json`` write them), of ERASER's sets also from a folder of its release:
``docs.jsonl`` or ``docs/``, and ``test.jsonl``.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, shown
from ..optional import import_optional
from ..request.tables import format_of, read_rows
from .plausibility import Mark


class Example(NamedTuple):
    """A row: a text or a pair, the name of its class, and what people marked."""

    text: str | tuple[str, str]
    label: str
    marks: tuple[Mark, ...] | None = None


Values = Mapping[str, Any]


@dataclass(frozen=True)
class Corpus:
    """A published data set.

    Attributes:
        repository: of the hub.
        config: of the repository, where it has several.
        split: the one that is read.
        read: a row of it.
        folders: whether ERASER released it, as a folder.
    """

    repository: str
    config: str | None
    split: str
    read: Callable[[Values], Example]
    folders: bool = False


def _texts(columns: Sequence[str], labels: Sequence[str]) -> Callable[[Values], Example]:
    """Rows with a text, or the two of a pair, and the index of a class."""

    def read(row: Values) -> Example:
        parts = [_text(row[column]) for column in columns]
        return Example(parts[0] if len(parts) == 1 else (parts[0], parts[1]), _name(row["label"], labels))

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shown(value)} is no text")
    return value


def _name(label: Any, names: Sequence[str]) -> str:
    """The name of a class by its index, or as it stands."""
    if label in names:
        return str(label)
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < len(names):
        raise ValueError(f"the label {shown(label)} is none of {', '.join(names)}")
    return names[label]


def _hatexplain(row: Values) -> Example:
    """The words of a post, and those that at least half of its annotators marked; the class that most of them chose."""
    words, votes = list(row["post_tokens"]), row["annotators"]
    found = votes["label"] if isinstance(votes, Mapping) else [one["label"] for one in votes]
    names = [_name(label, ("hatespeech", "normal", "offensive")) for label in found]
    label = max(names, key=names.count)
    rationales = [list(one) for one in row["rationales"]]
    agreed = [len(rationales) > 0 and 2 * sum(column) >= len(rationales) for column in zip(*rationales, strict=True)]
    return Example(_text(" ".join(words)), label, _word_marks(words, agreed) if any(agreed) else None)


def _word_marks(words: Sequence[str], marked: Sequence[object], segment: int = 0) -> tuple[Mark, ...]:
    """The characters of marked words of a text in which single spaces stand between words."""
    ends = itertools.accumulate((len(word) + 1 for word in words), initial=0)
    return tuple(
        (segment, start, start + len(word)) for word, start, flag in zip(words, ends, marked, strict=False) if flag
    )


def _movies(row: Values) -> Example:
    """A review, and the passages that people marked, which stand in it."""
    review = _text(row["review"])
    places = [(review.find(passage), len(passage)) for passage in row["evidences"]]
    marks = tuple((0, start, start + length) for start, length in places if start >= 0 and length)
    return Example(review, _name(row["label"], ("NEG", "POS")), marks or None)


def _esnli(row: Values) -> Example:
    """A pair; of the authors' own files also the words between asterisks (``Sentence1_marked_1``)."""
    names = ("entailment", "neutral", "contradiction")
    if "gold_label" not in row:
        return _texts(("premise", "hypothesis"), names)(row)
    texts: list[str] = []
    marks: list[Mark] = []
    for segment, column in enumerate(("Sentence1_marked_1", "Sentence2_marked_1")):
        text, at = "", None
        for part in _text(row[column]).split("*"):
            if at is not None and part:
                marks.append((segment, len(text), len(text) + len(part)))
            text, at = text + part, None if at is not None else len(text)
        texts.append(text)
    return Example((texts[0], texts[1]), _name(row["gold_label"], names), tuple(marks) or None)


#: By the names that people use.
CORPORA = {
    "sst2": Corpus("stanfordnlp/sst2", None, "validation", _texts(["sentence"], ("negative", "positive"))),
    "mnli": Corpus(
        "nyu-mll/glue",
        "mnli",
        "validation_matched",
        _texts(("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
    ),
    "qnli": Corpus(
        "nyu-mll/glue", "qnli", "validation", _texts(("question", "sentence"), ("entailment", "not_entailment"))
    ),
    "hatexplain": Corpus("Hate-speech-CNERG/hatexplain", None, "test", _hatexplain),
    "movies": Corpus("eraser-benchmark/movie_rationales", None, "test", _movies, folders=True),
    "esnli": Corpus("esnli/esnli", None, "test", _esnli, folders=True),
}


def corpus_of(data: str) -> tuple[str, str | None] | None:
    """The name of a published data set and the path of its files, where ``data`` is ``NAME`` or ``NAME:PATH``."""
    name, colon, path = data.partition(":")
    if name not in CORPORA or (colon and not path) or (not colon and os.path.exists(name)):
        return None
    return name, path or None


def read_corpus(name: str, path: str | None, limit: int | None) -> list[tuple[str, Example]]:
    """The examples of a data set with their places.

    Raises:
        InputError: for rows of another form, or a hub that cannot be reached.
        MissingPackageError: for a hub without the ``datasets`` package.
    """
    corpus = CORPORA[name]
    if path is None:
        rows: Iterator[tuple[str, Values]] = _from_hub(name, corpus)
    elif os.path.isdir(path) and corpus.folders:
        rows = _from_eraser(Path(path), corpus)
    else:
        rows = _from_file(path)
    read = _eraser if path is not None and os.path.isdir(path) else corpus.read
    found = []
    for place, values in itertools.islice(rows, limit):
        try:
            found.append((place, read(values)))
        except (KeyError, ValueError, TypeError, AttributeError, OSError) as error:
            what = f"no column {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{place} is no row of {name}: {what}") from error
    if not found:
        raise InputError(f"{path or name} holds no rows: there is nothing to evaluate")
    return found


def _from_file(path: str) -> Iterator[tuple[str, Values]]:
    for row in read_rows(path, format_of(path)):
        if row.problem is not None:
            raise InputError(row.problem)
        yield row.place, row.values


def _from_hub(name: str, corpus: Corpus) -> Iterator[tuple[str, Values]]:
    datasets = import_optional("datasets", f"the data set {name!r}")
    try:
        found = datasets.load_dataset(corpus.repository, corpus.config, split=corpus.split)
    except Exception as error:
        raise InputError(
            f"{name} could not be loaded from {corpus.repository} ({type(error).__name__}: {error}): connect to a hub, "
            f"or give its file as {name}:PATH"
        ) from error
    for number, row in enumerate(found):
        yield f"row {number} of {name}", row


class _Documents(dict[str, str]):
    """The documents of a release by their names; a file of its own is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        if (folder / "docs.jsonl").exists():
            rows = (row for _, row in _from_file(str(folder / "docs.jsonl")))
            self.update((str(row.get("docid")), str(row.get("document"))) for row in rows)

    def __missing__(self, name: str) -> str:
        return (self.folder / "docs" / name).read_text(encoding="utf-8")


def _from_eraser(folder: Path, corpus: Corpus) -> Iterator[tuple[str, Values]]:
    """The rows of ERASER's release: an annotation, with the documents of the release."""
    documents = _Documents(folder)
    for place, row in _from_file(str(folder / f"{corpus.split}.jsonl")):
        yield place, {**row, "documents": documents}


def _eraser(row: Values) -> Example:
    """An annotation of a review, whose name it has, or of a premise and a hypothesis.

    The tokens of ERASER's documents are what stands between white space.
    """
    own, documents = str(row["annotation_id"]), row["documents"]
    names = [name for part in ("premise", "hypothesis") if (name := f"{own}_{part}") in documents] or [own]
    words = {name: _text(documents[name]).split() for name in names}
    spans = [span for group in row["evidences"] for span in group]
    texts: list[str] = []
    marks: list[Mark] = []
    for segment, (name, tokens) in enumerate(words.items()):
        flags = [False] * len(tokens)
        for span in spans:
            if span["docid"] == name:
                flags[span["start_token"] : span["end_token"]] = [True] * (span["end_token"] - span["start_token"])
        texts.append(_text(" ".join(tokens)))
        marks += _word_marks(tokens, flags, segment)
    text = texts[0] if len(texts) == 1 else (texts[0], texts[1])
    return Example(text, str(row["classification"]), tuple(marks) or None)
