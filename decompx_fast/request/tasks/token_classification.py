"""Token classification: each word that is given another label than the background's, and entities of such words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InputError, OptionError, shown
from ...result.readings import Entity, Prediction
from ...result.words import TokenGroup
from ..encoded import Encoded
from .columns import (
    Asked,
    Column,
    Direction,
    Outputs,
    Question,
    Term,
    check_count,
    directions,
    index_of,
    with_own_names,
)
from .places import name_of_token, name_of_word, resolve_places, words_of

#: The label of words that are no entity, in every scheme that has one.
BACKGROUND = ("O",)


@dataclass(frozen=True)
class _Word:
    """A word with what the model says of it at its first token."""

    group: TokenGroup
    name: str
    label: int
    score: float

    @property
    def first(self) -> int:
        return self.group.positions[0]


class TokenClassification:
    """Words are read at their first token, as the models are trained.

    Args:
        labels: names of all labels.
    """

    takes: tuple[str, ...] = ("targets", "at", "top_k", "ignore_labels")

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)

    def check(self, question: Question, count: int) -> None:
        """Refuse labels that do not exist, and a ``top_k`` that is no number.

        Raises:
            OptionError: names the argument.
        """
        self._ignored(question.ignore_labels)
        if question.top_k is not None:
            check_count("top_k", question.top_k)
        if question.targets is not None:
            directions(question.targets, self._label, self._name)

    def notice(self, question: Question) -> str | None:
        """That nothing is told apart from names, where labels have no background."""
        if question.at is not None or question.ignore_labels is not None or self._ignored(None):
            return None
        return (
            f"no label of this model is {BACKGROUND[0]!r} ({_listed(self.labels)}), so each word is explained, and "
            "neighbours with one label are an entity: name the label of words that are none by ignore_labels= (an "
            "empty list says that there is none)"
        )

    def reads(self, encoded: Encoded, question: Question) -> Sequence[int]:
        """The first token of each word that is asked for."""
        return [group.positions[0] for group, _ in self._groups(encoded, question.at)]

    def keeps(self, question: Question) -> int | None:
        """All labels."""
        return None

    def gives(self, encoded: Encoded, question: Question) -> Sequence[int] | None:
        """None."""
        return None

    def ask(self, encoded: Encoded, outputs: Outputs, question: Question) -> Asked:
        """Columns of the words that are asked for; without ``at``, of those that are given a label.

        If there are none, the column is the label that comes nearest: the likeliest of all but the background's.

        Raises:
            InputError: for a label that is not there, or a place that is none.
        """
        ignored = self._ignored(question.ignore_labels)
        at_tokens = question.at is not None
        words = self._read(self._groups(encoded, question.at), outputs)
        chosen = words if at_tokens else [word for word in words if word.label not in ignored]
        columns: list[Column] = []
        if chosen:
            for word in chosen:
                columns += [one.at(word.first, word.name) for one in self._directions(word, outputs, question)]
            entities = _entities(words, columns, self.labels, ignored, encoded)
        else:
            word, label = self._nearest(words, outputs, ignored)
            asked = directions(question.targets, self._label, self._name) if question.targets is not None else []
            asked = asked or [Direction(self._name(label), {label: 1.0})]
            columns, entities = [one.at(word.first, word.name) for one in asked], ()
        predictions = tuple(Prediction(self._name(w.label), w.score, w.first, w.label, w.name) for w in words)
        return Asked(with_own_names(columns), entities=entities, predictions=predictions)

    def _groups(self, encoded: Encoded, at: Any) -> list[tuple[TokenGroup, str]]:
        """The words with their names, or the single tokens where words are not known, that ``at`` names; or all."""
        if at is None:
            return [(group, name_of_word(encoded, group)) for group in words_of(encoded)]
        wanted = dict.fromkeys(token for place in resolve_places(at, encoded) for token in place.tokens)
        if not any(encoded.spans) and encoded.words is None:
            return [(TokenGroup((token,), None), name_of_token(encoded, token)) for token in wanted]
        named = [group for group in words_of(encoded) if not wanted.keys().isdisjoint(group.positions)]
        return [(group, name_of_word(encoded, group)) for group in named]

    def _read(self, groups: Sequence[tuple[TokenGroup, str]], outputs: Outputs) -> list[_Word]:
        probabilities = outputs.rows([group.positions[0] for group, _ in groups]).double().softmax(-1)
        scores, labels = probabilities.max(-1)
        return [
            _Word(group, name, label, score)
            for (group, name), label, score in zip(groups, labels.tolist(), scores.tolist(), strict=True)
        ]

    def _directions(self, word: _Word, outputs: Outputs, question: Question) -> list[Direction]:
        if question.targets is not None:
            return directions(question.targets, self._label, self._name)
        if question.top_k is None:
            return [Direction(self._name(word.label), {word.label: 1.0})]
        best = outputs.rows([word.first])[0].topk(min(question.top_k, outputs.count)).indices.tolist()
        return [Direction(self._name(label), {label: 1.0}) for label in best]

    def _nearest(self, words: Sequence[_Word], outputs: Outputs, ignored: set[int]) -> tuple[_Word, int]:
        """Where the model comes nearest to a label that is not ignored, and which."""
        probabilities = outputs.rows([word.first for word in words]).double().softmax(-1)
        probabilities[:, list(ignored)] = -1.0
        place, label = divmod(int(probabilities.argmax()), probabilities.shape[1])
        return words[place], label

    def _ignored(self, names: Sequence[str] | None) -> set[int]:
        if names is None:
            return {n for n, label in enumerate(self.labels) if label in BACKGROUND}
        if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
            raise OptionError(f"ignore_labels={names!r}: give a list of labels, such as [{names!r}]")
        found = {self._label(name) for name in names}
        if len(found) == len(self.labels):
            raise OptionError("ignore_labels holds every label of the model: leave out those to be explained")
        return found

    def _name(self, label: int) -> str:
        return self.labels[label]

    def _label(self, key: Any) -> int:
        if isinstance(key, str):
            if key in self.labels:
                return self.labels.index(key)
            near = difflib.get_close_matches(key, self.labels, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError(f"there is no label {key!r}: {hint}labels are {_listed(self.labels)}")
        index = index_of(key)
        if index is None:
            raise InputError(f"{shown(key)} is no label: use a label's name or index, or in targets a mapping of these")
        if not 0 <= index < len(self.labels):
            raise OptionError(f"there is no label {index}: labels are {_listed(self.labels)}")
        return index


def tag_of(label: str) -> tuple[str, str]:
    """``("B", "PER")`` of ``B-PER``; a label without a scheme goes on what precedes it, as ``("I", label)``."""
    return (label[0], label[2:]) if label.startswith(("B-", "I-")) else ("I", label)


def _entities(
    words: Sequence[_Word], columns: Sequence[Column], labels: Sequence[str], ignored: set[int], encoded: Encoded
) -> tuple[Entity, ...]:
    """Words that follow one another with one tag and no new beginning, as transformers' pipeline groups them."""
    groups: list[list[_Word]] = []
    order = {group.positions[0]: n for n, group in enumerate(words_of(encoded))} if _knows_words(encoded) else {}
    for word in words:
        if word.label in ignored:
            groups.append([])
            continue
        begins, tag = tag_of(labels[word.label])
        last = groups[-1][-1] if groups and groups[-1] else None
        goes_on = last is not None and begins == "I" and tag == tag_of(labels[last.label])[1]
        if last is not None and goes_on and _follows(last, word, order):
            groups[-1].append(word)
        else:
            groups.append([word])
    # Of a label by itself: a multiple of it is no part of the sum that explains an entity.
    plain = {only[0][0]: n for n, c in enumerate(columns) if len(only := [*c.terms.items()]) == 1 and only[0][1] == 1}
    return tuple(_entity(group, plain, labels, encoded) for group in groups if group)


