"""The texts of an evaluation, and their labels: read from a file, or the held-out movie snippets."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, OptionError, shown
from ..request.tables import ENDINGS, Columns, Row, check_column, format_of, read_rows
from .corpora import CORPORA, corpus_of, read_corpus
from .labels import Labelled, resolve_labels
from .plausibility import Mark
from .snippets import OTHER_FILES, clear_snippets, heldout_snippets

#: Stands for the held-out movie snippets, in the place of a file.
SNIPPETS = "snippets"

#: The column of labels where none is given, if it is there.
LABEL_COLUMN = "label"

#: The column of what people marked, if it is there.
RATIONALE_COLUMN = "rationale"


@dataclass(frozen=True)
class Dataset:
    """Texts and what is known of them.

    Attributes:
        name: of the file.
        texts: a text or a pair of texts each.
        labels: the index of the right class of each, or ``None`` if they are not known.
        places: where in the file each is, for messages.
        rationales: what people marked of each, ``(segment, start, end)`` in characters, the segment 1 for the second
            text of a pair; ``None`` for a text without marks, and for all if none has one.
    """

    name: str
    texts: tuple[str | tuple[str, str], ...]
    labels: tuple[int, ...] | None
    places: tuple[str, ...]
    rationales: tuple[tuple[Mark, ...] | None, ...] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def is_pairs(self) -> bool:
        """Whether each is a pair of texts."""
        return isinstance(self.texts[0], tuple)

    @property
    def sha256(self) -> str:
        """A digest of the texts, the labels and the rationales."""
        known = [self.texts, self.labels, self.rationales]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def read_dataset(
    path: str | os.PathLike[str],
    labels: Sequence[str],
    *,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    label_map: Mapping[Any, str | int] | None = None,
    limit: int | None = None,
) -> Dataset:
    """Read texts and labels.

    Args:
        path: a file whose name ends in ``.csv``, ``.tsv`` (tabs between columns, quotes are ordinary characters),
            ``.jsonl`` (an object on each line) or ``.parquet``; or ``"snippets"``: the held-out movie snippets, which
            are fetched once; ``"product-snippets"``, ``"tweet-snippets"``, ``"editorial-snippets"``: other rated
            sentences that are fetched with them; or a name of :data:`decompx_fast.evaluation.corpora.CORPORA`
            (``"sst2"``, ``"mnli"``, ``"qnli"``, ``"hatexplain"``, ``"movies"``, ``"esnli"``), from a hub, or with its
            file or folder after a colon.
        labels: the names of the model's classes. The labels in the data are these names; where none is, and all are
            numbers that can be, they are indices.
        text_column: the column of the texts; ``None``: ``text``, or else ``sentence``.
        pair_column: the column of the second texts, if they are pairs.
        label_column: the column of the labels; ``None``: ``label`` if there is one, otherwise labels are not known.
        label_map: the class, by name or index, of each label in the data, where they have names of their own.
        limit: read so many rows at most.

    Raises:
        OptionError: for a column that is not there, a limit below 1, or a map to a class that does not exist.
        InputError: for a file or a row that cannot be used, with its line.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise OptionError(f"limit={limit!r}: use a whole number from 1, or None for all rows")
    name = _name(path)
    corpus, is_snippets = corpus_of(name), name in (SNIPPETS, *OTHER_FILES) and not os.path.exists(name)
    if corpus or is_snippets:
        if text_column or pair_column or label_column or (label_map and is_snippets):
            raise OptionError(f"{name!r} has no columns to choose from: leave the column options out")
        if corpus:
            return _read_corpus(*corpus, labels, label_map, limit)
        return _read_snippets(name, labels, limit)
    rows = read_rows(name, format_of(name))
    first = next(rows, None)
    if first is None:
        raise InputError(f"{name} holds no rows: there is nothing to evaluate")
    if first.problem is not None:
        raise InputError(first.problem)
    columns = Columns.choose(first, text=text_column, pair=pair_column)
    label_column = _label_column(first, label_column, label_map)
    texts: list[str | tuple[str, str]] = []
    places: list[str] = []
    found: list[Labelled] = []
    marks: list[tuple[Mark, ...] | None] = []
    for row in itertools.islice(itertools.chain([first], rows), limit):
        texts.append(columns.read(row))
        places.append(row.place)
        marks.append(_marks(row, texts[-1]))
        if label_column is not None:
            found.append((row.place, row.values.get(label_column)))
    known = None if label_column is None else tuple(resolve_labels(found, labels, label_map))
    rationales = tuple(marks) if any(marks) else None
    return Dataset(os.path.basename(name), tuple(texts), known, tuple(places), rationales)


