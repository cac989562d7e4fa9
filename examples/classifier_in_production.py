"""Explain every prediction of a classifier, with the words that speak for it: one line of JSON for each text.

python examples/classifier_in_production.py < reviews.txt
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator

from decompx_fast import DecompX


def explained(texts: Iterable[str]) -> Iterator[dict]:
    """What the model says of each text, and by which words."""
    explainer = DecompX.demo()
    for one in explainer.explain_iter(texts, bias="none", on_error="skip"):
        if not one.ok:
            yield {"error": one.error}
            continue
        words = [(word, round(score, 3)) for word, score, _ in one.words().top(3, by="positive")]
        yield {"label": one.predicted_label, "because": words, "error": one.completeness_error}


def main() -> None:
    """Read lines from standard input."""
    for result in explained(line.strip() for line in sys.stdin if line.strip()):
        print(json.dumps(result, ensure_ascii=False))


if __name__ == "__main__":
    main()
