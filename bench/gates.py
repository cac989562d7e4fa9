"""Which rule for gates is the most faithful, beside other methods: writes a table.

    python bench/gates.py --work FOLDER [--count 240] [--limit SECONDS] [--model FOLDER] [--out FILE]

The embedded language model reads texts that people wrote (movie reviews, editorials, product reviews) up to their last
four tokens, which are the output that is explained. Then the most, or the least, important 10 to 50 % of the prompt's
tokens are taken out, and the log-probability of the output is looked at. What is done is kept in the folder, so that a
run that ended early goes on where it was.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from causal_methods import (
    Said,
    Scores,
    attention_rollout,
    attn_lrp,
    decompx,
    frozen,
    gradient_x_input,
    integrated_gradients,
    log_probabilities,
    occlusion,
)
from gate_rules import with_rule
from torch import nn

from decompx_fast import DecompX
from decompx_fast.evaluation.bootstrap import Estimate, bootstrap_means, estimate
from decompx_fast.evaluation.masking import count_of, importance_order
from decompx_fast.evaluation.snippets import kept_snippets
from decompx_fast.result.file import atomic_write

#: Files of rated texts, and what they are.
SOURCES = {
    "movieReviewSnippets_GroundTruth.txt": "movie reviews",
    "nytEditorialSnippets_GroundTruth.txt": "editorials",
    "amazonReviewSnippets_GroundTruth.txt": "product reviews",
}

#: Tokens of the output, and of a text as a whole, where it is cut; how many texts are explained together.
OUTPUT, LENGTH = 4, 24
TOGETHER = 8
PERCENTS = (10, 25, 50)
SEED = 0

DEFAULT = "DecompX, half"


class Method(NamedTuple):
    """How scores are computed, whether they are signed, and whether by the model that judges, in half precision: for
    methods that run the model many times."""

    score: Scores
    signed: bool = True
    by_judge: bool = False


METHODS = {
    DEFAULT: Method(decompx(gate="half")),
    "DecompX, value": Method(decompx(gate="value")),
    "DecompX, path": Method(with_rule("path")),
    "AttnLRP": Method(attn_lrp),
    "gradient x input": Method(gradient_x_input),
    "integrated gradients": Method(integrated_gradients, by_judge=True),
    "attention rollout": Method(attention_rollout, signed=False),
    "occlusion": Method(occlusion, by_judge=True),
    "random": Method(lambda model, said: torch.zeros(said.fed.shape, dtype=torch.float64)),
}


def texts(count: int) -> list[tuple[str, str]]:
    """As many of each source, drawn once and for all: ``(source, text)``."""
    found = []
    for file, name in SOURCES.items():
        lines = kept_snippets(file).decode("utf-8", "replace").split("\n")
        some = sorted({line.rstrip("\r").split("\t", 2)[2].strip() for line in lines if line.count("\t") >= 2})
        random.Random(SEED).shuffle(some)
        found.append([(name, text) for text in some])
    return [one for together in zip(*found, strict=False) for one in together][: 20 * count]


def prompts(tokenizer: Any, count: int) -> list[tuple[str, list[int]]]:
    """Texts that are long enough, cut to the same length: their sources and token ids."""
    found: list[tuple[str, list[int]]] = []
    for source, text in texts(count):
        ids = tokenizer(text)["input_ids"][:LENGTH]
        if len(ids) == LENGTH and sum(one == source for one, _ in found) < -(-count // len(SOURCES)):
            found.append((source, ids))
        if len(found) == count:
            break
    return found


def said_of(ids: Sequence[Sequence[int]]) -> Said:
    texts_ids = torch.tensor(ids)
    return Said(texts_ids[:, :-OUTPUT], texts_ids[:, -OUTPUT:])


def measure(
    model: nn.Module, judge: nn.Module, ids: Sequence[Sequence[int]], names: Sequence[str]
) -> list[dict[str, dict[str, Any]]]:
    """Of each text and method what is lost, ``[level]``, while the most and the least important tokens are taken out:
    in what ``judge`` says, which is ``model`` in a precision that is enough for that."""
    found: list[dict[str, dict[str, Any]]] = [{} for _ in ids]
    orders: list[dict[str, list[int]]] = [{} for _ in ids]
    n = LENGTH - OUTPUT
    for name in names:
        score, signed, by_judge = METHODS[name]
        scores = score(judge if by_judge else model, said_of(ids))[:, :n].double()
        for row, text in enumerate(ids):
            digest = hashlib.sha256(repr(text).encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            orders[row][name] = importance_order(scores[row], [False] * n, signed=signed, generator=generator)
            found[row][name] = {}
    for text, of_text, own in zip(ids, orders, found, strict=True):
        parts = {name: [_left(order, p) for p in PERCENTS] for name, order in of_text.items()}
        others = {name: [_left(order[::-1], p) for p in PERCENTS] for name, order in of_text.items()}
        whole = tuple(range(n))
        asked = {one for some in (parts, others) for each in some.values() for one in each}
        values = judged(judge, text, {whole, *asked})
        for name in names:
            own[name]["most"] = [values[whole] - values[one] for one in parts[name]]
            own[name]["least"] = [values[whole] - values[one] for one in others[name]]
    return found


def _left(order: Sequence[int], percent: int) -> tuple[int, ...]:
    """The places that are left when the first are taken out."""
    return tuple(sorted(order[count_of(percent, len(order)) :]))


def judged(judge: nn.Module, ids: Sequence[int], parts: set[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
    """The log-probability of a text's output after each part of its prompt."""
    fed, output = torch.tensor(ids[:-1]), torch.tensor(ids[-OUTPUT:])
    tail = range(LENGTH - OUTPUT, LENGTH - 1)
    places = sorted(parts)
    found = log_probabilities(judge, [fed[[*one, *tail]] for one in places], output)
    return dict(zip(places, found.tolist(), strict=True))