def _follows(last: _Word, word: _Word, order: dict[int, int]) -> bool:
    """Whether one is the next word after the other, in the same text."""
    if order and order[word.first] != order[last.first] + 1:
        return False
    spans = last.group.span, word.group.span
    return spans[0] is None or spans[1] is None or spans[0][0] == spans[1][0]


def _entity(words: Sequence[_Word], plain: Mapping[Term, int], labels: Sequence[str], encoded: Encoded) -> Entity:
    terms = [Term(word.first, word.label) for word in words]
    found = tuple(sorted(plain[term] for term in terms if term in plain))
    first, last = words[0].group.span, words[-1].group.span
    score = sum(word.score for word in words) / len(words)
    group = labels[words[0].label].split("-", 1)[-1]
    if first is None or last is None or not encoded.texts:
        return Entity(group, " ".join(word.name for word in words), None, None, score, found)
    start, end = first[1], last[2]
    return Entity(group, encoded.texts[first[0]][start:end], start, end, score, found, first[0])


def _knows_words(encoded: Encoded) -> bool:
    return encoded.words is not None or any(encoded.spans)


def _listed(labels: Sequence[str]) -> str:
    known = ", ".join(f"{label!r} ({n})" for n, label in enumerate(labels[:12]))
    return known + (f" and {len(labels) - 12} more" if len(labels) > 12 else "")
