"""Synthetic tasks of which the cause of every answer is known by construction.

Three for decoders and an encoder alike, of each of which the answer is made from known tokens, while every other token
is irrelevant to it:

- copy: symbols, then which of them is asked for; the answer is that symbol.
- look up: pairs of a key and a value, then a key; the answer is its value.
- negate: triples of a name, "is" or "not", and a truth value, then a name; the answer is its truth value, or the
  opposite after "not". The causes are the two.

A decoder reads the text, and the questions after it, each followed by its answer; an encoder one question, and the text
after it.

Four plants for an encoder that classifies texts of two classes. The class is the one that the plant says in a given
part of the texts that are learnt, its strength, and the other one in the rest:

- word: a word of either class, in a text of words that say nothing.
- negation: such a word, and before it a word that says nothing or a negation, which turns the class round. Both are
  causes.
- pair: two of a few words, at two places; the class is whether they are the same. Both are causes.
- position: every word is of either class; the class is that of the word at one place, the same in all texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

#: Tokens: the first are "begin", "is" and "not"; then truth values; then symbols, which are values too; then keys and
#: names; then the numbers of places.
BEGIN, IS, NOT, FALSE, TRUE = range(5)
SYMBOLS, KEYS, PLACES = range(5, 13), range(13, 21), range(21, 29)
VOCABULARY = 29

#: In planted texts: words of the two classes, those of pairs, those that say nothing.
NEGATIVE, POSITIVE, PAIRED, NEUTRAL = range(5, 9), range(9, 13), range(13, 17), range(17, 29)
WORDS, PLACE = 12, 4


@dataclass(frozen=True)
class Batch:
    """Texts with what is asked of them.

    Attributes:
        ids: ``[b, i]``.
        places: where answers are read, ``[q]``.
        answers: those that follow from the causes, ``[b, q]``: tokens, or classes.
        causes: the places of the causes, ``[b, q, s]``.
        opposite: the answers whose logits are taken from those of the right ones, ``[b, q]``; ``None``: the mean of
            all.
        labels: what is learnt, ``[b, q]``, where that is not always the answer.
    """

    ids: Tensor
    places: Tensor
    answers: Tensor
    causes: Tensor
    opposite: Tensor | None = None
    labels: Tensor | None = None

    @property
    def taught(self) -> Tensor:
        return self.answers if self.labels is None else self.labels


#: From how many texts, how many questions of each, whether for an encoder, and a seed.
Draw = Callable[[int, int, bool, int], Batch]
_Questions = Callable[[Tensor, int, torch.Generator], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """A task by its name, how its texts are drawn, and how many outputs a classifier has."""

    name: str
    draw: Draw
    classes: int = VOCABULARY


def _without_repeats(among: range, b: int, n: int, generator: torch.Generator) -> Tensor:
    order = torch.rand(b, len(among), generator=generator).argsort(-1)[:, :n]
    return order + among.start


def _some(among: range, b: int, n: int, generator: torch.Generator) -> Tensor:
    return torch.randint(among.start, among.stop, (b, n), generator=generator)


def _copied(b: int, generator: torch.Generator) -> Tensor:
    return _some(SYMBOLS, b, len(PLACES), generator)


def _copy_questions(text: Tensor, q: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    places = torch.rand(text.shape, generator=generator).argsort(-1)[:, :q]
    return places + PLACES.start, text.gather(1, places), places[..., None]


def _pairs(b: int, generator: torch.Generator) -> Tensor:
    keys, values = _without_repeats(KEYS, b, 4, generator), _some(SYMBOLS, b, 4, generator)
    return torch.stack([keys, values], -1).flatten(1)


def _look_up_questions(text: Tensor, q: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    pair = torch.rand(len(text), text.shape[1] // 2, generator=generator).argsort(-1)[:, :q]
    return text.gather(1, 2 * pair), text.gather(1, 2 * pair + 1), 2 * pair[..., None] + 1


def _triples(b: int, generator: torch.Generator) -> Tensor:
    parts = _without_repeats(KEYS, b, 3, generator), _some(range(IS, NOT + 1), b, 3, generator)
    return torch.stack([*parts, _some(range(FALSE, TRUE + 1), b, 3, generator)], -1).flatten(1)


def _negate_questions(text: Tensor, q: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    triple = torch.rand(len(text), text.shape[1] // 3, generator=generator).argsort(-1)[:, :q]
    word, truth = text.gather(1, 3 * triple + 1), text.gather(1, 3 * triple + 2)
    answers = torch.where(word == NOT, FALSE + TRUE - truth, truth)
    return text.gather(1, 3 * triple), answers, torch.stack([3 * triple + 1, 3 * triple + 2], -1)


def _asked(content: Callable[[int, torch.Generator], Tensor], questions: _Questions, two_answers: bool = False) -> Draw:
    def draw(count: int, q: int, encoder: bool, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        text = content(count, generator)
        asking, answers, causes = questions(text, 1 if encoder else q, generator)
        opposite = FALSE + TRUE - answers if two_answers else None
        if encoder:
            return Batch(torch.cat([asking, text], 1), torch.tensor([0]), answers, causes + 1, opposite)
        begin = torch.full((count, 1), BEGIN)
        ids = torch.cat([begin, text, torch.stack([asking, answers], -1).flatten(1)[:, :-1]], 1)
        return Batch(ids, text.shape[1] + 1 + 2 * torch.arange(answers.shape[1]), answers, causes + 1, opposite)

    return draw


TASKS = (
    Task("copy", _asked(_copied, _copy_questions)),
    Task("look up", _asked(_pairs, _look_up_questions)),
    Task("negate", _asked(_triples, _negate_questions, two_answers=True)),
)

#: From texts that say nothing ``[b, i]`` and classes ``[b]`` to the places of the causes ``[b, s]``; writes the plant
#: into the texts.
_Plant = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def _of_class(classes: Tensor, generator: torch.Generator) -> Tensor:
    """A word of each class, ``[b, 1]``."""
    words = _some(range(len(NEGATIVE)), len(classes), 1, generator)
    return words + torch.where(classes == 1, POSITIVE.start, NEGATIVE.start)[:, None]


def _word(text: Tensor, classes: Tensor, generator: torch.Generator) -> Tensor:
    places = _some(range(text.shape[1]), len(text), 1, generator)
    text.scatter_(1, places, _of_class(classes, generator))
    return places


def _negation(text: Tensor, classes: Tensor, generator: torch.Generator) -> Tensor:
    places = _some(range(1, text.shape[1]), len(text), 1, generator)
    words = _some(range(IS, NOT + 1), len(text), 1, generator)
    text.scatter_(1, places - 1, words)
    text.scatter_(1, places, _of_class(torch.where(words[:, 0] == NOT, 1 - classes, classes), generator))
    return torch.cat([places - 1, places], 1)


def _pair(text: Tensor, classes: Tensor, generator: torch.Generator) -> Tensor:
    places = _without_repeats(range(text.shape[1]), len(text), 2, generator)
    first, other = _without_repeats(PAIRED, len(text), 2, generator).unbind(1)
    text.scatter_(1, places, torch.stack([first, torch.where(classes == 1, first, other)], 1))
    return places


def _position(text: Tensor, classes: Tensor, generator: torch.Generator) -> Tensor:
    text.copy_(_some(range(NEGATIVE.start, POSITIVE.stop), *text.shape, generator))
    places = torch.full((len(text), 1), PLACE)
    text.scatter_(1, places, _of_class(classes, generator))
    return places


def _planted(plant: _Plant, strength: float) -> Draw:
    def draw(count: int, q: int, encoder: bool, seed: int) -> Batch:
        if not encoder:
            raise ValueError("plants are for encoders: a decoder has none of them")
        generator = torch.Generator().manual_seed(seed)
        text = _some(NEUTRAL, count, WORDS, generator)
        classes = torch.randint(2, (count,), generator=generator)
        causes = plant(text, classes, generator)
        answers = classes[:, None]
        labels = torch.where(torch.rand(count, 1, generator=generator) < strength, answers, 1 - answers)
        ids = torch.cat([torch.full((count, 1), BEGIN), text], 1)
        return Batch(ids, torch.tensor([0]), answers, causes[:, None] + 1, 1 - answers, labels)

    return draw


def plants(strength: float) -> tuple[Task, ...]:
    """The four plants with the part of the texts that are of the class that they say."""
    each = {"word": _word, "negation": _negation, "pair": _pair, "position": _position}
    return tuple(Task(name, _planted(plant, strength), classes=2) for name, plant in each.items())