def _name(path: str | os.PathLike[str]) -> str:
    """The name of a file of rows."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(
            f"data is a {type(path).__name__}: give the name of a file, such as one that DataFrame.to_csv or "
            "to_parquet wrote"
        )
    name = os.fspath(path)
    known = (SNIPPETS, *OTHER_FILES, *CORPORA)
    if name not in known and corpus_of(name) is None and os.path.splitext(name)[1].lower() not in ENDINGS:
        raise InputError(
            f"data={name!r} must end in .csv, .tsv, .jsonl or .parquet, or be {SNIPPETS!r} or one of "
            f"{', '.join(known[1:])}"
        )
    return name


def _label_column(first: Row, wanted: str | None, label_map: object) -> str | None:
    if wanted is not None:
        check_column(first, wanted, "label_column")
    elif LABEL_COLUMN in first.values:
        wanted = LABEL_COLUMN
    elif label_map is not None:
        raise OptionError(f"label_map is for labels, and {first.file} has no column 'label': say it by label_column")
    return wanted


def _marks(row: Row, text: str | tuple[str, str]) -> tuple[Mark, ...] | None:
    """What people marked of a text: a list, or JSON, of ``[start, end]``, of a pair ``[segment, start, end]``."""
    value, parts = row.values.get(RATIONALE_COLUMN), (text,) if isinstance(text, str) else text
    try:
        spans = json.loads(value) if isinstance(value, str) and value.strip() else value or ()
        whole = [(0, *span) if len(parts) == 1 else span for span in spans]
        marks = tuple((int(segment), int(start), int(end)) for segment, start, end in whole)
        if all(start < end <= len(parts[segment]) and min(segment, start) >= 0 for segment, start, end in marks):
            return marks or None
    except (ValueError, TypeError, IndexError):
        pass
    raise InputError(
        f"{row.place} has {shown(value)} in the column {RATIONALE_COLUMN!r}: give [start, end] for each marked part, "
        "in characters of the text, or [segment, start, end] of a pair, or leave the cell empty"
    )


def _read_snippets(name: str, labels: Sequence[str], limit: int | None) -> Dataset:
    snippets = (heldout_snippets() if name == SNIPPETS else clear_snippets(name))[:limit]
    if len(labels) != 2:
        raise InputError(
            f"the snippets are negative or positive, and the model has {len(labels)} classes: use a sentiment "
            "classifier with the classes negative and positive, in this order"
        )
    places = tuple(f"snippet {snippet.id}" for snippet in snippets)
    return Dataset(name, tuple(s.text for s in snippets), tuple(s.label for s in snippets), places)


def _read_corpus(
    name: str, path: str | None, labels: Sequence[str], label_map: Mapping[Any, str | int] | None, limit: int | None
) -> Dataset:
    rows = read_corpus(name, path, limit)
    places, examples = zip(*rows, strict=True)
    known = resolve_labels([(place, example.label) for place, example in rows], labels, label_map)
    marks = tuple(example.marks for example in examples)
    texts = tuple(example.text for example in examples)
    return Dataset(name, texts, tuple(known), places, marks if any(marks) else None)
