"""Which words make two models disagree? Here the embedded classifier, and the same with a part of its head turned off.

python examples/why_did_the_model_change.py
"""

from __future__ import annotations

import copy

import torch

from decompx_fast import DecompX, difference
from decompx_fast.summarize import contrast, summarize

TEXTS = [
    "A joy from start to finish.",
    "The acting is good, and the plot is bad.",
    "Bad jokes, and still good fun.",
    "Not a bad film, but not a good one.",
]


def main() -> None:
    """Compare one text word by word, and all of them together."""
    before = DecompX.demo()
    changed = copy.deepcopy(before.model)
    with torch.no_grad():
        changed.classifier.weight[:, ::7] = 0
    after = DecompX(changed, before.tokenizer)
    one = difference(after(TEXTS[1]), before(TEXTS[1]), target="POSITIVE", names=("after", "before"))
    for word, score, _ in one.words().top(3):
        print(f"{word:8} {score:+.3f}")
    a, b = (summarize(model.explain(TEXTS, bias="none")) for model in (after, before))
    for found in contrast(a, b, "POSITIVE", n=3, min_documents=2):
        print(f"{found.word:8} {found.first.mean:+.3f} instead of {found.second.mean:+.3f}")


if __name__ == "__main__":
    main()