def run(
    model: nn.Module, asked: Sequence[tuple[str, list[int]]], names: Sequence[str], work: Path, limit_s: float
) -> bool:
    """Measure what is not in the folder yet; whether all is there in the end."""
    work.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    judge = copy.deepcopy(model).to(torch.bfloat16)  # a quarter of the time; its rounding is the same for all methods
    with frozen(model), frozen(judge):
        for first in range(0, len(asked), TOGETHER):
            some = asked[first : first + TOGETHER]
            paths = [work / f"{number:04d}.json" for number in range(first, first + len(some))]
            known = [json.loads(path.read_text()) if path.is_file() else {"methods": {}} for path in paths]
            left = [name for name in names if any(name not in one["methods"] for one in known)]
            if not left:
                continue
            if time.monotonic() - begun > limit_s:
                return False
            found = measure(model, judge, [ids for _, ids in some], left)
            for path, one, (source, _), more in zip(paths, known, some, found, strict=True):
                text = json.dumps({"source": source, "methods": one["methods"] | more})
                atomic_write(path, lambda temporary, text=text: Path(temporary).write_text(text))
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where what is done is kept")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gates.md")
    parser.add_argument("--count", type=int, default=240)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no texts are begun")
    parser.add_argument("--model", help="a folder, in the place of the embedded model")
    given = parser.parse_args()
    explainer = DecompX.demo_lm() if given.model is None else DecompX.from_pretrained(given.model)
    asked = prompts(explainer.tokenizer, given.count)
    done = run(explainer.model, asked, given.methods, given.work, given.limit)
    rows = [json.loads(path.read_text()) for path in sorted(given.work.glob("*.json"))]
    names = [name for name in METHODS if all(name in row["methods"] for row in rows)]
    given.out.write_text(report(rows, names), encoding="utf-8")
    print(f"{len(rows)} of {len(asked)} texts" + ("" if done else ": run it again to go on"))


def interval(found: Estimate) -> str:
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def report(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """The table of what was measured of some prompts."""
    sources = [row["source"] for row in rows]
    values: dict[str, np.ndarray] = {}
    for name in names:
        most, least = (np.array([np.mean(row["methods"][name][which]) for row in rows]) for which in ("most", "least"))
        values[name] = np.stack([most, least, most - least], axis=1)
    means = {name: bootstrap_means(one, seed=SEED) for name, one in values.items()}
    kinds = ", ".join(f"{sources.count(name)} {name}" for name in SOURCES.values())
    percents = ", ".join(map(str, PERCENTS))
    lines = [
        "# Faithfulness of the rules for gates",
        "",
        f"SmolLM2-135M-Instruct on {len(rows)} texts ({kinds}), the logits of whose last {OUTPUT} tokens are "
        f"explained, by `bench/gates.py`. The most, or the least, important {percents} % of the prompt's tokens "
        "are taken out. What is shown is by how much the log-probability of the output falls, the mean over these "
        "levels, with 95 % intervals from a bootstrap of texts. A faithful method has a large fall for the most "
        "and a small one for the least important; the last column is the difference of the two less that of the "
        f"default, *{DEFAULT}*, on the same texts. What is left of a text is judged in bfloat16, and the two "
        "methods that run the model many times, integrated gradients and occlusion, are computed in it. *Path* is "
        "a rule that no engine has (`bench/gate_rules.py`).",
        "",
        "| method | most important | least important | difference | against the default |",
        "|---|---|---|---|---|",
    ]
    for name, one in values.items():
        cells = [interval(estimate(one[:, c], means[name][:, c])) for c in range(3)]
        against = estimate(one[:, 2] - values[DEFAULT][:, 2], means[name][:, 2] - means[DEFAULT][:, 2])
        cells.append("" if name == DEFAULT else interval(against))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
